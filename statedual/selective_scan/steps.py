"""The chunked form for narrow heads, Mamba-1's head_dim 1: step by step, with nothing kept but states at borders.

Here no matrix product is to be won, so a chunk is walked as the recurrence says, one fused operation a token on all of
its channels. What a compiler of loops cannot see is that the gradient needs no states of all times: with those that
enter the chunks it recomputes the others and runs the adjoint recurrence backwards,

    G_t = dy_t outer c_t + exp(log_a_{t+1}) G_{t+1}
    dx_t = G_t b_t    db_t = G_t^T x_t    dc_t = h_t^T dy_t
    dlog_a_t = exp(log_a_t) * sum over head_dim of G_t * h_{t-1}
"""

import torch
from torch import Tensor

from statedual.ssd.chunk import Chunks
from statedual.ssd.passes import Inputs


def elements(x: Tensor, log_a: Tensor, b: Tensor, chunk: int) -> int:
    """Numbers in the work buffers of one chunk: states, their gradients, decays; rows of x's and b's width."""
    heads, state = log_a.shape[2:]
    return chunk * (heads * (2 * x.shape[3] * state + state + 4 * x.shape[3]) + 4 * b.shape[2] * state)


_STRETCH = 32


class Steps:
    """A segment in work buffers whose first axis is time: inputs, decays, and the states before and after each step."""

    def __init__(self, chunks: Chunks, inputs: Inputs, state: Tensor) -> None:
        x, log_a, b, c = inputs
        self.chunks = chunks
        self.time = chunks.segment.t1 - chunks.segment.t0
        self.x, self.b, self.c = self.load("x", x), self.load("b", b), self.load("c", c)
        self.decay = self.load("decay", log_a).unsqueeze(3)
        self.stretches = self.cut()
        self.states = chunks.buffers.take("states", self.time + 1, *state.shape)
        self.states[0].copy_(state)
        _outer(self.x, self.b, self.states[1:])
        states, decays = self.states.unbind(0), self.decay.unbind(0)
        for start, stop, missing in self.stretches:
            for t in range(start, stop):
                states[t + 1].addcmul_(decays[t], states[t])
            states[stop].addcmul_(missing, states[start])

    def cut(self) -> list[tuple[int, int, Tensor]]:
        """Exponentiate ``decay``; return stretches of steps, each with what the product of its decays falls short of.

        A decay of exp(-1e-4) is off by 2e-8 in float32, and where decays are equal, to the same side at every step.
        So what passes through a whole stretch gets the difference between the exponential of the sum and the product.
        """
        stretches = []
        for start in range(0, self.time, _STRETCH):
            part = self.decay[start : start + _STRETCH]
            total = part.sum(0).double().exp_()
            missing = total.sub_(part.exp_().prod(0, dtype=torch.float64)).to(part.dtype)
            stretches.append((start, start + len(part), missing))
        return stretches

    def of(self, tensor: Tensor) -> Tensor:
        """The segment of a (batch, time, groups, width) tensor as a (time, row, groups, width) view."""
        s = self.chunks.segment
        return tensor[s.row0 : s.row1, s.t0 : s.t1].transpose(0, 1)

    def load(self, name: str, tensor: Tensor) -> Tensor:
        """A copy in compute precision."""
        part = self.of(tensor)
        return self.chunks.buffers.take(name, *part.shape).copy_(part)


def segment_forward(chunks: Chunks, inputs: Inputs, state: Tensor, entering: Tensor, y: Tensor) -> None:
    """Write the segment of ``y`` and the states that enter its chunks; move ``state`` to its end."""
    steps = Steps(chunks, inputs, state)
    steps.of(y).copy_(_contract(steps.states[1:], steps.c))
    entering.copy_(steps.states[: -1 : chunks.pos])
    state.copy_(steps.states[-1])


def segment_backward(
    chunks: Chunks, inputs: Inputs, entering: Tensor, grad_y: Tensor, grad_state: Tensor, grads: Inputs
) -> None:
    """Write the segment of ``grads``; move ``grad_state`` from the segment's end to its start."""
    steps = Steps(chunks, inputs, entering[0])
    dy = steps.load("dy", grad_y)
    grad_states = chunks.buffers.take("grad_states", *steps.states[1:].shape)
    _outer(dy, steps.c, grad_states)
    grad_states[-1] += grad_state
    after, decays = [grad_state.zero_(), *grad_states.unbind(0)], steps.decay.unbind(0)
    for start, stop, missing in reversed(steps.stretches):
        for t in reversed(range(start, stop)):
            after[t].addcmul_(decays[t], after[t + 1])
        after[start].addcmul_(missing, after[stop])
    grad_x, grad_log_a, grad_b, grad_c = (steps.of(grad) for grad in grads)
    by_head = _contract(grad_states, steps.b)
    grad_x.copy_(by_head.unflatten(2, (grad_x.shape[2], -1)).sum(3))
    grad_b.copy_(_gather(steps.x, grad_states, grad_b.shape[2]))
    grad_c.copy_(_gather(dy, steps.states[1:], grad_c.shape[2]))
    grad_log_a.copy_(grad_states.mul_(steps.states[:-1]).mul_(steps.decay).sum(3))


def _outer(x: Tensor, b: Tensor, out: Tensor) -> None:
    """out (time, row, heads, head_dim, state) = x outer b, each of the group of its head."""
    heads = out.shape[2]
    by_head = x.repeat_interleave(heads // x.shape[2], 2) if x.shape[2] < heads else x
    groups = b.shape[2], -1
    torch.mul(by_head.unflatten(2, groups).unsqueeze(-1), b[:, :, :, None, None], out=out.unflatten(2, groups))


def _contract(states: Tensor, c: Tensor) -> Tensor:
    """states c: (time, row, heads, head_dim), one product a group."""
    by_group = states.unflatten(2, (c.shape[2], -1)).flatten(3, 4)
    product: Tensor = by_group @ c.unsqueeze(-1)
    return product.reshape(states.shape[:-1])


def _gather(x: Tensor, states: Tensor, groups: int) -> Tensor:
    """The adjoint of ``_contract`` towards c: (time, row, groups, state), summed over the heads of a group."""
    heads = states.shape[2]
    by_head = x.repeat_interleave(heads // x.shape[2], 2) if x.shape[2] < heads else x
    left, right = (t.unflatten(2, (groups, -1)).flatten(3, 4) for t in (by_head.unsqueeze(-1), states))
    product: Tensor = left.mT @ right
    return product.squeeze(-2)
