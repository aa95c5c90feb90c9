"""Which decoding sequences of a step begin with the same blocks: found with NumPy, once a step.

A prefix cache hands the blocks of a common beginning to many. Who has them walks their keys together, so
that they are read and prepared once for a company and not once for each of its members (Hydragen,
Juravsky et al. 2024; ChunkAttention, Ye et al. 2024).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

STEP = 32  # keys that are met together
MAX_MEMBERS = 8  # more of them are several companies, for several threads


@dataclass(frozen=True, eq=False)
class Companies:
    """All decoding sequences, each in one company, the longest walks first."""

    members: Int32Array  # [num_decodes] sequences, company by company
    starts: Int32Array  # [num_companies + 1] into members
    shared: Int32Array  # [num_companies] tokens at the beginning, in steps of 32; alone: 0

    @cached_property
    def addresses(self) -> tuple[int, int, int, int]:
        """Where the three arrays lie, and how many companies; valid as long as this object lives."""
        members, starts, shared = (a.ctypes.data for a in (self.members, self.starts, self.shared))
        return members, starts, shared, len(self.shared)

    @property
    def spared(self) -> int:
        """Keys that no member walks because another does, tokens of the step."""
        return int(self.shared @ (np.diff(self.starts) - 1))


class _Run(NamedTuple):
    """Neighbours [first, last] in the order of their tables, and the tokens they share."""

    first: int
    last: int
    shared: int


def build_companies(
    block_tables: Int32Array,
    query_start: Int32Array,
    context_lengths: Int32Array,
    block_size: int,
) -> Companies | None:
    """The companies of a step, which walk the fewest keys; None if nobody shares any.

    Tables as paged_attention takes them. Only who was handed the same block has its number, and blocks
    are handed out within one tenant and adapter version: nobody walks with a stranger.
    """
    decodes = np.flatnonzero(np.diff(query_start) == 1).astype(np.int32)
    if len(decodes) < 2:
        return None
    tables = np.ascontiguousarray(block_tables[decodes])
    # As bytes: any order will do in which equal beginnings are neighbours
    order = tables.view(f"V{tables.itemsize * tables.shape[1]}").ravel().argsort()
    decodes, tables = decodes[order], tables[order]
    walks = context_lengths[decodes]
    differ = np.ones((len(tables) - 1, tables.shape[1] + 1), np.bool_)
    np.not_equal(tables[1:], tables[:-1], out=differ[:, :-1])
    # Its own token nobody shares, nor what a table holds beyond it
    known = np.minimum(walks[1:], walks[:-1]) - 1
    common = np.minimum(differ.argmax(axis=1) * block_size, known) // STEP * STEP
    if not common.any():
        return None
    ends = np.concatenate(([0], np.cumsum(walks))).tolist()
    runs = [part for run in _runs(common.tolist(), 0, len(walks) - 1) for part in _parts(run)]
    runs.sort(
        key=lambda run: ends[run.first] - ends[run.last + 1] + (run.last - run.first) * run.shared
    )
    return Companies(
        members=np.concatenate([decodes[run.first : run.last + 1] for run in runs]),
        starts=np.cumsum([0, *(run.last + 1 - run.first for run in runs)], dtype=np.int32),
        shared=np.array([run.shared for run in runs], np.int32),
    )


def _runs(common: list[int], first: int, last: int) -> list[_Run]:
    """The runs of [first, last] that spare the most keys, by the tokens common to neighbours."""
    if first == last:
        return [_Run(first, last, 0)]
    between = common[first:last]
    shared = min(between)
    whole = _Run(first, last, shared)
    if shared == max(between):
        return [whole] if shared else [_Run(i, i, 0) for i in range(first, last + 1)]
    border = first + between.index(shared)
    parts = [*_runs(common, first, border), *_runs(common, border + 1, last)]
    spared = sum((run.last - run.first) * run.shared for run in parts)
    return [whole] if (last - first) * shared > spared else parts


def _parts(run: _Run) -> list[_Run]:
    """A run in equal parts of at most MAX_MEMBERS."""
    members = run.last + 1 - run.first
    count = -(-members // MAX_MEMBERS)
    borders = [run.first + members * i // count for i in range(count + 1)]
    return [_Run(a, b - 1, run.shared) for a, b in pairwise(borders)]
