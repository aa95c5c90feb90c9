"""Counts of one request's sequences: what its usage says, however it ends."""

from dataclasses import dataclass, field
from typing import Literal

from loraplex_engine.messages import Finished, Generate, TokenEvent
from loraplex_platform.usage.facts import Outcome


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as they are billed: a prompt counts once, whatever the number of its choices."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    recomputed_tokens: int


@dataclass(slots=True)
class SequenceTally:
    prompt_tokens: int
    is_first_of_prompt: bool
    completion_tokens: int = 0
    text: str = ""
    finished: Finished | None = None


@dataclass(slots=True)
class Tally:
    """Fed with every event; the engine's last word on a sequence overrides our own counts."""

    sequences: list[SequenceTally]
    first_token_s: float | None = None  # monotonic
    attempts: int = field(default=1)
    discarded_tokens: int = 0  # of attempts that were lost
    stopped_by: Literal["disconnect", "cancelled"] = "disconnect"  # what ended it before its time
    was_delivered: bool = False  # whether the client was given any of it, or went away
    keeps_text: bool = False  # for a tenant that has its answers stored

    @classmethod
    def of(cls, requests: list[Generate], num_choices: int, *, keeps_text: bool = False) -> "Tally":
        sequences = [SequenceTally(len(r.prompt_ids), r.index % num_choices == 0) for r in requests]
        return cls(sequences, keeps_text=keeps_text)

    def restart(self) -> None:
        """Forget what a lost engine made: the client has seen none of it."""
        self.attempts += 1
        self.first_token_s = None
        self.discarded_tokens += self.usage.completion_tokens
        for sequence in self.sequences:
            sequence.completion_tokens, sequence.text, sequence.finished = 0, "", None

    def add(self, index: int, event: TokenEvent | Finished, now_s: float) -> None:
        sequence = self.sequences[index]
        if isinstance(event, Finished):
            sequence.finished = event
        else:
            sequence.completion_tokens += len(event.token_ids)
            if self.keeps_text:
                sequence.text += event.text
            if self.first_token_s is None:
                self.first_token_s = now_s

    @property
    def outcome(self) -> Outcome:
        """Of a request that met no error: cut short by any of its sequences."""
        reasons = [s.finished.finish_reason if s.finished else "abort" for s in self.sequences]
        if "error" not in reasons and "abort" in reasons:
            return self.stopped_by
        return next((r for r in ("error", "length") if r in reasons), "stop")

    @property
    def usage(self) -> Usage:
        prompt = cached = completion = recomputed = 0
        for sequence in self.sequences:
            last = sequence.finished
            completion += last.completion_tokens if last else sequence.completion_tokens
            recomputed += last.recomputed_tokens if last else 0
            if not sequence.is_first_of_prompt:
                continue
            if last is not None:
                prompt, cached = prompt + last.prompt_tokens, cached + last.cached_tokens
            elif sequence.completion_tokens:  # its prompt was computed before its engine was lost
                prompt += sequence.prompt_tokens
        return Usage(prompt, cached, completion, recomputed)

    @property
    def queue_s(self) -> float | None:
        """The longest wait of any sequence."""
        return max((s.finished.queue_s for s in self.sequences if s.finished), default=None)

    @property
    def engine_s(self) -> float:
        return sum(s.finished.engine_s for s in self.sequences if s.finished)
