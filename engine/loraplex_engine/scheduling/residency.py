"""Adapter slots: who may use which, what to load next, and which adapter is drained for whom.

A request whose adapter holds no slot may be passed by others for a while only. Then a victim is
drained: nobody new may use it, and the slot it leaves is kept for the request that waited.
"""

import math

from loraplex_engine.messages import WaitReason
from loraplex_engine.scheduling.flows import Request
from loraplex_engine.scheduling.policy import AdapterSlots, StepPlan


class Residency:
    """A policy's view of AdapterSlots: users per adapter, loads asked for, drains."""

    def __init__(self, slots: AdapterSlots) -> None:
        self._slots = slots
        self._users: dict[str, dict[Request, None]] = {}
        self._loading: dict[str, Request] = {}  # for whom each load was asked
        self._drained_for: dict[str, Request] = {}

    def begin_step(self, plan: StepPlan) -> None:
        """Pin what has been loaded to the request that asked; serve those a drain was made for."""
        for adapter, request in list(self._loading.items()):
            state = self._slots.state(adapter)
            if state != "loading":
                del self._loading[adapter]
                if state == "resident" and not request.seq.is_finished:
                    self.acquire(request)
        for victim, request in list(self._drained_for.items()):
            is_there = self._slots.state(adapter_of(request)) == "resident"
            if request.seq.is_finished or request.has_slot or is_there:
                del self._drained_for[victim]
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

    def acquire(self, request: Request) -> None:
        """Count among the users of a resident adapter. Idempotent."""
        adapter = request.seq.adapter
        if adapter is not None and not request.has_slot:
            self._slots.acquire(adapter)
            request.has_slot = True
            self._users.setdefault(adapter, {})[request] = None

    def release(self, request: Request) -> None:
        """The counterpart of acquire. Idempotent."""
        adapter = request.seq.adapter
        if adapter is not None and request.has_slot:
            self._slots.release(adapter)
            request.has_slot = False
            del self._users[adapter][request]
            if not self._users[adapter]:
                del self._users[adapter]

    def drain_for(self, request: Request) -> None:
        """Let those run out that are in its way, and keep their room for the request."""
        is_waiting = request in self._drained_for.values() or self._is_coming(request)
        if is_waiting or len(self._drained_for) >= max(1, len(self._users) // 2):
            return
        victims = self._slots.blockers(adapter_of(request), self._remaining)
        if victims is not None and not self._drained_for.keys() & set(victims):
            self._drained_for.update(dict.fromkeys(victims, request))

    def held_by_batch(self) -> list[Request]:
        """The users of a slot that only batch work holds: live work may take it at once."""
        for users in self._users.values():
            if not any(user.is_live for user in users):
                return list(users)
        return []

    @property
    def num_users(self) -> dict[str, int]:
        return {adapter: len(users) for adapter, users in self._users.items()}

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
        request.seq.phase = "loading"


def adapter_of(request: Request) -> str:
    adapter = request.seq.adapter
    assert adapter is not None, "only requests with an adapter wait for a slot"
    return adapter


def _remaining(request: Request) -> int:
    seq = request.seq
    return seq.num_prompt_tokens - seq.num_computed + request.estimate - len(seq.output_ids)
