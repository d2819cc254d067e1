"""Defects of other implementations, each with the test that would fail if it were ours.

From reading mamba_ssm 2.3.2.post1 and transformers 5.23.0. What is left out could not exist here: Mamba-3, bindings of
CUDA packages, and tensor parallelism, which there is not yet.
"""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from statedual import ssd
from statedual.generation import generate
from statedual.generation.sampling import Sampling
from statedual.layers import AttentionConfig, Mamba1Config, Mamba2, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig, load, weight_decay_groups

VOCABULARY = 40


def model(*blocks: object, d_model: int = 32) -> LanguageModel:
    config = ModelConfig(d_model=d_model, vocab_size=VOCABULARY, blocks=blocks)  # type: ignore[arg-type]
    made = LanguageModel(config).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.requires_grad_(False)


def mamba2(**choices: object) -> Mamba2Config:
    return Mamba2Config(**{"head_dim": 16, "d_state": 8, **choices})  # type: ignore[arg-type]


def same(got: Tensor, truth: Tensor) -> bool:
    return bool((got - truth).norm() <= 1e-11 * truth.norm())


def continued(made: LanguageModel, ids: Tensor, prefill: int) -> Tensor:
    """Logits of ``ids``: the first ``prefill`` in one pass, the others token by token."""
    logits, state = made(ids[:, :prefill])
    parts = [logits]
    for t in range(prefill, ids.shape[1]):
        step, state = made.step(ids[:, t], state)
        parts.append(step[:, None])
    return torch.cat(parts, 1)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(VOCABULARY, (2, 23))


# mamba_ssm, defects 1 to 13


def test_1_a_decoded_token_attends_to_all_keys_not_to_the_first(ids: Tensor) -> None:
    made = model(AttentionConfig(heads=4, kv_heads=2))
    assert same(continued(made, ids, 9), made(ids).logits)


def test_2_the_convolution_of_attention_continues_from_what_went_into_it(ids: Tensor) -> None:
    made = model(AttentionConfig(heads=4, conv_width=4))
    assert same(continued(made, ids, 9), made(ids).logits)


def test_3_the_norm_has_a_group_for_every_group_of_b() -> None:
    """(There it depended on the number of ranks.) Scaling one group of channels leaves the others as they are."""
    block = Mamba2(32, mamba2(heads_b=2, heads_c=2))
    assert block.norm is not None
    y, z = torch.randn(1, 3, 64), torch.randn(1, 3, 64)
    scaled = torch.cat([100 * y[..., :32], y[..., 32:]], -1)
    assert torch.equal(block.norm(scaled, z)[..., 32:], block.norm(y, z)[..., 32:])


@pytest.mark.parametrize(
    "choices",
    [{"skip": "channel"}, {"dt_limit": (0.01, 0.02)}, {"heads_b": 2, "heads_c": 2}, {"norm": "none"}],
    ids=str,
)
def test_4_a_step_knows_every_option_of_a_pass(choices: dict[str, object], ids: Tensor) -> None:
    made = model(mamba2(**choices))
    assert same(continued(made, ids, 1), made(ids).logits)


def test_5_with_mlps_the_residual_weights_count_both_additions_of_a_layer() -> None:
    made = LanguageModel(ModelConfig(d_model=256, vocab_size=8, blocks=(mamba2(), MLPConfig(hidden=256)) * 4))
    fc2 = made.get_parameter("blocks.1.mixer.fc2.weight")
    bound = 1 / math.sqrt(256) / math.sqrt(2 * 4)
    assert 0.99 * bound < fc2.abs().max().item() <= bound * (1 + 1e-6)


def test_6_min_p_compares_probabilities_row_by_row_with_other_filters() -> None:
    """There it took the logit of token 0, refused batches, and forbade top_k."""
    logits = torch.tensor([[-5.0, 0.0, -0.1, -3.0], [4.0, 3.9, 0.0, 3.95]])
    kept = Sampling(temperature=1.0, min_p=0.5, top_k=3).probabilities(logits, None) > 0
    assert kept.tolist() == [[False, True, True, False], [True, True, False, True]]


