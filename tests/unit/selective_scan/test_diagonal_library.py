"""Inside PyTorch's machinery: operator checks, compilers, export, autocast, the meta device."""

import re

import pytest
import torch
from diagonal_examples import PATHS, differentiated, example, results, truth
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from unit.ssd.ssd_examples import PATTERNS, Example, Results, assert_equal, error

from statedual.selective_scan import diagonal_ssm, library
from statedual.ssd import SSDOutput

every_path = pytest.mark.parametrize("path", PATHS)
every_operator = pytest.mark.parametrize("path", ["steps", "products"])
CASES = {
    **{name: {"groups": PATTERNS[name], "batch": 2} for name in ("multi_contract", "grouped")},
    "no_initial_state": {"initial": False},
    "packed": {"offsets": [0, 11, 11, 40]},
    "bfloat16": {"dtype": torch.bfloat16},
}
every_case = pytest.mark.parametrize("name", CASES)


def operators(path: str) -> tuple:
    both = torch.ops.statedual
    if path == "steps":
        return library.diagonal_ssm_steps, both.diagonal_ssm_steps_backward.default
    return library.diagonal_ssm_products, both.diagonal_ssm_products_backward.default


def arguments(case: Example, differentiable: bool) -> tuple:
    leaves = [t.clone().requires_grad_(differentiable) for t in case.tensors()]
    return (*leaves[:4], leaves[4] if leaves[4:] else None, case.options().get("cu_seqlens"), 16, differentiable)


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
@every_operator
def test_the_operators_keep_their_promises(path: str, name: str) -> None:
    """Schema, no hidden aliasing, registration of the gradient, and the shapes that compilers are told."""
    case = example(40, kind="usual", head_dim=PATHS[path][1], **CASES[name])
    torch.library.opcheck(operators(path)[0], arguments(case, True))


@pytest.mark.usefixtures("unchecked_shapes")
@every_operator
def test_the_operators_keep_their_promises_without_gradients(path: str) -> None:
    case = example(40, groups=(6, 2, 3), head_dim=PATHS[path][1])
    torch.library.opcheck(operators(path)[0], arguments(case, False))


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
@every_operator
def test_the_operators_of_the_gradients_keep_their_promises(path: str, name: str) -> None:
    case = example(40, kind="usual", head_dim=PATHS[path][1], **CASES[name])
    forward, backward = operators(path)
    given = arguments(case, True)
    names = ("x", "log_a", "b", "c", "initial_state", "cu_seqlens", "chunk")
    values = {name: t.detach() if isinstance(t, Tensor) else t for name, t in zip(names, given, strict=False)}
    values |= {"kept": forward(*given)[2].detach(), "grad_y": case.grad_y, "grad_final": case.grad_final}
    torch.library.opcheck(backward, tuple(values[argument.name] for argument in backward._schema.arguments))


def without_data(path: str, case: Example, convert) -> SSDOutput:
    tensors = [convert(t) for t in case.tensors()]
    options = {key: convert(t) for key, t in case.options().items()}
    return diagonal_ssm(*tensors[:4], initial_state=tensors[4] if tensors[4:] else None, form=PATHS[path][0], **options)


@pytest.mark.usefixtures("unchecked_shapes")
@every_case
@every_path
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_shapes_without_data(kind: str, path: str, name: str) -> None:
    """Fake tensors and the meta device: shapes, dtypes and strides as of the real results."""
    case = example(40, kind="usual", head_dim=PATHS[path][1], **CASES[name])
    if case.offsets is not None and path == "recurrent":
        pytest.skip("the recurrent form reads the offsets")
    real = without_data(path, case, lambda t: t)
    if kind == "fake":
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            got = without_data(path, case, mode.from_tensor)
    else:
        got = without_data(path, case, lambda t: t.to("meta"))
    for one, wanted in zip(got, real, strict=True):
        assert (one.shape, one.dtype, strides(one)) == (wanted.shape, wanted.dtype, strides(wanted))


