"""Inside PyTorch's machinery: operator checks, compilers, export, autocast, second derivatives."""

import re

import pytest
import torch
from ssd_examples import FORMS, PATTERNS, Example, assert_equal, error, example, results, truth
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from statedual.ssd import SSDOutput, ssd
from statedual.ssd.library import ssd_chunked, ssd_chunked_backward

every_form = pytest.mark.parametrize("form", FORMS)
CASES = {
    **{name: {"groups": PATTERNS[name], "batch": 2} for name in ("multi_input", "multi_contract", "grouped")},
    "no_initial_state": {"initial": False},
    "packed": {"offsets": [0, 11, 11, 40]},
    "bfloat16": {"dtype": torch.bfloat16},
}
every_case = pytest.mark.parametrize("name", CASES)


def arguments(case: Example, differentiable: bool) -> tuple:
    leaves = [t.clone().requires_grad_(differentiable) for t in case.tensors()]
    initial = leaves[4] if len(leaves) > 4 else None
    offsets = None if case.offsets is None else torch.tensor(case.offsets)
    return (*leaves[:4], initial, offsets, 16, differentiable)


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
def test_the_operator_keeps_its_promises(name: str) -> None:
    """Schema, no hidden aliasing, registration of the gradient, and the shapes that compilers are told."""
    case = example(40, kind="usual", **CASES[name])
    torch.library.opcheck(ssd_chunked, arguments(case, True))


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_operator_keeps_its_promises_without_gradients() -> None:
    torch.library.opcheck(ssd_chunked, arguments(example(40, groups=(6, 2, 3)), False))


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
def test_the_operator_of_the_gradient_keeps_its_promises(name: str) -> None:
    case = example(40, kind="usual", **CASES[name])
    given = arguments(case, True)
    kept = ssd_chunked(*given)[2].detach()
    inputs = [t.detach() for t in given[:4]]
    torch.library.opcheck(ssd_chunked_backward, (case.grad_y, case.grad_final, *inputs, given[5], kept, 16))


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
@every_form
def test_shapes_without_data(form: str, name: str) -> None:
    """Fake tensors and the meta device: shapes, dtypes and strides as of the real results."""
    case = example(40, kind="usual", **CASES[name])
    if case.offsets is not None and form != "chunked":
        pytest.skip("the plain forms read the offsets")
    real = ssd(*case.tensors()[:4], initial_state=case.initial_state, form=form, **case.options())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        tensors = [mode.from_tensor(t) for t in case.tensors()]
        options = {key: mode.from_tensor(t) for key, t in case.options().items()}
        fake = ssd(*tensors[:4], initial_state=tensors[4] if tensors[4:] else None, form=form, **options)
    tensors = [t.to("meta") for t in case.tensors()]
    options = {key: t.to("meta") for key, t in case.options().items()}
    meta = ssd(*tensors[:4], initial_state=tensors[4] if tensors[4:] else None, form=form, **options)
    for without in (fake, meta):
        for got, wanted in zip(without, real, strict=True):
            assert (got.shape, got.dtype, strides(got)) == (wanted.shape, wanted.dtype, strides(wanted))


def strides(tensor: Tensor) -> list[int]:
    """Of the axes that have a stride: along one element there is none."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def compiled_results(case: Example, function, form: str):
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    y, final = function(*leaves[:4], leaves[4] if leaves[4:] else None, case.options().get("cu_seqlens"), form)
    gradients = torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final))
    return y.detach(), final.detach(), *gradients


def call(x, log_a, b, c, initial_state, cu_seqlens, form) -> SSDOutput:
    return ssd(x, log_a, b, c, initial_state=initial_state, cu_seqlens=cu_seqlens, form=form, chunk_size=16)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("chunked", name) for name in CASES),
        ("quadratic", "grouped"),
        ("recurrent", "grouped"),
    ],
)
def test_compiled_whole(form: str, name: str) -> None:
    """Without a graph break, forwards and backwards."""
    torch._dynamo.reset()
    case = example({"recurrent": 3, "quadratic": 9, "chunked": 40}[form], kind="mixed", **CASES[name])
    got = compiled_results(case, torch.compile(call, backend="aot_eager", fullgraph=True), form)
    for one, wanted in zip(got, results(case, form, 16), strict=False):
        assert error(one, wanted) < case.bound


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("offsets", [False, True])
def test_few_compilations_serve_any_time(offsets: bool) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    for time in (40, 41, 333, 7):
        case = example(time, kind="usual", offsets=[0, 3, 3, time] if offsets else None)
        got = compiled_results(case, function, "chunked")
        for one, wanted in zip(got, truth(case), strict=True):
            assert error(one, wanted) < case.bound
    assert counter.frame_count <= 3, "PyTorch tells apart: no state kept for the gradient, one, many"


class Layer(torch.nn.Module):
    """As a model calls it: projections before, something after."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.project = form, torch.nn.Linear(8, 4 * 3 + 4 + 5 + 5)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, b, c = self.project(u).split([12, 4, 5, 5], -1)
        log_a = -torch.nn.functional.softplus(dt)
        y, final = ssd(x.unflatten(-1, (4, 3)), log_a, b.unsqueeze(2), c.unsqueeze(2), form=self.form)
        return y.flatten(2).tanh(), final


