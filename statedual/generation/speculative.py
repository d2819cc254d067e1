"""Speculative decoding: a small model writes ahead, the large one checks several tokens in one pass.

A token d that the draft drew from q is accepted with probability min(1, p(d) / q(d)), p being the model's own
distribution; at the first that is not, the token comes from max(p - q, 0), normalised; if all are, one more comes from
p. The text is distributed exactly as without a draft, whatever the draft is. Greedy is the case where p and q stand on
one token each. (p and q are those after penalty, temperature and filters.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from statedual.generation.decode import choose, uniforms
from statedual.generation.logprobs import require_finite, token_logprobs
from statedual.generation.prefill import prefill_rows
from statedual.generation.request import Request, Row, Token
from statedual.generation.rollback import History
from statedual.generation.sampling import draw
from statedual.models import LanguageModel


@dataclass(frozen=True)
class _Written:
    """What one round has written in one row."""

    tokens: list[int]
    logprobs: list[float]
    model_back: int
    """How many tokens the model has read that are not in the text, and must forget."""
    draft_back: int
    """As many of the draft."""
    unread: list[int]
    """The end of the text that the draft has not read; the model has not read its last token."""


@dataclass(frozen=True)
class _Proposal:
    """What the draft has written ahead."""

    ids: Tensor
    """(rows, ahead)"""
    probabilities: Tensor
    """(rows, ahead, vocab), what each was drawn from."""
    seen: Tensor | None
    """(rows, ahead + 1, vocab), what the repetition penalty knows before each and behind the last."""


def speculate(model: LanguageModel, draft: LanguageModel, request: Request) -> Iterator[Token]:
    """As ``decode``: the tokens of all rows, as they come."""
    ahead = request.draft_tokens
    rows, seen = request.rows(), request.seen(model.embedding.weight.device)
    logits, state = prefill_rows(model, request.prompts, request.block, request.progress)
    _, draft_state = prefill_rows(draft, request.prompts, request.block)
    ours = History(model, state, ahead, rows=len(rows))
    theirs = History(draft, draft_state, ahead, rows=len(rows))
    first = choose(logits[:, : request.vocab_size], rows, seen, request.sampling)
    written = [
        _Written([token], [logprob], 0, 0, [token])
        for token, logprob in zip(
            first.tolist(), token_logprobs(logits[:, : request.vocab_size], first).tolist(), strict=True
        )
    ]
    while True:
        going = []
        for index, (row, new) in enumerate(zip(rows, written, strict=True)):
            reason = None
            for token, logprob in zip(new.tokens, new.logprobs, strict=True):
                taken = row.take(token, logprob)
                yield taken
                reason = taken.reason
                if reason is not None:
                    break
            if reason is None:
                going.append(index)
        if not going:
            return
        if seen is not None:
            for index in going:
                seen[index, written[index].tokens] = True
            seen = seen[going]
        if len(going) < len(rows):
            ours.select(going)
            theirs.select(going)
            rows, written = [rows[index] for index in going], [written[index] for index in going]
        ours.rollback([new.model_back for new in written])
        theirs.rollback([new.draft_back for new in written])
        unread = [new.unread for new in written]
        proposal = _propose(theirs, unread, rows, seen, request)
        written = _verify(ours, [tokens[-1] for tokens in unread], proposal, rows, request)


def _propose(
    draft: History, unread: Sequence[Sequence[int]], rows: Sequence[Row], seen: Tensor | None, request: Request
) -> _Proposal:
    """The draft writes ``draft_tokens`` tokens a row, of which it does not read the last."""
    ids: list[Tensor] = []
    probabilities: list[Tensor] = []
    known = [] if seen is None else [seen]
    for ahead in range(request.draft_tokens):
        logits = draft.step(ids[-1].tolist()) if ids else draft.extend(unread, last_only=True)
        logits = logits[:, : request.vocab_size]
        require_finite(logits, [row.index for row in rows], [row.position + ahead for row in rows], "the draft")
        probabilities.append(request.sampling.probabilities(logits, known[-1] if known else None))
        ids.append(draw(probabilities[-1], uniforms(rows, 1, logits.device)[:, 0]))
        if known:
            known.append(known[-1].scatter(1, ids[-1][:, None], True))
    return _Proposal(torch.stack(ids, 1), torch.stack(probabilities, 1), torch.stack(known, 1) if known else None)


def _verify(
    model: History, last: Sequence[int], proposal: _Proposal, rows: Sequence[Row], request: Request
) -> list[_Written]:
    """The model reads the last token of every row and all that was proposed, in one pass, and decides."""
    ahead = request.draft_tokens
    proposed = proposal.ids.tolist()
    read = model.extend([[token, *ids] for token, ids in zip(last, proposed, strict=True)])
    require_finite(
        read[:, : request.vocab_size],
        [row.index for row in rows for _ in range(ahead + 1)],
        [row.position + place for row in rows for place in range(ahead + 1)],
        "the model",
    )
    logits = read.unflatten(0, (len(rows), ahead + 1))
    p = request.sampling.probabilities(logits[..., : request.vocab_size], proposal.seen)
    q = functional.pad(proposal.probabilities, (0, 0, 0, 1))  # nothing was proposed for the place behind the last
    p_of, q_of = (each[:, :ahead].gather(-1, proposal.ids[..., None])[..., 0] for each in (p, q))
    numbers = uniforms(rows, ahead + 1, logits.device)
    accepted = (numbers[:, :ahead] * q_of < p_of).long().cumprod(1).sum(1)
    here = torch.arange(len(rows), device=logits.device)
    rest = (p[here, accepted] - q[here, accepted]).clamp(min=0)
    # p and q can be so near that rounding leaves nothing of the difference.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p[here, accepted])
    final = draw(rest, numbers[:, ahead])
    written = functional.pad(proposal.ids, (0, 1)).scatter(1, accepted[:, None], final[:, None])
    logprobs = token_logprobs(read[:, : request.vocab_size], written.flatten()).unflatten(0, written.shape)
    return [
        _Written(
            tokens=tokens[: count + 1],
            logprobs=values[: count + 1],
            model_back=ahead - count,
            draft_back=max(ahead - 1 - count, 0),
            unread=tokens[min(count, ahead - 1) : count + 1],
        )
        for tokens, values, count in zip(written.tolist(), logprobs.tolist(), accepted.tolist(), strict=True)
    ]