def strides(tensor: Tensor) -> list[int]:
    """Of the axes that have a stride: along one element there is none."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def call(x, log_a, b, c, initial_state, cu_seqlens, form) -> SSDOutput:
    return diagonal_ssm(x, log_a, b, c, initial_state=initial_state, cu_seqlens=cu_seqlens, form=form, chunk_size=24)


def called(function, case: Example, form: str) -> Results:
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    y, final = function(*leaves[:4], leaves[4] if leaves[4:] else None, case.options().get("cu_seqlens"), form)
    return differentiated(case, y, final, leaves)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("path", "name"), [*((path, name) for path in ("steps", "products") for name in CASES), ("recurrent", "grouped")]
)
def test_compiled_whole(path: str, name: str) -> None:
    """Without a graph break, forwards and backwards."""
    torch._dynamo.reset()
    form, head_dim = PATHS[path]
    case = example(3 if form == "recurrent" else 40, head_dim=head_dim, **CASES[name])
    assert_equal(called(torch.compile(call, backend="aot_eager", fullgraph=True), case, form), truth(case), case)


@pytest.mark.usefixtures("unchecked_shapes")
@every_operator
@pytest.mark.parametrize("offsets", [False, True])
def test_few_compilations_serve_any_time(offsets: bool, path: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    for time in (40, 333, 7, 8, 9, 17):
        packed = [0, 3, 3, time] if offsets else None
        case = example(time, kind="usual", head_dim=PATHS[path][1], offsets=packed)
        assert_equal(called(function, case, "chunked"), truth(case), case)
    assert counter.frame_count <= 3, "PyTorch tells apart: no state kept for the gradient, one, many"


class Layer(torch.nn.Module):
    """As a model calls it: projections before, something after."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.form, self.head_dim = PATHS[path]
        self.sizes = [2 * self.head_dim, 2 * 5, 5, 5]
        self.project = torch.nn.Linear(8, sum(self.sizes))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, b, c = self.project(u).split(self.sizes, -1)
        log_a = -torch.nn.functional.softplus(dt).unflatten(-1, (2, 5))
        x = x.unflatten(-1, (2, self.head_dim))
        y, final = diagonal_ssm(x, log_a, b.unsqueeze(2), c.unsqueeze(2), form=self.form)
        return y.flatten(2).tanh(), final


@pytest.mark.usefixtures("unchecked_shapes")
@every_path
def test_export(path: str) -> None:
    layer, u = Layer(path), torch.randn(2, 6, 8)
    program = torch.export.export(layer, (u,))
    torch.testing.assert_close(program.module()(u), layer(u))


@pytest.mark.usefixtures("unchecked_shapes")
@every_operator
@pytest.mark.parametrize("gradients", [False, True])
def test_export_with_any_time(gradients: bool, path: str) -> None:
    """Also with the states that are kept for the gradient, whose number depends on the time."""
    layer, time = Layer(path), torch.export.Dim("time", min=2, max=100_000)
    with torch.set_grad_enabled(gradients):
        program = torch.export.export(layer, (torch.randn(2, 70, 8),), dynamic_shapes={"u": {1: time}})
        for length in (2, 31, 32, 33, 64, 65, 1000):
            u = torch.randn(2, length, 8)
            torch.testing.assert_close(program.module()(u), layer(u))
    nodes = [node.target for node in program.graph.nodes if "statedual" in str(node.target)]
    assert nodes == [getattr(torch.ops.statedual, f"diagonal_ssm_{path}").default]


@every_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(path: str, dtype: torch.dtype) -> None:
    form, head_dim = PATHS[path]
    case = example(40, groups=(6, 2, 3), head_dim=head_dim, dtype=dtype)
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        y, final = diagonal_ssm(*leaves[:4], initial_state=leaves[4], form=form, chunk_size=16)
    for one, wanted in zip(differentiated(case, y, final, leaves), results(case, form, 16), strict=True):
        assert one.dtype == wanted.dtype
        assert torch.equal(one, wanted)


