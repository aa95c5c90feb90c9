"""A tenant's own requests while they are in the engine: where they are, and what they wait for."""

from typing import Any

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.messages import Explanation, SequenceStats
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.principal import Administrator, Principal

MEANINGS = {
    "kv": "the KV cache has no room for it beside what runs",
    "slot": "its adapter waits for a place on the device",
    "loading": "its adapter is being loaded",
    "quota": "its tenant has as much as its soft cap allows while others wait",
    "priority": "others come first: higher tiers, tenants that had less, or earlier requests",
    "prefix": "its beginning is being computed for another request; it will not be computed twice",
}


class LiveRequests:
    """Other tenants' requests do not exist here."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def all_of(self, principal: Principal) -> dict[str, Any]:
        stats = self._engine.stats
        sequences = () if stats is None else stats.sequences
        own = [_shown(s) for s in sequences if s.tenant == principal.tenant_id]
        return {"object": "list", "data": own}

    async def explain(self, principal: Principal, request_id: str) -> dict[str, Any]:
        """The first sequence of the request, wherever it is."""
        found = await self._found(request_id)
        if found is None or found.tenant != principal.tenant_id:
            raise NotFound(f"There is no live request '{request_id}'.", param="request_id")
        return _explained(request_id, found)

    async def seen(self, by: Administrator, request_id: str) -> dict[str, Any] | None:
        """The same for people, with its tenant; None where it is not in the engine, or not seen."""
        try:
            found = await self._found(request_id)
        except EngineUnavailable:  # it has nothing under way
            return None
        if found is None or not by.sees(found.tenant):
            return None
        return _explained(request_id, found) | {"tenant_id": found.tenant}

    async def _found(self, request_id: str) -> Explanation | None:
        for sequence_id in (request_id, f"{request_id}.0"):
            found = await self._engine.explain(sequence_id)
            if found.tenant is not None:
                return found
        return None


def _shown(sequence: SequenceStats) -> dict[str, Any]:
    return {
        "id": sequence.request_id,
        "object": "request",
        "tier": sequence.tier,
        "phase": sequence.phase,
        "reason": sequence.reason,
        "waited_s": round(sequence.waited_s, 3),
        "prompt_tokens": sequence.prompt_tokens,
        "completion_tokens": sequence.completion_tokens,
    }


def _explained(request_id: str, found: Explanation) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "request.explanation",
        "phase": found.phase,
        "reason": found.reason,
        "meaning": None if found.reason is None else MEANINGS[found.reason],
        "ahead": found.ahead,
        "expected_s": found.expected_s,
        "detail": found.detail,
    }