@pytest.mark.usefixtures("unchecked_shapes")
@every_form
def test_export(form: str) -> None:
    layer, u = Layer(form), torch.randn(2, 6, 8)
    program = torch.export.export(layer, (u,))
    torch.testing.assert_close(program.module()(u), layer(u))


@pytest.mark.usefixtures("unchecked_shapes")
def test_export_with_any_time() -> None:
    layer, time = Layer("chunked"), torch.export.Dim("time", min=2, max=100_000)
    with torch.no_grad():
        program = torch.export.export(layer, (torch.randn(2, 70, 8),), dynamic_shapes={"u": {1: time}})
        for length in (2, 63, 64, 65, 1000):
            u = torch.randn(2, length, 8)
            torch.testing.assert_close(program.module()(u), layer(u))
    called = [node.target for node in program.graph.nodes if "statedual" in str(node.target)]
    assert called == [torch.ops.statedual.ssd_chunked.default]


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(form: str, dtype: torch.dtype) -> None:
    case = example(40, groups=(6, 2, 3), dtype=dtype)
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        y, final = ssd(*leaves[:4], initial_state=leaves[4], form=form, chunk_size=16)
    got = (y, final, *torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final)))
    for one, wanted in zip(got, results(case, form, 16), strict=True):
        assert one.dtype == wanted.dtype
        assert torch.equal(one, wanted)


def test_a_chunked_backward_under_autocast_changes_nothing() -> None:
    case = example(40, groups=(6, 2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        got = results(case, "chunked", 16)
    assert_equal(got, truth(case), case)


def test_the_gradient_of_the_chunked_form_is_final() -> None:
    case = example(20, dtype=torch.float64)
    x = case.x.requires_grad_()
    (gradient,) = torch.autograd.grad(ssd(x, case.log_a, case.b, case.c).y.square().sum(), x, create_graph=True)
    message = "Trying to backward through statedual.ssd_chunked_backward.default but no autograd formula was registered"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        gradient.sum().backward()


@pytest.mark.parametrize("wanted", ["x", "log_a", "b", "c", "initial_state"])
def test_one_gradient_alone(wanted: str) -> None:
    """Inputs that need no gradient do not disturb those that do; an output may be left out of the loss."""
    case = example(40, groups=(6, 2, 3), dtype=torch.float64)
    given = {name: getattr(case, name).clone() for name in ("x", "log_a", "b", "c", "initial_state")}
    given[wanted].requires_grad_()
    for output, left_out in (("y", "final_state"), ("final_state", "y")):
        result = getattr(ssd(**given, chunk_size=16), output)
        weights = case.grad_y if output == "y" else case.grad_final
        if wanted == "c" and output == "final_state":
            assert not torch.autograd.grad(result, given[wanted], weights)[0].any()
            continue
        (gradient,) = torch.autograd.grad(result, given[wanted], weights)
        zeroed = {"grad_y" if left_out == "y" else "grad_final": 0.0}
        expected = truth(Example(**{**vars(case), **{k: torch.zeros_like(getattr(case, k)) for k in zeroed}}))
        assert error(gradient, getattr(expected, wanted)) < case.bound


@every_form
def test_strides_do_not_matter(form: str) -> None:
    """Transposed and expanded inputs and incoming gradients, slices of wider tensors."""
    case = example(40, groups=(6, 1, 1), batch=2)
    row = torch.randn(1, 1, 1, 4)
    strided = Example(
        x=case.x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        log_a=case.log_a.mT.contiguous().mT,
        b=case.b[:, :1].expand(2, 40, 1, 3),
        c=torch.cat([case.c, case.c], -1)[..., 2:5],
        initial_state=case.initial_state.mT.contiguous().mT,
        offsets=None,
        grad_y=row.expand(2, 40, 6, 4),
        grad_final=torch.ones(()).expand(2, 6, 4, 3),
    )
    plain = Example(**{k: v.contiguous() if isinstance(v, Tensor) else v for k, v in vars(strided).items()})
    leaves = [t.detach().requires_grad_() for t in strided.tensors()]
    y, final = ssd(*leaves[:4], initial_state=leaves[4], form=form, chunk_size=16)
    got = (y, final, *torch.autograd.grad((y, final), leaves, (strided.grad_y, strided.grad_final)))
    for one, wanted in zip(got, truth(plain), strict=True):
        assert error(one, wanted) < case.bound