@every_operator
def test_a_chunked_backward_under_autocast_changes_nothing(path: str) -> None:
    case = example(40, groups=(6, 2, 3), head_dim=PATHS[path][1])
    with torch.autocast("cpu", torch.bfloat16):
        got = results(case, "chunked", 16)
    assert_equal(got, truth(case), case)


@every_operator
def test_the_gradient_of_the_chunked_form_is_final(path: str) -> None:
    case = example(20, head_dim=PATHS[path][1], dtype=torch.float64)
    x = case.x.requires_grad_()
    y = diagonal_ssm(x, case.log_a, case.b, case.c).y
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    message = f"Trying to backward through statedual.diagonal_ssm_{path}_backward.default but no autograd formula"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        gradient.sum().backward()


@every_path
@pytest.mark.parametrize("wanted", ["x", "log_a", "b", "c", "initial_state"])
def test_one_gradient_alone(wanted: str, path: str) -> None:
    """Inputs that need no gradient do not disturb those that do; an output may be left out of the loss."""
    form, head_dim = PATHS[path]
    case = example(40, groups=(6, 2, 3), head_dim=head_dim, dtype=torch.float64)
    given = {name: getattr(case, name).clone() for name in ("x", "log_a", "b", "c", "initial_state")}
    given[wanted].requires_grad_()
    for output, weights, left_out in (("y", "grad_y", "grad_final"), ("final_state", "grad_final", "grad_y")):
        result = getattr(diagonal_ssm(**given, form=form, chunk_size=16), output)
        if not result.requires_grad:
            assert (path, wanted, output) == ("recurrent", "c", "final_state")
            continue
        (gradient,) = torch.autograd.grad(result, given[wanted], getattr(case, weights))
        expected = truth(Example(**{**vars(case), left_out: torch.zeros_like(getattr(case, left_out))}))
        assert error(gradient, getattr(expected, wanted)) < case.bound


@every_path
def test_strides_do_not_matter(path: str) -> None:
    """Transposed and expanded inputs and incoming gradients, slices of wider tensors."""
    form, head_dim = PATHS[path]
    case = example(40, groups=(6, 1, 1), batch=2, head_dim=head_dim)
    strided = Example(
        x=case.x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
        log_a=case.log_a.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        b=case.b[:, :1].expand(2, 40, 1, 3),
        c=torch.cat([case.c, case.c], -1)[..., 2:5],
        initial_state=case.initial_state.mT.contiguous().mT,
        offsets=None,
        grad_y=torch.randn(1, 1, 1, head_dim).expand(2, 40, 6, head_dim),
        grad_final=torch.ones(()).expand(2, 6, head_dim, 3),
    )
    plain = Example(**{k: v.contiguous() if isinstance(v, Tensor) else v for k, v in vars(strided).items()})
    leaves = [t.detach().requires_grad_() for t in strided.tensors()]
    y, final = diagonal_ssm(*leaves[:4], initial_state=leaves[4], form=form, chunk_size=16)
    assert_equal(differentiated(strided, y, final, leaves), truth(plain), plain)


@every_operator
def test_equal_decays_of_all_channels_may_be_a_view(path: str) -> None:
    """``log_a.unsqueeze(-1).expand(...)`` holds each decay once; its gradient is summed over the channels."""
    case = example(40, head_dim=PATHS[path][1])
    scalar = case.log_a[..., 0].clone().requires_grad_()
    log_a = scalar.unsqueeze(-1).expand(case.log_a.shape)
    y, final = diagonal_ssm(case.x, log_a, case.b, case.c, initial_state=case.initial_state, chunk_size=16)
    (gradient,) = torch.autograd.grad((y, final), scalar, (case.grad_y, case.grad_final))
    wanted = truth(Example(**{**vars(case), "log_a": log_a.detach().contiguous()}))
    assert error(gradient, wanted.log_a.sum(-1)) < case.bound
