"""Adapter slots: who may use which, what to load next, and which adapter is drained for whom.

A request whose adapter holds no slot may be passed by others for a while only. Then a victim is
drained: nobody new may use it, and the slot it leaves is kept for the request that waited. Streams
that are far ahead of their deadlines do not hold it up: they pause, with their KV where it is, and
take a slot again in time. So slots are shared in time, and not only as requests end.
"""

import math

from loraplex_engine.messages import WaitReason
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Request, is_busy
from loraplex_engine.scheduling.policy import AdapterSlots, StepPlan


class Residency:
    """A policy's view of AdapterSlots: users per adapter, loads asked for, drains, pauses."""

    def __init__(self, slots: AdapterSlots, config: SchedulerConfig) -> None:
        self._slots = slots
        self._config = config
        self._users: dict[str, dict[Request, None]] = {}
        self._loading: dict[str, Request] = {}  # for whom each load was asked
        self._drained_for: dict[str, Request] = {}
        self.paused: dict[Request, float] = {}  # streams that lend their slot, and since when
        self.overdue: list[Request] = []  # of them, those due while all slots are in use
        self.num_drains = self.num_lends = 0  # adapters let run out, or paused, for somebody

    def begin_step(self, plan: StepPlan, now: float) -> None:
        """Pin what has been loaded to the request that asked; serve those a drain was made for."""
        for adapter, request in list(self._loading.items()):
            state = self._slots.state(adapter)
            if state != "loading":
                del self._loading[adapter]
                if state == "resident" and not request.seq.is_finished:
                    self.acquire(request, now)
        for victim, request in list(self._drained_for.items()):
            is_there = self._slots.state(adapter_of(request)) == "resident"
            if request.seq.is_finished or request.has_slot or is_there:
                del self._drained_for[victim]
        self._pause(now)
        self._resume(plan, now)
        for request in dict.fromkeys(self._drained_for.values()):
            if self._is_coming(request):
                continue  # until it is there, nobody may take the room back
            if self._slots.can_load(adapter_of(request)):
                self._load(request, plan)
            elif not any(victim in self._users for victim in self._victims(request)):
                # All are gone and it is not enough: others may load, and it looks for room anew.
                for victim in self._victims(request):
                    del self._drained_for[victim]

    def why_not(self, request: Request, plan: StepPlan) -> WaitReason | None:
        """Why the request cannot use its adapter now; asks for the load if a slot can be had."""
        adapter = request.seq.adapter
        if adapter is None or request.has_slot:
            return None
        state = self._slots.state(adapter)
        if state == "resident":
            return "slot" if adapter in self._drained_for else None
        if state == "loading" or adapter in self._loading:
            return "loading"
        # One load a step, and none while a slot is being emptied for somebody.
        if not self._drained_for and not plan.loads and self._slots.can_load(adapter):
            self._load(request, plan)
            return "loading"
        return "slot"

    def is_resident(self, request: Request) -> bool:
        adapter = request.seq.adapter
        return adapter is None or request.has_slot or self._slots.state(adapter) == "resident"

    def acquire(self, request: Request, now: float) -> None:
        """Count among the users of a resident adapter. Idempotent."""
        adapter = request.seq.adapter
        self.paused.pop(request, None)
        if adapter is not None and not request.has_slot:
            self._slots.acquire(adapter)
            request.has_slot, request.slot_since_s = True, now
            self._users.setdefault(adapter, {})[request] = None

    def release(self, request: Request) -> None:
        """The counterpart of acquire. Idempotent."""
        self.paused.pop(request, None)
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        adapter = request.seq.adapter
        if adapter is not None and request.has_slot:
            self._slots.release(adapter)
            request.has_slot = False
            del self._users[adapter][request]
            if not self._users[adapter]:
                del self._users[adapter]

    def drain_for(self, request: Request) -> None:
        """Let those run out that are in its way, and keep their room for the request."""
        if self._may_not_drain_for(request):
            return
        victims = self._slots.blockers(adapter_of(request), self._remaining)
        if victims is not None and not self._drained_for.keys() & set(victims):
            self.num_drains += len(victims)
            self._drained_for.update(dict.fromkeys(victims, request))

    def lend_to(self, request: Request, now: float) -> None:
        """Have streams with time to spare pause for the request."""
        if self._may_not_drain_for(request):
            return
        victims = self._slots.blockers(
            adapter_of(request), lambda victim: -self._slack_s(victim, now)
        )
        if victims and all(self._slack_s(v, now) >= self._config.lend_slack_s for v in victims):
            self.num_lends += len(victims)
            self._drained_for.update(dict.fromkeys(victims, request))

    def fill_idle_slots(self, plan: StepPlan) -> None:
        """Room that nobody needs goes to paused streams, the most urgent first."""
        for request in sorted(self.paused, key=_due):
            if plan.loads:
                return
            self.why_not(request, plan)

    def _pause(self, now: float) -> None:
        """Streams of a drained adapter let go of it, once no step in flight computes them."""
        for victim, request in self._drained_for.items():
            for user in list(self._users.get(victim, ())):
                if request in self.paused and not user.is_admitted:
                    # It only waits, and what it waits for may be the other's end.
                    self._let_go(user)
                elif self._user_slack_s(user, now) >= self._config.lend_slack_s:
                    self.paused.setdefault(user, now)
                if user in self.paused and not is_busy(user):
                    self._let_go(user)

    def _resume(self, plan: StepPlan, now: float) -> None:
        """Give paused streams a slot again: if theirs is there, or when their time comes."""
        config = self._config
        self.overdue.clear()
        for request in sorted(self.paused, key=_due):
            adapter = adapter_of(request)
            if self._slots.state(adapter) == "resident":
                if adapter not in self._drained_for:
                    self.acquire(request, now)
                continue
            is_due = request.due_s - now < config.lend_slack_s / 2
            has_waited = now - self.paused[request] > config.max_pause_s
            if (is_due or has_waited) and self.why_not(request, plan) == "slot":
                self.lend_to(request, now)
                if is_due:
                    self.drain_for(request)
                    if not self._slots.can_load(adapter):
                        self.overdue.append(request)

    def _slack_s(self, adapter: str, now: float) -> float:
        """How long all users of an adapter could pause; one drained already is not asked twice."""
        if adapter in self._drained_for:
            return -math.inf
        users = self._users.get(adapter, ())
        return min((self._user_slack_s(user, now) for user in users), default=0.0)

    def _user_slack_s(self, request: Request, now: float) -> float:
        """How long one could pause; a prompt, or who has only just got its slot, not at all."""
        is_settled = now - request.slot_since_s >= self._config.lend_slack_s
        return request.due_s - now if is_settled and request.seq.phase == "decode" else -math.inf

    def held_by_batch(self) -> list[Request]:
        """The users of a slot that only batch work holds: live work may take it at once."""
        for users in self._users.values():
            if not any(user.is_live for user in users):
                return list(users)
        return []

    @property
    def num_users(self) -> dict[str, int]:
        return {adapter: len(users) for adapter, users in self._users.items()}

    def _may_not_drain_for(self, request: Request) -> bool:
        is_waiting = request in self._drained_for.values() or self._is_coming(request)
        return is_waiting or len(self._drained_for) >= max(1, len(self._users) // 2)

    def _victims(self, request: Request) -> list[str]:
        return [victim for victim, other in self._drained_for.items() if other is request]

    def _remaining(self, adapter: str) -> float:
        """Tokens until the last user of an adapter ends; one drained already is not asked twice."""
        if adapter in self._drained_for:
            return math.inf
        return max(map(_remaining, self._users.get(adapter, ())), default=0)

    def _is_coming(self, request: Request) -> bool:
        adapter = adapter_of(request)
        return adapter in self._loading or self._slots.state(adapter) != "absent"

    def _load(self, request: Request, plan: StepPlan) -> None:
        adapter = adapter_of(request)
        plan.loads.append(adapter)
        self._loading[adapter] = request
        if not request.is_admitted:
            request.seq.phase = "loading"


def _due(request: Request) -> tuple[float, int]:
    return (request.due_s, request.number)


def adapter_of(request: Request) -> str:
    adapter = request.seq.adapter
    assert adapter is not None, "only requests with an adapter wait for a slot"
    return adapter


def _remaining(request: Request) -> int:
    seq = request.seq
    return seq.num_prompt_tokens - seq.num_computed + request.estimate - len(seq.output_ids)
