"""Adapter slots: who may use which, what to load next, and which adapter is drained for whom.

A request whose adapter holds no slot may be passed by others for a while only. Then a victim is
drained: nobody new may use it, and the slot it leaves is kept for the request that waited.
"""

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
            adapter = adapter_of(request)
            if (
                request.seq.is_finished
                or request.has_slot
                or self._slots.state(adapter) != "absent"
            ):
                del self._drained_for[victim]
            elif self._slots.can_load(adapter):
                # The victim stays closed until the load has begun: nobody may slip in meanwhile.
                self._load(request, plan)

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
        """Let the adapter that will be free soonest run out, and keep its slot for the request."""
        adapter = adapter_of(request)
        is_coming = adapter in self._loading or self._slots.state(adapter) != "absent"
        if (
            is_coming
            or request in self._drained_for.values()
            or len(self._drained_for) >= max(1, len(self._users) // 2)
        ):
            return
        victims = [adapter for adapter in self._users if adapter not in self._drained_for]
        if victims:
            victim = min(victims, key=lambda a: (max(map(_remaining, self._users[a])), a))
            self._drained_for[victim] = request

    def held_by_batch(self) -> list[Request]:
        """The users of a slot that only batch work holds: live work may take it at once."""
        for users in self._users.values():
            if not any(user.is_live for user in users):
                return list(users)
        return []

    @property
    def num_users(self) -> dict[str, int]:
        return {adapter: len(users) for adapter, users in self._users.items()}

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
