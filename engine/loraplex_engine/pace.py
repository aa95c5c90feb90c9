"""Work in the background leaves most of the time to the steps, and takes it all while there are none."""

import time
from collections.abc import Callable

SHARE = 0.2  # of the time, while steps run
RECENT_S = 0.25  # a step began so short a time ago: they run
LONGEST_PAUSE_S = 0.5


class Pace:
    """One thread runs steps, one works in pieces and pauses after each."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._stepped_s = float("-inf")
        self._resumed_s = clock()

    def step(self) -> None:
        """A step begins."""
        self._stepped_s = self._clock()

    def pause(self) -> None:
        """A piece of work is done."""
        now = self._clock()
        if now - self._stepped_s < RECENT_S:
            worked_s = now - self._resumed_s
            self._sleep(min(worked_s * (1 / SHARE - 1), LONGEST_PAUSE_S))
        self._resumed_s = self._clock()
