"""A core with the shape of the real one: counts down each request's tokens, one a step."""

import itertools
import signal
import sys
import time

from loraplex_engine import wire
from loraplex_engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    AdapterFailed,
    Command,
    Drain,
    EngineStats,
    Event,
    Explain,
    Explanation,
    Finished,
    FinishReason,
    Generate,
    Hello,
    PreloadAdapter,
    SequenceStats,
    TokenCounters,
    TokenEvent,
)
from loraplex_engine.server import EngineServer

HELLO = Hello(
    protocol=PROTOCOL_VERSION,
    model_hash="m",
    max_model_len=100,
    max_lora_rank=8,
    max_loras=2,
    num_blocks=10,
    block_size=16,
    device="cpu",
    dtype="float32",
)


class CountdownCore:
    """A request's tokens are 0, 1, 2, … until max_tokens; a step takes `step_s`."""

    def __init__(self, step_s: float = 0.002) -> None:
        self.hello = HELLO
        self.step_s = step_s
        self.is_draining = False
        self.num_steps = 0
        self._live: dict[str, tuple[Generate, int]] = {}
        self._events: list[Event] = []
        self._numbers = itertools.count()

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._events)

    @property
    def is_stalled(self) -> bool:
        return not self._live

    @property
    def is_drained(self) -> bool:
        return self.is_draining and not self.has_work

    def submit(self, command: Command) -> None:
        match command:
            case Generate(request_id):
                self._live[request_id] = (command, 0)
                if self.is_draining:
                    self._finish(request_id, "error")
            case Abort(request_id) if request_id in self._live:
                self._finish(request_id, "abort")
            case Explain(request_id):
                self._events.append(Explanation(request_id, "decode", None, 0, None))
            case PreloadAdapter(adapter):
                self._events.append(AdapterFailed(adapter, "not found"))
            case Drain():
                self.is_draining = True
            case _:
                pass

    def step(self) -> list[Event]:
        self.num_steps += 1
        if self._live:
            time.sleep(self.step_s)
        for request_id, (request, count) in list(self._live.items()):
            self._events.append(TokenEvent(request_id, (count,), f"{count} "))
            self._live[request_id] = (request, count + 1)
            if count + 1 == request.sampling.max_tokens:
                self._finish(request_id, "length")
        events, self._events = self._events, []
        return events

    def stats(self) -> EngineStats:
        return EngineStats(
            engine_id="countdown",
            sequence_number=next(self._numbers),
            engine_clock_s=time.monotonic(),
            running=len(self._live),
            waiting=0,
            sequences=tuple(
                SequenceStats(
                    r, g.tenant, g.tier, g.adapter, "decode", None, len(g.prompt_ids), n, 0.0
                )
                for r, (g, n) in self._live.items()
            ),
            free_blocks=10,
            num_blocks=10,
            free_slots=2,
            num_slots=2,
            resident_adapters=(),
            step_s=self.step_s,
            steps=self.num_steps,
            tokens=TokenCounters(),
            spare=1.0,
            draining=self.is_draining,
        )

    def _finish(self, request_id: str, reason: FinishReason) -> None:
        request, count = self._live.pop(request_id)
        self._events.append(
            Finished(
                request_id, reason, len(request.prompt_ids), 0, count, 0, 0.0, None, 0.0, 0.0, "standard"
            )
        )  # fmt: skip


if __name__ == "__main__":
    wire.VANISHED_S = 3600.0  # a client on a busy machine is silent for a while
    server = EngineServer(CountdownCore(step_s=float(sys.argv[2])), sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: server.drain(5.0))
    server.run()
