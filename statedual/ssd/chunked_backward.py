"""The gradient of the chunked form inside a segment, which first recomputes what the forward did not keep.

With G_{k+1} the gradient of the state at the end of chunk k, and dy[l] that of the output:

    G_k      = total_k G_{k+1} + sum_l from_start[l] dy[l] outer c_l
    dx[s]    = to_end[s] G_{k+1} b_s + sum_l M[l, s] dy[l]
    db[s]    = to_end[s] G_{k+1}^T x_s + sum_l dG[l, s] c_l            dM = dy x^T, dG = sum over heads of L * dM
    dc[l]    = from_start[l] h_k^T dy[l] + sum_s dG[l, s] b_s

The gradient of log_a[t] is a sum over everything that crosses t, collected from the four decays of the forward: L,
to_end, from_start and total. Each is a sum of products that contain the decay itself, so nothing cancels and "forget"
gets 0.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.ssd.chunk import Chunks, backwards, matrices
from statedual.ssd.chunked import state_first
from statedual.ssd.decays import crossing_sums
from statedual.ssd.matmul import matmul
from statedual.ssd.passes import Inputs


def segment_backward(
    chunks: Chunks, inputs: Inputs, entering: Tensor, grad_y: Tensor, grad_state: Tensor, grads: Inputs
) -> None:
    """Write the segment of ``grads``; move ``grad_state`` from the segment's end to its start."""
    x, log_a, b, c = inputs
    take = chunks.buffers.take
    held_x, held_dy = chunks.load("x", x, chunks.heads), chunks.load("dy", grad_y, chunks.heads)
    held_b, held_c = chunks.load("b", b, chunks.gb), chunks.load("c", c, chunks.gc)
    decay, from_start, to_end = chunks.decays(log_a)
    entering, grad_state = state_first(entering), state_first(grad_state)

    # Left factors: y = from_start * (h c).
    grad_past = chunks.weigh(held_dy, from_start, "grad_past")
    grad_from_start = chunks.from_the_past(held_c, entering).mul_(grad_past).sum(-1).mT
    states = matrices(entering.flatten(0, 1), chunks.gc)
    grad_c = matmul(matrices(grad_past, chunks.gc), states.mT, out=take("grad_c", *held_c.shape))

    # Center factors: h_{k+1} = total_k h_k + z_k. ``leaving`` is the gradient of the state at the end of each chunk.
    leaving, total = take("leaving", *entering.shape), chunks.total(log_a)
    for k, after, before in backwards(grad_state, leaving):
        chunks.pass_one(k, held_c, grad_past, total, after, before)
    product = torch.mul(leaving, entering, out=take("product", *leaving.shape))
    grad_total = product.sum((2, 4)).view(chunks.count, chunks.heads) * from_start[..., -1]

    # Right factors: z = sum_s to_end x outer b.
    grad_states = matrices(leaving.flatten(0, 1), chunks.gb)
    grad_weighted, weighted = chunks.fold("past", held_x.shape[3]), chunks.weigh(held_x, to_end, "weighted")
    matmul(held_b, grad_states, out=matrices(grad_weighted, chunks.gb))
    grad_x = torch.mul(grad_weighted.transpose(1, 2), to_end.unsqueeze(-1), out=take("grad_x", *held_x.shape))
    grad_b = matmul(matrices(weighted, chunks.gb), grad_states.mT, out=take("grad_b", *held_b.shape))
    grad_to_end = grad_weighted.mul_(weighted).sum(-1).mT

    crossing = _diagonal_blocks(chunks, decay, (held_x, held_b, held_c), held_dy, (grad_x, grad_b, grad_c))

    # to_end[s] holds the decays after s, from_start[l] those up to l, total all of them.
    crossing[..., 1:] += grad_to_end.cumsum(-1)[..., :-1]
    crossing += grad_from_start.flip(-1).cumsum(-1).flip(-1)
    crossing += grad_total.unsqueeze(-1)
    for held, target in zip(
        (grad_x, crossing.unsqueeze(-1), grad_b, grad_c),
        (grads[0], grads[1].unsqueeze(-1), grads[2], grads[3]),
        strict=True,
    ):
        chunks.store(held, target)


def _diagonal_blocks(
    chunks: Chunks,
    decay: Tensor,
    held: tuple[Tensor, Tensor, Tensor],
    held_dy: Tensor,
    grads: tuple[Tensor, Tensor, Tensor],
) -> Float[Tensor, "count heads pos"]:
    """Add the gradients of the quadratic form inside the chunks; return that of log_a."""
    (x, b, c), (grad_x, grad_b, grad_c) = held, grads
    gram = chunks.gram(b, c)
    grad_log_a = torch.zeros_like(decay[..., 0])
    for rows in chunks.row_blocks():
        masked = chunks.masked(decay, gram, rows)
        dy = held_dy[:, :, rows].flatten(0, 1)
        grad_masked = chunks.buffers.take("grad_masked", *masked.shape)
        torch.bmm(dy, x[:, :, : rows.stop].flatten(0, 1).mT, out=grad_masked)
        grad_x.flatten(0, 1)[:, : rows.stop].baddbmm_(masked.mT, dy)
        masked.mul_(grad_masked)
        grad_log_a[..., : rows.stop] += crossing_sums(masked, rows.start).view(*grad_log_a.shape[:2], -1)

        grad_decayed = grad_masked.view(chunks.count, chunks.heads, -1, rows.stop)
        grad_decayed.mul_(decay[..., rows, : rows.stop])
        grad_gram = grad_decayed.unflatten(1, (gram.shape[1], -1)).sum(2)
        pair_b, pair_c = chunks.pairs(b[:, :, : rows.stop], c[:, :, rows])
        into_b, into_c = chunks.pairs(grad_b[:, :, : rows.stop], grad_c[:, :, rows])
        grad_gram = grad_gram.unflatten(1, (pair_b.shape[1], pair_b.shape[2], pair_c.shape[2]))
        into_b += torch.einsum("kgijls,kgjln->kgisn", grad_gram, pair_c)
        into_c += torch.einsum("kgijls,kgisn->kgjln", grad_gram, pair_b)
    return grad_log_a
