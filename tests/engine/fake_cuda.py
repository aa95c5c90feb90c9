"""torch.cuda as far as streams, events and graphs go: what is asked of it is written down, in order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch


class FakeCuda:
    """Streams are numbered as they are made; the one that steps run on is called so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.steps = FakeStream(self, "steps")
        self._current, self._num_streams = self.steps, 0
        for name, fake in {
            "is_available": lambda: True,
            "graph_pool_handle": lambda: "pool",
            "current_stream": lambda *_: self._current,
            "Stream": self._new_stream,
            "Event": FakeEvent.in_the(self),
            "stream": self.inside,
            "CUDAGraph": lambda: FakeGraph(self),
            "graph": self._recording,
        }.items():
            patch.setattr(torch.cuda, name, fake)

    @property
    def current(self) -> "FakeStream":
        return self._current

    def note(self, what: str) -> None:
        self.log.append(f"{self._current}: {what}")

    def _new_stream(self, device: object = None) -> "FakeStream":
        self._num_streams += 1
        return FakeStream(self, f"stream {self._num_streams}")

    @contextmanager
    def inside(self, stream: "FakeStream") -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    @contextmanager
    def _recording(self, graph: "FakeGraph", pool: str, capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"capture begins, {pool}, {capture_error_mode}")
        yield
        self.log.append("capture ends")


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self._name = cuda, name

    def __str__(self) -> str:
        return self._name

    def wait_stream(self, other: "FakeStream") -> None:
        self._cuda.log.append(f"{self} waits for {other}")

    def wait_event(self, event: "FakeEvent") -> None:
        self._cuda.log.append(f"{self} waits for {event}")

    def record_event(self) -> "FakeEvent":
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch gives it no types
        assert isinstance(event, FakeEvent)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._cuda.log.append(f"the caller waits for {self}")


class FakeEvent:
    """A class of its own for each FakeCuda, as torch.cuda.Event is one."""

    cuda: FakeCuda

    @staticmethod
    def in_the(cuda: FakeCuda) -> type["FakeEvent"]:
        return type("Event", (FakeEvent,), {"cuda": cuda})

    def __init__(self) -> None:
        self._place = "nothing"

    def __str__(self) -> str:
        return f"mark {self._place}"

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self.cuda.current
        self.cuda.log.append(f"{stream} is marked")
        self._place = f"in {stream}"


class FakeGraph:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def replay(self) -> None:
        self._cuda.note("replay")


class SpiedBlocks:
    """Blocks of which one is copied to another."""

    def __init__(self, name: str, note: Callable[[str], None]) -> None:
        self._name, self._note = name, note

    def __getitem__(self, block: int) -> "SpiedBlocks":
        return SpiedBlocks(f"{self._name}{block}", self._note)

    def copy_(self, source: "SpiedBlocks", *, non_blocking: bool) -> None:
        assert non_blocking
        self._note(f"{source._name} to {self._name}")
