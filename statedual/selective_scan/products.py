"""The chunked form on matrix products, for heads that are wide enough to fill them (gated linear attention).

As in ``ssd``, with a decay for each channel n of the state, which therefore stays inside the products over n:

    right factors    z_k     = sum_s x_s outer (to_end[s] * b_s)             the state that chunk k alone leaves
    center factors   h_{k+1} = total_k * h_k + z_k                           the states at the borders
    left factors     y[l]    = h_k (from_start[l] * c_l)                     what the past contributes
    diagonal blocks  y[l]   += sum_{s<=l} S[l, s] x_s                        what the chunk itself contributes
                     S[l, s] = sum_n c_l[n] exp(log_a[s+1] + ... + log_a[l])[n] b_s[n]

S is filled by the tree of ``halving``, a level at a time. A chunk that is no power of two is padded with zeros: an
input of 0 that decays by 1 changes nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from statedual.selective_scan.halving import fill_border_decays, halves, quadrants
from statedual.ssd.chunk import Chunks, forwards
from statedual.ssd.decays import total_decay
from statedual.ssd.passes import Inputs


def elements(x: Tensor, log_a: Tensor, b: Tensor, chunk: int) -> int:
    """Numbers in the work buffers of one chunk: the levels of the tree, rows of b's and x's width, scores, states."""
    del b
    head_dim, (heads, state), size = x.shape[3], log_a.shape[2:], 1 << (chunk - 1).bit_length()
    levels = size.bit_length() - 1
    return heads * (size * ((levels + 6) * state + 4 * head_dim + size) + 2 * head_dim * state)


class Tree:
    """The chunks of one segment in work buffers, padded to ``size``: inputs, and decays."""

    def __init__(self, chunks: Chunks, inputs: Inputs) -> None:
        x, log_a, b, c = inputs
        self.chunks, self.size = chunks, 1 << (chunks.pos - 1).bit_length()
        self.x = self.load("x", x, chunks.heads).flatten(0, 1)
        self.b, self.c = self.load("b", b, chunks.gb), self.load("c", c, chunks.gc)
        self.shape = chunks.count, chunks.heads, self.size, b.shape[3]
        take = chunks.buffers.take
        self.levels = take("levels", self.size.bit_length() - 1, *self.shape)
        self.from_start, self.to_end = take("from_start", *self.shape), take("to_end", *self.shape)
        logs = self.load("log_a", log_a, chunks.heads)
        fill_border_decays(logs, self.levels, self.from_start, self.to_end)
        self.weighted_b = self.by_head(self.b, self.to_end, "weighted_b").flatten(0, 1)
        self.weighted_c = self.by_head(self.c, self.from_start, "weighted_c").flatten(0, 1)
        # Not the last of from_start: what a product of decays is off by must not add up from chunk to chunk.
        by_chunk = logs.sum(2).view(chunks.segment.chunks, -1, chunks.heads, 1, b.shape[3])
        self.total = total_decay(by_chunk, chunks.segment.chunks_in_all)

    def load(self, name: str, tensor: Tensor, groups: int) -> Tensor:
        """``Chunks.load``, padded with zeros."""
        held = self.chunks.load(name, tensor, groups, self.size)
        if self.size > self.chunks.pos:
            held[:, :, self.chunks.pos :] = 0
        return held

    def by_head(self, grouped: Tensor, decay: Tensor, name: str) -> Tensor:
        """``decay`` of every head times ``grouped`` of its group."""
        out = self.chunks.buffers.take(name, *decay.shape)
        groups = grouped.shape[1], -1
        torch.mul(decay.unflatten(1, groups), grouped.unsqueeze(2), out=out.unflatten(1, groups))
        return out

    def pass_one(self, k: int, rows: Tensor, weighted: Tensor, before: Tensor, after: Tensor) -> None:
        """after = total * before + the sum over chunk k of ``rows`` (x or dy) outer ``weighted`` (b or c)."""
        x, b = (t.unflatten(0, (self.chunks.segment.chunks, -1))[k] for t in (rows, weighted))
        torch.mul(before, self.total.keep[k], out=after)
        if self.total.in_two:
            after.addcmul_(before, self.total.change[k])
        after.flatten(0, 1).baddbmm_(x.mT, b)

    def weighted_levels(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the top of the tree down: half, decays, and b (left of the borders) or c (right of them) times these."""
        for k in reversed(range(len(self.levels))):
            half, decay = 1 << k, self.levels[k]
            weighted = self.chunks.buffers.take("weighted", *self.shape)
            for side, grouped in enumerate((self.b, self.c)):
                groups = grouped.shape[1], -1
                target, factor = (halves(t.unflatten(1, groups), half)[side] for t in (weighted, decay))
                torch.mul(factor, halves(grouped.unsqueeze(2), half)[side], out=target)
            yield half, decay, weighted

    def diagonal(self) -> Tensor:
        """c_l . b_l for all heads: (count, heads, size)."""
        pair_b, pair_c = self.chunks.pairs(self.b, self.c)
        dots = torch.einsum("kgisn,kgjsn->kgijs", pair_b, pair_c).flatten(1, 3)
        return dots.unsqueeze(2).expand(-1, -1, self.shape[1] // dots.shape[1], -1).flatten(1, 2)

    def empty_scores(self) -> Tensor:
        """S with its diagonal only."""
        scores = self.chunks.buffers.take("scores", *self.shape[:3], self.size).zero_()
        scores.diagonal(dim1=2, dim2=3).copy_(self.diagonal())
        return scores


def segment_forward(chunks: Chunks, inputs: Inputs, state: Tensor, entering: Tensor, y: Tensor) -> None:
    """Write the segment of ``y`` and the states that enter its chunks; move ``state`` to its end."""
    tree = Tree(chunks, inputs)
    for k, before, after in forwards(state, entering):
        tree.pass_one(k, tree.x, tree.weighted_b, before, after)
    scores = tree.empty_scores()
    for half, _, weighted in tree.weighted_levels():
        left, right = halves(weighted, half)
        quadrants(scores, half).copy_(right @ left.mT)
    inside = torch.bmm(tree.weighted_c, entering.flatten(0, 2).mT, out=chunks.buffers.take("inside", *tree.x.shape))
    inside.baddbmm_(scores.flatten(0, 1), tree.x)
    chunks.store(inside.unflatten(0, tree.shape[:2]), y)
