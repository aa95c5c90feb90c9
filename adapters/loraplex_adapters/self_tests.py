"""Parity self-tests in the background, one at a time; their results are kept for a while."""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.loading import reason_of
from loraplex_adapters.report import ParityCheck

log = logging.getLogger(__name__)

KEPT = 16  # results


class Figures(NamedTuple):
    """What a test finds; see ParityCheck."""

    error: float
    effect: float
    passed: bool
    device_bytes: int


SelfTest = Callable[[AdapterWeights], Figures]


class SelfTests:
    """Owned by the thread that owns the cache."""

    def __init__(self, read: Callable[[str], AdapterWeights], test: SelfTest | None) -> None:
        self._read = read
        self._test = test
        self._worker = ThreadPoolExecutor(1, "adapter-self-test")
        self._running: dict[str, Future[ParityCheck]] = {}
        self._results: deque[ParityCheck] = deque(maxlen=KEPT)

    def start(self, version: str) -> None:
        """One that is on its way is not started again; without a test there is never a result."""
        if self._test is not None and version not in self._running:
            self._running[version] = self._worker.submit(self._check, version, self._test)

    @property
    def results(self) -> tuple[ParityCheck, ...]:
        """The latest ones, oldest first."""
        for version, future in list(self._running.items()):
            if future.done():
                del self._running[version]
                self._results.append(future.result())
        return tuple(self._results)

    def close(self) -> None:
        self._worker.shutdown(cancel_futures=True)

    def _check(self, version: str, test: SelfTest) -> ParityCheck:
        started_s = time.monotonic()
        try:
            weights = self._read(version)
            found = test(weights)
        except Exception as fault:  # the thread's boundary: a test must end in a result
            if not isinstance(fault, AdapterError | OSError):
                log.exception("the self-test of %s went wrong", version)
            return ParityCheck(version, False, reason=reason_of(fault))
        seconds = time.monotonic() - started_s
        if not found.passed:
            log.error("%s has an error of %.2g against a dense merge", version, found.error)
        return ParityCheck(
            version,
            found.passed,
            found.error,
            found.effect,
            weights.num_bytes,
            found.device_bytes,
            seconds,
        )
