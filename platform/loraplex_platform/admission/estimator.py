"""What a request will probably take, learned from those before it."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

GAIN = 1 / 8  # of the mean and of the deviation, as TCP's round-trip timer has them (RFC 6298)
DEVIATIONS = 2.0
MAX_KEYS = 10_000


@dataclass(slots=True)
class _Learned:
    mean: float
    deviation: float


class Estimator:
    """Mean plus two mean deviations of the recent values of each key; forgets the idlest keys."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._learned: OrderedDict[Hashable, _Learned] = OrderedDict()

    def estimate(self, key: Hashable) -> float | None:
        """None: nothing was observed yet."""
        learned = self._learned.get(key)
        return None if learned is None else learned.mean + DEVIATIONS * learned.deviation

    def observe(self, key: Hashable, value: float) -> None:
        learned = self._learned.pop(key, None)
        if learned is None:
            learned = _Learned(value, value / 2)
            if len(self._learned) >= self._max_keys:
                self._learned.popitem(last=False)
        else:
            error = value - learned.mean
            learned.deviation += GAIN * (abs(error) - learned.deviation)
            learned.mean += GAIN * error
        self._learned[key] = learned
