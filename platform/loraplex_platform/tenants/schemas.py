"""What is said about tenants."""

import re
from dataclasses import asdict, dataclass
from ipaddress import ip_network
from typing import Any, Literal, NamedTuple, Protocol

from loraplex_engine.messages import TIERS, TenantShare
from loraplex_platform.kit.errors import InvalidRequest

TenantState = Literal["active", "suspended", "closing", "closed"]
NEXT_STATES: dict[str, frozenset[str]] = {
    "active": frozenset({"suspended", "closing"}),
    "suspended": frozenset({"active", "closing"}),
    "closing": frozenset({"closed"}),
    "closed": frozenset(),
}
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class TenantChange:
    """New values for a tenant's settings; None leaves a setting as it is."""

    weight: float | None = None
    max_tier: str | None = None
    max_running: int | None = None
    kv_share: float | None = None
    prefix_tokens: int | None = None

    def given(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}


Source = Literal["tenant", "plan", "default"]


class Standing(NamedTuple):
    """A tenant's place in the scheduler, and where each value comes from."""

    weight: float
    max_tier: str
    max_running: int | None
    kv_share: float | None
    sources: dict[str, Source]

    def share(self, tenant_id: str) -> TenantShare:
        return TenantShare(tenant_id, self.weight, self.max_running, self.kv_share)


class HasStanding(Protocol):
    """A tenant or a plan: None leaves a setting to whoever is asked next."""

    weight: Any
    max_tier: Any
    max_running: Any
    kv_share: Any


DEFAULTS: dict[str, Any] = {
    "weight": 1.0,
    "max_tier": "interactive",
    "max_running": None,
    "kv_share": None,
}


def standing_of(tenant: HasStanding, plan: HasStanding | None) -> Standing:
    values, sources = dict(DEFAULTS), dict.fromkeys(DEFAULTS, "default")
    for source, given in (("plan", plan), ("tenant", tenant)):
        for name in DEFAULTS:
            if given is not None and getattr(given, name) is not None:
                values[name], sources[name] = getattr(given, name), source
    return Standing(**values, sources=sources)  # type: ignore[arg-type]  # str is a Source


def check_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"not a {what} name: {name!r} (a-z, 0-9, . _ -)", param="name")


def check_standing(values: dict[str, object]) -> None:
    """What tenants and plans both say: weight, tier and soft caps."""
    weight, tier = values.get("weight"), values.get("max_tier")
    running, share = values.get("max_running"), values.get("kv_share")
    if isinstance(weight, int | float) and not 0 < weight < float("inf"):
        raise InvalidRequest("weight must be positive", param="weight")
    if tier is not None and tier not in TIERS:
        raise InvalidRequest(f"max_tier must be one of {', '.join(TIERS)}", param="max_tier")
    if isinstance(running, int) and running < 1:
        raise InvalidRequest("max_running must be at least 1", param="max_running")
    if isinstance(share, int | float) and not 0 < share <= 1:
        raise InvalidRequest("kv_share must be in (0, 1]", param="kv_share")


def check_networks(networks: object) -> None:
    for network in networks if isinstance(networks, list) else ():
        try:
            ip_network(network)
        except ValueError as error:
            raise InvalidRequest(f"not a network: {error}", param="allowed_networks") from error
