"""The chunks of one segment in work buffers: what the chunked form's forward and backward share."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.ssd.decays import fill_decays
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
    """One segment's chunks, head-major: axis 0 runs over (chunk, row), so that the states at borders are one slice.

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

    def fold(self, name: str, groups: int, width: int) -> tuple[Tensor, Tensor]:
        """A buffer in which the heads of a group lie side by side, so that each group takes one matrix product.

        Returned as these matrices (count groups, pos, share width) and by head (count, groups, share, pos, width).
        """
        held = self.buffers.take(name, self.count, groups, self.pos, self.heads // groups, width)
        return held.flatten(3).flatten(0, 1), held.transpose(2, 3)

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

    def states_at_borders(
        self, x: Tensor, b: Tensor, from_start: Tensor, to_end: Tensor, entry: Tensor
    ) -> tuple[Float[Tensor, "borders rows heads head_dim state"], Tensor]:
        """Right and center factors: the states at all borders, ``entry`` first; and to_end * x, folded."""
        s, p, n = self.segment, x.shape[-1], b.shape[-1]
        weighted, by_head = self.fold("weighted", self.gb, p)
        torch.mul(x.unflatten(1, (self.gb, -1)), to_end.unflatten(1, (self.gb, -1)).unsqueeze(-1), out=by_head)
        total = from_start[..., -1].reshape(s.chunks, s.rows, self.heads, 1, 1)
        borders = self.buffers.take("borders", s.chunks + 1, s.rows, self.heads, p, n)
        borders[0].copy_(entry)
        right = weighted.unflatten(0, (s.chunks, -1)).mT, b.flatten(0, 1).unflatten(0, (s.chunks, -1))
        for k in range(s.chunks):
            torch.mul(borders[k], total[k], out=borders[k + 1])
            borders[k + 1].view(s.rows * self.gb, -1, n).baddbmm_(right[0][k], right[1][k])
        return borders, weighted

    def from_the_past(self, c: Tensor, borders: Tensor) -> Float[Tensor, "count groups share pos head_dim"]:
        """Left factors, before their decay: h c_l for every position, h the state at the chunk's start."""
        past, by_head = self.fold("past", self.gc, borders.shape[-2])
        states = borders[:-1].view(self.count * self.gc, -1, borders.shape[-1])
        torch.bmm(c.flatten(0, 1), states.mT, out=past)
        return by_head