def test_8_there_is_one_path_and_it_normalises_by_group_in_packed_rows_too(ids: Tensor) -> None:
    made = model(mamba2(heads_b=4, heads_c=4))
    packed, _ = made(ids.reshape(1, -1), cu_seqlens=torch.tensor([0, 23, 46]))
    assert same(packed.reshape(2, 23, -1), made(ids).logits)


@pytest.mark.usefixtures("unchecked_shapes")
def test_10_a_state_of_another_batch_is_refused_not_broadcast(ids: Tensor) -> None:
    made = model(mamba2(), AttentionConfig(heads=4))
    _, one = made(ids[:1])
    with pytest.raises(ValueError, match="state has 1 rows, expected 2"):
        made.step(ids[:, 0], one)
    with pytest.raises(ValueError, match="state has 1 rows, expected 2"):
        made(ids, one)


def test_11_the_first_example_people_try_says_what_is_wrong() -> None:
    """d_model 16, whose 32 channels are no multiple of head_dim 64."""
    with pytest.raises(ValueError, match=r"expected a multiple of head_dim 64 .* change head_dim, expand or d_ssm"):
        Mamba2(16)
    assert Mamba2(16, Mamba2Config(head_dim=8))(torch.randn(1, 5, 16))[0].shape == (1, 5, 16)


