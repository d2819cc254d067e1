"""Models on a GPU. Everything else is tested on the CPU; here only what a device could change."""

import copy

import pytest
import torch
from model_examples import EXAMPLES, FEW, difference, model, tokens

from statedual.generation import generate, score
from statedual.models import ModelState

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_way_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    lm = model(name).to(dtype).eval().requires_grad_(False)
    gpu, wide = copy.deepcopy(lm).cuda(), copy.deepcopy(lm).double()
    ids = tokens(2, 60)
    truth = wide(ids).logits
    # These models magnify every input: where bfloat16 loses more than its bound, then on a CPU too.
    bound = 1e-5 if dtype == torch.float32 else max(1e-2, 2 * difference(lm(ids).logits, truth))
    there = ids.cuda()
    assert difference(gpu(there).logits.cpu(), truth) < bound
    first, state = gpu(there[:, :33])
    second, state = gpu(there[:, 33:], state)
    assert difference(torch.cat([first, second], 1).cpu(), truth) < bound
    packed, _ = gpu(there.reshape(1, -1), cu_seqlens=torch.tensor([0, 60, 120], device="cuda"))
    assert difference(packed.reshape(truth.shape).cpu(), truth) < bound
    mask = torch.ones(2, 60, dtype=torch.bool, device="cuda")
    mask[0, :20], mask[1, 50:] = False, False
    padded, _ = gpu(there, mask=mask)
    assert difference(padded[0, 20:].cpu(), wide(ids[:1, 20:]).logits[0]) < bound
    assert difference(padded[1, :50].cpu(), truth[1, :50]) < bound
    walked, steps = gpu.init_state(2), []
    for t in range(60):
        logits, walked = gpu.step(there[:, t], walked)
        steps.append(logits)
    assert difference(torch.stack(steps, 1).cpu(), truth) < bound


@pytest.mark.parametrize("name", FEW)
def test_text_and_states_on_a_gpu(name: str, tmp_path: object) -> None:
    lm = model(name).double().eval().requires_grad_(False)
    gpu = copy.deepcopy(lm).cuda()
    prompts = [tokens(size).tolist() for size in (9, 1, 40)]
    settings = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 3}
    for options in ({"max_new_tokens": 12}, settings, {"max_new_tokens": 12, "draft": None}):
        here = generate(lm, prompts, **options)
        assert [row.tokens for row in generate(gpu, prompts, **options)] == [row.tokens for row in here]
    ahead = generate(gpu, prompts, max_new_tokens=12, draft=copy.deepcopy(gpu))
    assert [row.tokens for row in ahead] == [row.tokens for row in generate(lm, prompts, max_new_tokens=12)]
    for got, truth in zip(score(gpu, prompts), score(lm, prompts), strict=True):
        assert torch.allclose(got.cpu(), truth, atol=1e-5)
    _, state = gpu(tokens(2, 5).cuda())
    path = f"{tmp_path}/state"
    state.save(path)
    loaded = ModelState.load(path, device="cuda")
    next_ids = tokens(2).cuda()
    assert torch.equal(gpu.step(next_ids, loaded).logits, gpu.step(next_ids, state.clone()).logits)


@pytest.mark.parametrize("name", FEW)
def test_gradients_on_a_gpu(name: str) -> None:
    lm = model(name).double()
    gpu = copy.deepcopy(lm).float().cuda()
    ids = tokens(2, 50)
    truth = torch.autograd.grad(lm(ids).logits.square().sum(), lm.parameters(), allow_unused=True)
    got = torch.autograd.grad(gpu(ids.cuda()).logits.square().sum(), gpu.parameters(), allow_unused=True)
    for (parameter, _), one, other in zip(lm.named_parameters(), got, truth, strict=True):
        if other is not None:
            assert one is not None
            assert difference(one.cpu(), other) < 1e-4, parameter
