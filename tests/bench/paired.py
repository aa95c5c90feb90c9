"""Things measured in turns: what disturbs a machine disturbs them alike, so their ratios can be told."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 4000
INTERVAL = (2.5, 97.5)  # percentiles


class Ratio(NamedTuple):
    """Of two medians, with what a bootstrap over the rounds says of it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} (95 % {self.low:.3f} to {self.high:.3f})"


def alternate(
    works: Mapping[str, Callable[[], float]], rounds: int, warm_ups: int = 1
) -> dict[str, list[float]]:
    """What each work returns, round by round; every other round goes backwards."""
    for _ in range(warm_ups):
        for work in works.values():
            work()
    seen: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            seen[name].append(works[name]())
    return seen


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The median of one over the other's; the rounds of both are drawn again together."""
    top, bottom = np.array(above), np.array(below)
    rounds = np.random.default_rng(0).integers(len(top), size=(RESAMPLES, len(top)))
    drawn = np.median(top[rounds], axis=1) / np.median(bottom[rounds], axis=1)
    low, high = np.percentile(drawn, INTERVAL)
    return Ratio(float(np.median(top) / np.median(bottom)), float(low), float(high))
