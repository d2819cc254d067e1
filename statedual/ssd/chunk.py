"""The chunks of one segment in work buffers: what the chunked form's forward and backward share."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.ssd.decays import Total, fill_decays, total_decay
from statedual.ssd.matmul import matmul
from statedual.ssd.segments import Segment

# A block of rows of the masked matrix skips all columns to its right. Shorter blocks skip more and cost more calls.
_ROW_BLOCK = 64


class Buffers:
    """Named work buffers, allocated once a call and handed out as views of the wanted shape.

    Fresh memory costs more than arithmetic (every page has to be faulted in), so nothing inside the walk allocates
    what it can reuse. A buffer is written before it is read, whatever it held.
    """

    def __init__(self, like: Tensor) -> None:
        self._flat: dict[str, Tensor] = {}
        self._like = like
        self.dtype = like.dtype

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised contiguous tensor of this shape."""
        size = math.prod(shape)
        if name not in self._flat or self._flat[name].numel() < size:
            self._flat[name] = self._like.new_empty(size)
        return self._flat[name][:size].view(shape)

    def unit_triangles(self, count: int, heads: int, size: int) -> Tensor:
        """Matrices (count, heads, size, size) that are 0 above the diagonal and 1 on it, and stay so: all who write to
        them write below. Made once for each size."""
        name, number = f"triangles of {size}", count * heads
        if name not in self._flat or self._flat[name].numel() < number * size * size:
            eye = torch.eye(size, dtype=self.dtype, device=self._like.device)
            self._flat[name] = eye.expand(number, size, size).flatten()
        return self.take(name, count, heads, size, size)


