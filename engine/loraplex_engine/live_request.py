"""A request from its arrival to its end: the sequence, its text, and the account that closes it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from loraplex_engine.detokenizer import Detokenizer, TokenDecoder
from loraplex_engine.messages import ErrorCode, Finished, FinishReason, TokenEvent
from loraplex_engine.runner import SampledTokens
from loraplex_engine.sequence import Sequence


class Ending(NamedTuple):
    """Why a sequence ends."""

    reason: FinishReason
    stop_reason: str | int | None = None
    error: ErrorCode | None = None
    message: str | None = None
    retry_after_s: float | None = None


class Vocabulary(NamedTuple):
    """The tokens of a request: the base model's, or with those that its adapter adds."""

    size: int
    eos_token_ids: frozenset[int]
    decoder: TokenDecoder
    is_known: bool = True  # else the adapter could not be read when the request came


@dataclass(slots=True)
class LiveRequest:
    """One Generate on its way."""

    seq: Sequence
    vocabulary: Vocabulary
    is_internal: bool = False  # nobody asked for it, nobody hears of it
    is_accounted: bool = False  # whether its prompt has been counted
    detokenizer: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.detokenizer = Detokenizer(self.vocabulary.decoder, self.seq.sampling.stop)

    def append(self, sampled: SampledTokens, now: float) -> tuple[TokenEvent, Ending | None]:
        """Take sampled tokens up to the one that ends the sequence."""
        seq, text, ending, taken = self.seq, "", None, 0
        if seq.first_token_s is None:
            seq.first_token_s = now
        for token_id in sampled.token_ids:
            seq.output_ids.append(token_id)
            taken += 1
            new_text, ending = self._judge(token_id)
            text += new_text
            if ending is not None:
                break
        if ending is not None and not isinstance(ending.stop_reason, str):
            text += self.detokenizer.finish().text
        event = TokenEvent(
            seq.request_id, sampled.token_ids[:taken], text, sampled.logprobs[:taken]
        )
        return event, ending

    def finished(self, ending: Ending, now: float) -> Finished:
        seq = self.seq
        admitted_s = now if seq.admitted_s is None else seq.admitted_s
        was_computed = (
            self.is_accounted or ending.reason != "abort"
        )  # who left the queue owes nothing
        return Finished(
            request_id=seq.request_id,
            finish_reason=ending.reason,
            prompt_tokens=seq.num_prompt_tokens if was_computed else 0,
            cached_tokens=seq.num_cached if was_computed else 0,
            completion_tokens=len(seq.output_ids),
            recomputed_tokens=seq.num_recomputed,
            queue_s=admitted_s - seq.arrival_s,
            ttft_s=None if seq.first_token_s is None else seq.first_token_s - seq.arrival_s,
            total_s=now - seq.arrival_s,
            engine_s=seq.engine_s,
            tier=seq.tier,
            stop_reason=ending.stop_reason,
            error=ending.error,
            message=ending.message,
            retry_after_s=ending.retry_after_s,
        )

    def _judge(self, token_id: int) -> tuple[str, Ending | None]:
        """The text a new token adds, and whether it ends the sequence; a stop token has no text."""
        sampling, count = self.seq.sampling, len(self.seq.output_ids)
        may_stop = count > sampling.min_tokens
        if may_stop and not sampling.ignore_eos and token_id in self.seq.eos_token_ids:
            return "", Ending("stop")
        if may_stop and token_id in sampling.stop_token_ids:
            return "", Ending("stop", token_id)
        text, stop = self.detokenizer.push(token_id, may_stop=may_stop)
        if stop is not None:
            return text, Ending("stop", stop)
        return text, Ending("length") if count >= sampling.max_tokens else None
