"""Sec. 5: a state space model with scalar decays is 1-semiseparable masked attention, name by name (fig:ssd)."""

import math

import pytest
import torch
from torch import Tensor

from statedual.masked_attention import Causal, OneSemiseparable, structured_attention
from statedual.semiseparable import SemiseparableMatrix, one_semiseparable
from statedual.ssd import ssd

FORMS = ("recurrent", "quadratic", "chunked")
every_form = pytest.mark.parametrize("form", FORMS)
BATCH, TIME, HEADS, STATE, HEAD_DIM = 2, 21, 3, 4, 5


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return double(BATCH, TIME, HEADS, STATE), double(BATCH, TIME, HEADS, STATE), double(BATCH, TIME, HEADS, HEAD_DIM)


@pytest.fixture
def log_a() -> Tensor:
    decays = -2 * torch.rand(BATCH, TIME, HEADS, dtype=torch.float64)
    decays[0, 5, 1] = -math.inf
    return decays


def heads_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2)


@every_form
@pytest.mark.parametrize("attention_form", ["linear", "quadratic"])
def test_c_b_x_are_queries_keys_values_and_the_decays_are_the_mask(
    qkv, log_a: Tensor, form: str, attention_form
) -> None:
    q, k, v = qkv
    y = ssd(v, log_a, k, q, form=form, chunk_size=8).y
    mask = OneSemiseparable(heads_first(log_a))
    attention = structured_attention(*map(heads_first, qkv), mask, form=attention_form)
    torch.testing.assert_close(heads_first(y), attention)


@every_form
def test_without_decay_the_mask_is_causal(qkv, form: str) -> None:
    """The causal mask is 1SS(1, ..., 1)."""
    q, k, v = qkv
    y = ssd(v, torch.zeros(BATCH, TIME, HEADS, dtype=torch.float64), k, q, form=form).y
    torch.testing.assert_close(heads_first(y), structured_attention(*map(heads_first, qkv), Causal()))


@every_form
def test_the_matrix_of_a_head_is_the_mask_times_the_gram_matrix(qkv, log_a: Tensor, form: str) -> None:
    """The layer applied to the identity is M, and M_ji = A_{j:i} (C_j . B_i): the same for every channel."""
    c, b, _ = qkv
    identity = torch.eye(TIME, dtype=torch.float64)[None, :, None].expand(BATCH, -1, HEADS, -1)
    M = heads_first(ssd(identity, log_a, b, c, form=form, chunk_size=8).y)
    L = one_semiseparable(heads_first(log_a).exp())
    torch.testing.assert_close(M, L * (heads_first(c) @ heads_first(b).mT))


@every_form
def test_each_channel_is_a_sequence_of_its_own(qkv, log_a: Tensor, form: str) -> None:
    """The head dimension broadcasts: P sequences through one SSM."""
    c, b, x = qkv
    y = ssd(x, log_a, b, c, form=form).y
    alone = [ssd(channel, log_a, b, c, form=form).y for channel in x.split(1, dim=-1)]
    torch.testing.assert_close(y, torch.cat(alone, -1))


@every_form
def test_a_head_is_a_state_space_model_with_scalar_transitions(qkv, log_a: Tensor, form: str) -> None:
    """SSM(a I, B, C) and M = SSS(a I, B, C) are the same map, for each sequence and head."""
    c, b, x = qkv
    y = ssd(x, log_a, b, c, form=form, chunk_size=8).y
    for row in range(BATCH):
        for head in range(HEADS):
            at = (row, slice(None), head)
            scalar = SemiseparableMatrix(log_a[at].exp(), b[at], c[at])
            as_matrices = log_a[at].exp()[:, None, None] * torch.eye(STATE, dtype=torch.float64)
            torch.testing.assert_close(y[at], scalar @ x[at])
            torch.testing.assert_close(y[at], SemiseparableMatrix(as_matrices, b[at], c[at]) @ x[at])


def test_the_hidden_states_are_the_mask_times_the_expanded_input(qkv, log_a: Tensor) -> None:
    """H = L (X B), the middle line of eq:sha-lin, is the state of the recurrence after every prefix."""
    _, b, x = qkv
    z = heads_first(x.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)
    H = OneSemiseparable(heads_first(log_a)).matmul(z).unflatten(-1, (HEAD_DIM, STATE))
    for t in range(TIME):
        prefix = [tensor[:, : t + 1] for tensor in (x, log_a, b, b)]
        torch.testing.assert_close(ssd(*prefix).final_state, H[:, :, t])
