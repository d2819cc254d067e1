"""The gradient of the chunked form on matrix products inside a segment, which first recomputes what it needs.

With G_{k+1} the gradient of the state at the end of chunk k, dy[l] that of the output, and dS = dy x^T on and below the
diagonal, every product of the forward gives two, and every decay exp(d) with gradient g the gradient g exp(d) to its
logarithm d: products that contain the decay itself, so that nothing cancels and "forget" gets 0.
"""

import torch
from torch import Tensor

from statedual.selective_scan.halving import halves, pass_down, quadrants
from statedual.selective_scan.products import Tree
from statedual.ssd.chunk import Chunks, backwards
from statedual.ssd.passes import Inputs


def segment_backward(
    chunks: Chunks, inputs: Inputs, entering: Tensor, grad_y: Tensor, grad_state: Tensor, grads: Inputs
) -> None:
    """Write the segment of ``grads``; move ``grad_state`` from the segment's end to its start."""
    tree, take = Tree(chunks, inputs), chunks.buffers.take
    dy = tree.load("dy", grad_y, chunks.heads).flatten(0, 1)

    # Center factors, from behind: G_k = total * G_{k+1} + dy^T weighted_c.
    leaving = take("leaving", *entering.shape)
    for k, later, earlier in backwards(grad_state, leaving):
        tree.pass_one(k, dy, tree.weighted_c, later, earlier)
    before, after = entering.flatten(0, 2), leaving.flatten(0, 2)
    last = tree.from_start[:, :, -1]
    grad_total = (before * after).sum(1).view_as(last) * last

    # Left and right factors. What a decay is multiplied with gets the gradient of the product times the decay.
    grad_c, grad_start = _through_decay(tree, torch.bmm(dy, before), tree.weighted_c, tree.from_start)
    grad_b, grad_end = _through_decay(tree, torch.bmm(tree.x, after), tree.weighted_b, tree.to_end)
    grad_start[:, :, -1] += grad_total
    grad_x = torch.bmm(tree.weighted_b, after.mT, out=take("grad_x", *tree.x.shape))

    # Diagonal blocks.
    grad_scores = torch.bmm(dy, tree.x.mT, out=take("grad_scores", *dy.shape[:2], tree.size))
    grad_scores = grad_scores.unflatten(0, tree.shape[:2])
    scores = tree.empty_scores()
    _outer_diagonal(tree, grad_scores.diagonal(dim1=2, dim2=3), grad_b, grad_c)
    for half, decay, weighted in tree.weighted_levels():
        left, right = halves(weighted, half)
        quadrants(scores, half).copy_(right @ left.mT)
        grad_level = take("grad_level", *weighted.shape)
        grad_left, grad_right = halves(grad_level, half)
        grad_quadrants = quadrants(grad_scores, half).contiguous()
        _multiply(grad_quadrants, left, grad_right)
        _multiply(grad_quadrants.mT, right, grad_left)
        weighted.mul_(grad_level)
        pass_down(grad_start, grad_end, weighted, half)
        grad_level.mul_(decay)
        for target, update in ((halves(grad_b, half)[0], grad_left), (halves(grad_c, half)[1], grad_right)):
            target += update
    grad_x.baddbmm_(scores.flatten(0, 1).mT, dy)

    for held, target in zip((grad_x.unflatten(0, tree.shape[:2]), grad_start, grad_b, grad_c), grads, strict=True):
        chunks.store(held, target)


def _through_decay(tree: Tree, grad: Tensor, weighted: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of both factors of weighted = decay * z, that of the decay for its logarithm."""
    grad_decay = (grad * weighted).view(tree.shape)
    return grad.view(tree.shape).mul_(decay), grad_decay


def _outer_diagonal(tree: Tree, grad: Tensor, grad_b: Tensor, grad_c: Tensor) -> None:
    """Add what S[l, l] = c_l . b_l sends back."""
    for grouped, into in ((tree.c, grad_b), (tree.b, grad_c)):
        groups = grouped.shape[1], -1
        into.unflatten(1, groups).addcmul_(grad.unflatten(1, groups).unsqueeze(-1), grouped.unsqueeze(2))


def _multiply(matrices: Tensor, rows: Tensor, out: Tensor) -> None:
    """out = matrices @ rows. Column by column where they are few: products of one or two cost ten times as much."""
    if matrices.shape[-1] > 2:
        out.copy_(matrices @ rows)
        return
    torch.mul(matrices[..., :1], rows[..., :1, :], out=out)
    for j in range(1, matrices.shape[-1]):
        out.addcmul_(matrices[..., j : j + 1], rows[..., j : j + 1, :])
