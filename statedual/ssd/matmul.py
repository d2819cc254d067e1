"""The one matrix product of the chunked form, taken from the faster of the two libraries that PyTorch ships."""

import torch
from jaxtyping import Float
from torch import Tensor

# Operations of one product from which on a call for it alone pays: 10 microseconds at 400 GFLOP/s.
_LARGE = 4_000_000
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def matmul(
    left: Float[Tensor, "outer inner m k"],
    right: Float[Tensor, "outer inner k n"],
    out: Float[Tensor, "outer inner m n"] | None = None,
) -> Float[Tensor, "outer inner m n"]:
    """left @ right, into ``out`` if given; the operands may be views of any strides.

    PyTorch's own float32 product is MKL's, which on processors of other vendors is the slower one
    (docs/decisions/onednn.md). oneDNN is reached through the operator that PyTorch's compiler emits for linear layers:
    one matrix a call, so that small ones stay with ``bmm``, whose one batch axis is the longer of the two here.
    """
    onednn = _large_on_cpu(left, right)
    if out is None:
        if onednn and left.shape[:2] == (1, 1):
            return _linear(left[0, 0], right[0, 0])[None, None]
        out = left.new_empty(*left.shape[:3], right.shape[3])
    if onednn:
        # By index: ``out`` is a view, of which ``flatten`` may be a copy.
        for i in range(left.shape[0]):
            for j in range(left.shape[1]):
                out[i, j] = _linear(left[i, j], right[i, j])
        return out
    shorter = 0 if left.shape[0] < left.shape[1] else 1
    for target, ones, others in zip(out.unbind(shorter), left.unbind(shorter), right.unbind(shorter), strict=True):
        torch.bmm(ones, others, out=target)
    return out


def _large_on_cpu(left: Tensor, right: Tensor) -> bool:
    operations = 2 * left.shape[2] * left.shape[3] * right.shape[3]
    return (
        operations >= _LARGE
        and left.device.type == "cpu"
        and left.dtype == torch.float32
        and _ONEDNN
        and bool(torch.backends.mkldnn.enabled)  # the user's setting
    )


def _linear(left: Float[Tensor, "m k"], right: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
    return product
