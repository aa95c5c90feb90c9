"""Limits beside what is used of them."""

from datetime import datetime
from typing import NamedTuple

from loraplex_admin.services import Services
from loraplex_platform.admission.limits import Limit
from loraplex_platform.kit.principal import Principal


class LimitUse(NamedTuple):
    limit: Limit
    source: str
    until: datetime | None  # when an override ends
    used: int | None  # None: this process was not told

    @property
    def is_full(self) -> bool:
        return self.used is not None and self.used >= self.limit.value


async def uses_of(services: Services, principal: Principal) -> list[LimitUse]:
    """What binds the principal, its own limits first."""
    effective = await services.limits.effective(principal)
    requested = [each for each in effective if each.limit.dimension.kind != "stock"]
    readings = await services.gate.read(principal.tenant_id, [each.limit for each in requested])
    used = {
        each.limit.name: None if reading.is_unseeded else reading.used
        for each, reading in zip(requested, readings, strict=True)
    }
    uses = [
        LimitUse(each.limit, each.source, each.until, used.get(each.limit.name))
        for each in effective
    ]
    order = ("key", "project", "tenant")
    return sorted(uses, key=lambda use: (order.index(use.limit.level), use.limit.name))