def test_12_gradients_of_decays_do_not_drown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strong decays beside weak ones: the difference of two large sums would lose their gradients."""
    block = Mamba2(32, mamba2())
    with torch.no_grad():
        block.A_log.copy_(torch.tensor([-12.0, -6.0, 0.0, 4.0]))
    u = torch.randn(1, 300, 32)
    (got,) = torch.autograd.grad(block(u)[0].square().sum(), block.A_log)
    block.double()
    monkeypatch.setattr("statedual.layers.mamba2.ssd", partial(ssd, form="recurrent"))
    (truth,) = torch.autograd.grad(block(u.double())[0].square().sum(), block.A_log)
    assert ((got - truth).abs() <= 1e-5 * truth.abs()).all()  # each head by itself: the small ones too


def test_13_a_folder_without_configuration_says_so(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="holds no configuration"):
        load(str(tmp_path))


# transformers: sections 1.5 to 1.7 of its review


@pytest.mark.parametrize("limit", [(0.0, 0.02), (0.05, math.inf)])
def test_the_step_limit_holds_in_decode(limit: tuple[float, float], ids: Tensor) -> None:
    made = model(mamba2(dt_limit=limit), mamba2(dt_limit=limit))
    unlimited = model(mamba2(), mamba2())
    unlimited.load_state_dict(made.state_dict())
    assert same(continued(made, ids, 7), made(ids).logits)
    assert not same(unlimited(ids).logits, made(ids).logits)  # it does limit something


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("block", [mamba2, Mamba1Config], ids=["mamba2", "mamba1"])
def test_padding_on_either_side_leaves_no_trace(side: str, bias: bool, block: type, ids: Tensor) -> None:
    """There padding on the right corrupts the cache, and with biases padding on the left leaks into the convolution."""
    made = model(block(bias=bias), block(bias=bias))
    padded = torch.full((1, 31), 7)
    mask = torch.zeros(1, 31, dtype=torch.bool)
    place = slice(8, 31) if side == "left" else slice(0, 23)
    padded[:, place], mask[:, place] = ids[:1], True
    alone, state = made(ids[:1])
    logits, padded_state = made(padded, mask=mask)
    assert same(logits[:, place], alone)
    assert same(made.step(ids[1:, 0], padded_state).logits, made.step(ids[1:, 0], state).logits)


def test_several_tokens_continue_from_a_cache_with_positions_that_go_on(ids: Tensor) -> None:
    """There a hybrid called by hand counts the positions of its rotary embedding from 0 again."""
    made = model(mamba2(), AttentionConfig(heads=4))
    first, state = made(ids[:, :9])
    second, _ = made(ids[:, 9:], state)
    assert same(torch.cat([first, second], 1), made(ids).logits)


def test_packed_sequences_train_on_a_cpu(ids: Tensor) -> None:
    made = model(mamba2(), AttentionConfig(heads=4), Mamba1Config()).requires_grad_(True)
    offsets = [0, 11, 23]
    packed = made(ids[:1], cu_seqlens=torch.tensor(offsets)).logits.square().sum()
    apart = sum(made(ids[:1, a:b]).logits.square().sum() for a, b in itertools.pairwise(offsets))
    assert isinstance(apart, Tensor)
    for got, truth in zip(
        torch.autograd.grad(packed, made.parameters()), torch.autograd.grad(apart, made.parameters()), strict=True
    ):
        assert same(got, truth)


def test_the_gate_comes_before_the_norm_only_where_it_says_so() -> None:
    """There one family's fused path has the order of another."""
    u = torch.randn(1, 6, 32)
    blocks = [Mamba2(32, mamba2(norm_before_gate=before)) for before in (False, True)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    after, before = (block(u)[0] for block in blocks)
    assert not torch.allclose(after, before, rtol=1e-3)


def test_no_weight_decay_on_decays_and_skips() -> None:
    made = model(mamba2(learnable_init_states=True), Mamba1Config())
    groups = weight_decay_groups(made, 0.1)
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    for name, parameter in made.named_parameters():
        if name.endswith(("A_log", "D", "dt_bias", "init_states", "bias", "norm.weight")):
            assert id(parameter) in free, name


def test_initial_decays_are_drawn_per_head_not_counted() -> None:
    """There A_log is log(1), log(2), ... and embeddings are five times too wide."""
    made = LanguageModel(ModelConfig(d_model=512, vocab_size=1000, blocks=(Mamba2Config(),)))
    a = made.get_parameter("blocks.0.mixer.A_log").exp()
    assert 1 <= a.min() < a.max() <= 16
    assert not torch.allclose(a, torch.arange(1.0, 17.0))
    assert abs(made.embedding.weight.std().item() - 0.02) < 1e-3


def test_speculative_decoding_and_blocks_of_the_prompt_are_not_refused(ids: Tensor) -> None:
    made, draft = model(mamba2(), AttentionConfig(heads=4)), model(mamba2())
    prompts = [ids[0].tolist(), ids[1, :5].tolist()]
    plain = generate(made, prompts, max_new_tokens=12)
    assert [row.tokens for row in generate(made, prompts, max_new_tokens=12, block=4)] == [row.tokens for row in plain]
    ahead = generate(made, prompts, max_new_tokens=12, draft=draft)
    assert [row.tokens for row in ahead] == [row.tokens for row in plain]


def test_a_pure_ssm_state_is_split_repeated_and_rolled_back(ids: Tensor) -> None:
    made = model(mamba2(), Mamba1Config())
    _, state = made(ids)
    repeated = state.select([0, 0, 1])
    assert repeated.rows == 3
    snapshot = state.clone()
    truth = made.step(ids[:, 3], state.clone()).logits
    made.step(ids[:, 5], state)
    assert same(made.step(ids[:, 3], snapshot).logits, truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_step_sizes_are_added_to_their_bias_in_float32(dtype: torch.dtype) -> None:
    """There dt + dt_bias and softplus are rounded to bfloat16: -6.9 + 0.01 loses the 0.01."""
    block = Mamba2(32, mamba2()).to(dtype)
    inputs = [
        block._ssm_inputs(torch.zeros(1, 1, block.conv1d.channels, dtype=dtype), raw.to(dtype), None)
        for raw in (torch.zeros(1, 1, 4), torch.full((1, 1, 4), 0.0078125))
    ]
    ratio = inputs[1].log_a.double() / inputs[0].log_a.double()
    assert (ratio - 1 > 0.006).all()