class Chunks:
    """One segment's chunks, head-major: axis 0 runs over (chunk, row), so that the states that enter are one slice.

    ``x`` is held for all heads; ``b`` and ``c`` for their groups, or for the common refinement where neither number of
    groups divides the other. So a broadcast exists for one segment at most, never along time.
    """

    def __init__(self, buffers: Buffers, segment: Segment, heads: int, groups_b: int, groups_c: int) -> None:
        self.buffers, self.segment, self.heads = buffers, segment, heads
        nested = math.lcm(groups_b, groups_c) == max(groups_b, groups_c)
        self.gb, self.gc = (groups_b, groups_c) if nested else (math.lcm(groups_b, groups_c),) * 2
        self.count, self.pos = segment.chunks * segment.rows, segment.pos

    def of(self, tensor: Tensor) -> Tensor:
        """The segment of a (batch, time, heads, width) tensor as a (chunk, row, heads, pos, width) view."""
        s = self.segment
        part: Tensor = tensor[s.row0 : s.row1, s.t0 : s.t1].unflatten(1, (s.chunks, s.pos))
        return part.permute(1, 0, 3, 2, 4)

    def entering(self, kept: Tensor, start: int) -> Float[Tensor, "chunks rows heads head_dim state"]:
        """The segment's part of ``kept``, which begins at ``start``: the state that enters each chunk."""
        part: Tensor = kept[start : start + self.count].unflatten(0, (self.segment.chunks, self.segment.rows))
        return part

    def load(
        self, name: str, tensor: Tensor, groups: int, size: int | None = None
    ) -> Float[Tensor, "count groups size width"]:
        """A copy in compute precision, for ``groups`` heads where ``tensor`` may have fewer.

        With room for ``size`` positions, of which the first ``pos`` are written.
        """
        part, size = self.of(tensor), size or self.pos
        given, width = part.shape[2], part.shape[4]
        held = self.buffers.take(name, *part.shape[:2], given, groups // given, size, width)
        held[..., : self.pos, :] = part.unsqueeze(3)
        return held.view(self.count, groups, size, width)

    def store(self, held: Float[Tensor, "count groups size width"], target: Tensor) -> None:
        """The adjoint of ``load``: summed over what was broadcast, into the segment of ``target``."""
        part = self.of(target)
        split = held[..., : self.pos, :].unflatten(1, (part.shape[2], -1)).unflatten(0, part.shape[:2])
        part.copy_(split.sum(3) if split.shape[3] > 1 else split.squeeze(3))

    def fold(self, name: str, width: int) -> Float[Tensor, "count pos heads width"]:
        """A buffer in which the heads lie side by side, so that those of a group are one matrix."""
        return self.buffers.take(name, self.count, self.pos, self.heads, width)

    def decays(self, log_a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L (count, heads, pos, pos), and the decays from the start and to the end (count, heads, pos)."""
        q, size = self.pos, 1 << (self.pos - 1).bit_length()
        part = self.of(log_a.unsqueeze(-1)).squeeze(-1).to(self.buffers.dtype)
        padded = pad(part, (0, size - q)).reshape(self.count, self.heads, size)
        matrix = self.buffers.unit_triangles(self.count, self.heads, size)
        from_start, to_end = fill_decays(padded, matrix)
        return matrix[..., :q, :q], from_start[..., :q], to_end[..., :q]

    def pairs(self, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """b (count, lead, i, pos, state) and c (count, lead, j, pos, state): i or j is 1, each (i, j) is one Gram."""
        lead = min(self.gb, self.gc)
        return b.unflatten(1, (lead, -1)), c.unflatten(1, (lead, -1))

    def gram(self, b: Tensor, c: Tensor) -> Float[Tensor, "count grams pos pos"]:
        """G = C B^T, once for each distinct pair of groups."""
        return torch.einsum("kgisn,kgjln->kgijls", *self.pairs(b, c)).flatten(1, 3)

    def masked(self, decay: Tensor, gram: Tensor, rows: slice) -> Float[Tensor, "count_heads rows columns"]:
        """M = L * G for a block of rows and all columns up to its last row."""
        shape = (self.count, gram.shape[1], self.heads // gram.shape[1], rows.stop - rows.start, rows.stop)
        block = self.buffers.take("masked", *shape)
        by_gram = decay.unflatten(1, (gram.shape[1], -1))
        torch.mul(by_gram[..., rows, : rows.stop], gram[:, :, None, rows, : rows.stop], out=block)
        return block.flatten(0, 2)

    def row_blocks(self) -> Iterator[slice]:
        """The rows of a chunk, block by block."""
        for start in range(0, self.pos, _ROW_BLOCK):
            yield slice(start, min(start + _ROW_BLOCK, self.pos))

    def weigh(self, x: Tensor, decay: Tensor, name: str) -> Float[Tensor, "count pos heads head_dim"]:
        """decay * x, folded."""
        weighted = self.fold(name, x.shape[-1])
        torch.mul(x, decay.unsqueeze(-1), out=weighted.transpose(1, 2))
        return weighted

    def pass_states(self, b: Tensor, weighted: Tensor, total: Total, state: Tensor, entering: Tensor) -> None:
        """Right and center factors: write the state that enters each chunk, and leave in ``state`` the one at the end.

        z_k = sum_s weighted[s] outer b_s,  h_{k+1} = total_k h_k + z_k. Both are held with ``state`` first.
        """
        for k, before, after in forwards(state, entering):
            self.pass_one(k, b, weighted, total, before, after)

    def pass_one(self, k: int, grouped: Tensor, folded: Tensor, total: Total, before: Tensor, after: Tensor) -> None:
        """after = total * before + sum over chunk k of ``grouped`` (b or c) outer ``folded``, group by group."""
        rows, groups = slice(k * self.segment.rows, (k + 1) * self.segment.rows), grouped.shape[1]
        z = matmul(grouped[rows].mT, matrices(folded[rows], groups)).unflatten(3, (-1, folded.shape[3]))
        before, after, keep, change = (by_group(t, groups) for t in (before, after, total.keep[k], total.change[k]))
        if total.in_two:
            z.addcmul_(change, before)
        torch.addcmul(z, keep, before, out=after)

    def total(self, log_a: Tensor) -> Total:
        """The decay over each whole chunk, (chunks, rows, 1, heads, 1), as states are held."""
        log_total = self.of(log_a.unsqueeze(-1)).sum(-2, dtype=self.buffers.dtype)
        return total_decay(log_total.unsqueeze(2), self.segment.chunks_in_all)

    def from_the_past(self, c: Tensor, entering: Tensor) -> Float[Tensor, "count pos heads head_dim"]:
        """Left factors, before their decay: h c_l for every position, h the state at the chunk's start."""
        past = self.fold("past", entering.shape[-1])
        matmul(c, matrices(entering.flatten(0, 1), self.gc), out=matrices(past, self.gc))
        return past


def forwards(state: Tensor, entering: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each chunk with the memory of the state before and after it: the first is ``state``, in which the last ends."""
    entering[0].copy_(state)
    for k in range(len(entering)):
        yield k, entering[k], entering[k + 1] if k + 1 < len(entering) else state


def backwards(grad_state: Tensor, leaving: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Its adjoint, from the last chunk to the first: the gradients of the state after a chunk and of that before it."""
    leaving[-1].copy_(grad_state)
    for k in reversed(range(len(leaving))):
        yield k, leaving[k], leaving[k - 1] if k > 0 else grad_state


def by_group(held: Float[Tensor, "count rows heads width"], groups: int) -> Tensor:
    """A view (count, groups, rows, share, width): the heads of a group together."""
    split: Tensor = held.unflatten(2, (groups, -1))
    return split.transpose(1, 2)


def matrices(held: Float[Tensor, "count rows heads width"], groups: int) -> Tensor:
    """A view (count, groups, rows, columns): one matrix for each group, its heads side by side."""
    return by_group(held, groups).flatten(3)
