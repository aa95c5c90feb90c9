"""The live requests: what each gets of a step, and the one place where they end."""

import logging
from collections.abc import Callable, Iterator

from loraplex_engine.live_request import Ending, LiveRequest
from loraplex_engine.messages import Event
from loraplex_engine.metrics import Meter
from loraplex_engine.prefixes import Prefixes
from loraplex_engine.promptness import EXPIRED, Deadlines
from loraplex_engine.runner import SampledTokens
from loraplex_engine.scheduling.policy import Policy, ScheduledTokens

log = logging.getLogger(__name__)

UNREAD = Ending("error", error="unknown_adapter", message="the adapter could not be read")


class Roster:
    """Requests from their acceptance to their Finished: each ends once, by whatever comes first."""

    def __init__(
        self, policy: Policy, prefixes: Prefixes, meter: Meter, clock: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._prefixes = prefixes
        self._meter = meter
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._deadlines = Deadlines()
        self.events: list[Event] = []  # in order; the loop takes them

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._live.values()))

    def get(self, request_id: str) -> LiveRequest | None:
        return self._live.get(request_id)

    def users_of(self, adapter: str) -> list[LiveRequest]:
        return [live for live in self._live.values() if live.seq.adapter == adapter]

    def add(self, live: LiveRequest, now: float, remaining_s: float | None = None) -> None:
        self._live[live.seq.request_id] = live
        self._policy.add(live.seq, now)
        if remaining_s is not None:
            self._deadlines.add(live.seq.request_id, now + remaining_s)

    def end(self, request_id: str, ending: Ending) -> None:
        """Close a request, wherever it is; an unknown id is ignored."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        now = self._clock()
        is_cut = live.is_internal or ending.reason not in ("stop", "length")
        self._policy.finish(live.seq, now, is_cut=is_cut)
        if live.is_internal:
            return
        self._meter.finish(live.seq, ending, now)
        self.events.append(live.finished(ending, now))

    def end_all(self, ending: Ending) -> None:
        for request_id in list(self._live):
            self.end(request_id, ending)

    def end_expired(self) -> None:
        for request_id in self._deadlines.take_due(self._clock()):
            self.end(request_id, EXPIRED)

    def advance(self, item: ScheduledTokens, sampled: SampledTokens, now: float) -> None:
        """A step has computed this much of a sequence."""
        seq = item.seq
        seq.num_pending -= item.samples
        if item.start > seq.num_computed:
            return  # the step before it went wrong
        seq.num_computed = item.start + item.num_tokens
        if seq.is_finished:
            self._meter.count(seq.tenant, "discarded", len(sampled.token_ids))
            return
        live = self._live[seq.request_id]
        if live.is_internal:
            if sampled.token_ids:
                self.end(seq.request_id, Ending("stop"))
            return
        if not live.vocabulary.is_known:
            self.end(seq.request_id, UNREAD)
            return
        if not live.is_accounted:
            live.is_accounted = True
            self._prefixes.note(seq)
            self._meter.count(seq.tenant, "prompt", seq.num_prompt_tokens)
            self._meter.count(seq.tenant, "cached", seq.num_cached)
        if sampled.token_ids:
            self._tell(live, sampled, now)

    def _tell(self, live: LiveRequest, sampled: SampledTokens, now: float) -> None:
        """New tokens go to the client, as text, and may be its last."""
        seq = live.seq
        try:
            event, ending = live.append(sampled, now)
        except Exception as fault:  # a fault with one request's text must not end the others
            log.exception("tokens of %s could not be taken", seq.request_id)
            self.end(seq.request_id, fault_of(fault))
            return
        self._meter.count(seq.tenant, "completion", len(event.token_ids))
        self.events.append(event)
        if ending is not None:
            self.end(seq.request_id, ending)


def fault_of(fault: Exception) -> Ending:
    return Ending("error", error="internal", message=type(fault).__name__)
