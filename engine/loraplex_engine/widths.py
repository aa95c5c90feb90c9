"""Sampling where some rows have logits of more tokens than others.

Each vocabulary is drawn by itself: a row has the bits that it has alone, whoever else is in the step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from loraplex_engine.model.extras import Logits
from loraplex_engine.sampler import Drawn, TokenSampler
from loraplex_engine.scheduling.policy import ScheduledTokens


class _Part(NamedTuple):
    rows: list[int]  # of the step
    drawn: Drawn


def sample_all(sampler: TokenSampler, logits: Logits, items: Sequence[ScheduledTokens]) -> Drawn:
    """As the sampler does it; items: those that sample, in the rows' order."""
    if not logits.added:
        return sampler.sample(logits.known, items)
    wide = [(own.rows.tolist(), own.logits) for own in logits.added]
    taken = {row for rows, _ in wide for row in rows}
    narrow = [row for row in range(len(items)) if row not in taken]
    groups = [(narrow, logits.known[narrow])] if narrow else []
    groups += [(rows, torch.cat([logits.known[rows], more], 1)) for rows, more in wide]
    parts = [
        _Part(rows, sampler.sample(part, [items[row] for row in rows])) for rows, part in groups
    ]
    return _joined(parts, len(items))


def _joined(parts: Sequence[_Part], num_rows: int) -> Drawn:
    token_ids = parts[0].drawn.token_ids.new_empty(num_rows)
    for rows, drawn in parts:
        token_ids[rows] = drawn.token_ids
    telling = [(part.rows, part.drawn) for part in parts if part.drawn.logprob_rows]
    if not telling:
        return Drawn(token_ids, [])
    return Drawn(
        token_ids,
        [rows[row] for rows, drawn in telling for row in drawn.logprob_rows],
        torch.cat([_known(drawn.logprobs) for _, drawn in telling]),
        _padded([_known(drawn.top_ids) for _, drawn in telling]),
        _padded([_known(drawn.top_logprobs) for _, drawn in telling]),
    )


def _known(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None, "there are rows that want it"
    return tensor


def _padded(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One below the other; what a row has too much, it does not want."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])
