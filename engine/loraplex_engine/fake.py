"""FakeEngine: the in-memory twin of an engine's client, for tests of everything above the engine."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from loraplex_adapters.report import ParityCheck
from loraplex_adapters.tiers import TierStats
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.fake_prefixes import BLOCK, FakePrefixes
from loraplex_engine.fake_sequence import FakeSequence, randomness
from loraplex_engine.messages import (
    PROTOCOL_VERSION,
    Abort,
    AdapterFailed,
    CheckAdapter,
    Command,
    DropPrefix,
    EngineStats,
    ErrorCode,
    Explanation,
    Finished,
    FinishReason,
    Generate,
    Hello,
    RegisterPrefix,
    SequencePhase,
    TokenCounters,
    TokenEvent,
    TokenLogprob,
)


class FakeEngine:
    """Answers with tokens that depend on prompt, adapter and seed alone, at `step_s` a token.

    Faults come on demand: `go_away` and `come_back`; `die_after = k` lets the engine die, once,
    after k more tokens.
    """

    def __init__(
        self,
        *,
        max_model_len: int = 2048,
        vocab: range = range(3, 259),
        text_of: Callable[[int], str] = lambda token_id: f" w{token_id}",
        step_s: float = 0.0,
    ) -> None:
        self._hello = Hello(
            protocol=PROTOCOL_VERSION,
            model_hash="fake",
            max_model_len=max_model_len,
            max_lora_rank=64,
            max_loras=8,
            num_blocks=4096,
            block_size=BLOCK,
            device="fake",
            dtype="float32",
        )
        self.step_s = step_s
        self.die_after: int | None = None
        self.spare = 1.0
        self.restart_s: float | None = None  # None: stays away until come_back
        self.unknown_adapters: set[str] = set()
        self.refuse_with: tuple[ErrorCode, float | None] | None = None  # and retry_after_s
        self.requests: list[Generate] = []
        self.commands: list[Command] = []
        self.num_generated = 0
        self._vocab = vocab
        self._text_of = text_of
        self._is_up = True
        self._life = 0
        self._running: dict[str, FakeSequence] = {}
        self._prefixes = FakePrefixes()
        self._checks: list[ParityCheck] = []
        self._failures: asyncio.Queue[AdapterFailed] = asyncio.Queue()
        self._stats_count = 0

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        self._is_up = False

    @property
    def hello(self) -> Hello | None:
        return self._hello if self._is_up else None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def stats(self) -> EngineStats | None:
        if not self._is_up:
            return None
        self._stats_count += 1
        sequences = tuple(sequence.stats for sequence in self._running.values())
        used = sum(-(-(s.prompt_tokens + s.completion_tokens) // BLOCK) for s in sequences)
        return EngineStats(
            engine_id=f"fake-{self._life}",
            sequence_number=self._stats_count,
            engine_clock_s=time.monotonic(),
            running=len(sequences),
            waiting=0,
            sequences=sequences,
            free_blocks=self._hello.num_blocks - used,
            num_blocks=self._hello.num_blocks,
            free_slots=self._hello.max_loras,
            num_slots=self._hello.max_loras,
            resident_adapters=(),
            step_s=self.step_s,
            steps=self.num_generated,
            tokens=TokenCounters(completion=self.num_generated),
            prefixes=self._prefixes.stats,
            adapter_tiers=tuple(TierStats(tier) for tier in ("device", "host", "disk")),
            adapter_checks=tuple(self._checks),
            spare=self.spare,
        )

    def go_away(self) -> None:
        """The process is gone: every sequence ends without a last word."""
        self._is_up = False
        self._life += 1
        self._prefixes.clear()
        self._checks.clear()

    def come_back(self) -> None:
        self._is_up = True

    def fail_adapter(self, adapter: str, reason: str) -> None:
        self.unknown_adapters.add(adapter)
        self._failures.put_nowait(AdapterFailed(adapter, reason))

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        if not self._is_up:
            raise EngineUnavailable
        self.requests.append(request)
        cached_tokens = self._prefixes.look_up(request)
        sequence = FakeSequence(request, self._life, time.monotonic(), cached_tokens)
        error = self._refusal(request)
        if error is not None:
            retry_after_s = self.refuse_with[1] if self.refuse_with else None
            yield sequence.finished("error", error=error, retry_after_s=retry_after_s)
            return
        assert request.request_id not in self._running, "a request id is used once"
        self._running[request.request_id] = sequence
        try:
            async for event in self._steps(sequence):
                yield event
        finally:
            del self._running[request.request_id]

    async def send(self, command: Command) -> None:
        if not self._is_up:
            raise EngineUnavailable
        self.commands.append(command)
        match command:
            case Abort(request_id) if request_id in self._running:
                self._running[request_id].is_aborted = True
            case CheckAdapter(adapter):
                self._checks.append(ParityCheck(adapter, True, error=0.0, effect=1.0))
            case RegisterPrefix():
                self._prefixes.register(command)
            case DropPrefix(prefix_id):
                self._prefixes.drop(prefix_id)

    async def explain(self, request_id: str) -> Explanation:
        running = self._running.get(request_id)
        phase: SequencePhase | None = None if running is None else "decode"
        tenant = None if running is None else running.request.tenant
        return Explanation(request_id, phase, None, ahead=0, expected_s=None, tenant=tenant)

    async def failures(self) -> AsyncIterator[AdapterFailed]:
        while True:
            yield await self._failures.get()

    async def _steps(self, sequence: FakeSequence) -> AsyncIterator[TokenEvent | Finished]:
        sampling = sequence.request.sampling
        draw = random.Random(randomness(sequence.request))
        reason: FinishReason = "length"
        stop: str | int | None = None
        while len(sequence.token_ids) < sampling.max_tokens and stop is None:
            await asyncio.sleep(self.step_s)
            self._live(sequence)
            if sequence.is_aborted:
                yield sequence.finished("abort")
                return
            token_id = draw.choice(self._vocab)
            sequence.token_ids.append(token_id)
            sequence.first_token_s = sequence.first_token_s or time.monotonic()
            self.num_generated += 1
            text, stop = sequence.take_text(self._text_of(token_id))
            if token_id in sampling.stop_token_ids:
                stop = token_id
            if len(sequence.token_ids) == sampling.max_tokens and stop is None:
                text += sequence.held_text
            yield TokenEvent(
                sequence.request.request_id, (token_id,), text, self._logprobs(sequence, token_id)
            )
        if stop is not None:
            reason = "stop"
        self._prefixes.remember(sequence.request)
        yield sequence.finished(reason, stop_reason=stop)

    def _live(self, sequence: FakeSequence) -> None:
        """Raises when the engine that ran this sequence is gone, or is told to die now."""
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                self.die_after = None
                self.go_away()
                if self.restart_s is not None:
                    asyncio.get_running_loop().call_later(self.restart_s, self.come_back)
        if sequence.life != self._life:
            raise EngineUnavailable

    def _refusal(self, request: Generate) -> ErrorCode | None:
        if self.refuse_with is not None:
            return self.refuse_with[0]
        if len(request.prompt_ids) + request.sampling.max_tokens > self._hello.max_model_len:
            return "context_too_long"
        return "unknown_adapter" if request.adapter in self.unknown_adapters else None

    def _logprobs(self, sequence: FakeSequence, token_id: int) -> tuple[TokenLogprob, ...]:
        count = sequence.request.sampling.logprobs
        if count is None:
            return ()
        top = tuple(((token_id + i) % self._vocab.stop, -0.5 - i) for i in range(count))
        return (TokenLogprob(token_id, -0.5, top),)
