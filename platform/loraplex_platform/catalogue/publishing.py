"""A version gets a number under a name, within its tenant's quota; a name points at its versions."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_adapters.report import LoadReport
from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Principal

# Called in the transaction that adds a version of so many bytes to a tenant; raises to forbid it.
Quota = Callable[[AsyncSession, str, str, int], Awaitable[None]]


async def no_quota(session: AsyncSession, tenant: str, version: str, num_bytes: int) -> None:
    """Whatever fits the disk."""


class Published(NamedTuple):
    """A name and the version that was put under it."""

    name: AdapterName
    version: Adapter
    is_new: bool  # else the name had this content before
    was_activated: bool  # whether the bare name stands for it since now


async def publish(
    session: AsyncSession,
    principal: Principal,
    name: str,
    version: str,
    report: LoadReport,
    *,
    now: datetime,
    activate: bool,
) -> Published:
    """Add a version to a name, which is made when it is new; the first version is always current."""
    adapters = AdapterRepository(session)
    row = await adapters.name(principal, name, to_change=True)
    versions = [] if row is None else await adapters.versions(principal, name)
    known = next((each for each in versions if each.version == version), None)
    if row is None:
        row = _new_name(principal.tenant_id, name, now)
        await adapters.add(row)
    elif known is None:
        row.last_number += 1
    adapter = known or Adapter(
        id=new_id("adp"),
        tenant_id=principal.tenant_id,
        name=name,
        number=row.last_number,
        version=version,
        rank=report.rank,
        num_bytes=report.num_bytes,
        manifest=report.to_json(),
        created_at=now,
        updated_at=now,
    )
    if known is None:
        await adapters.add(adapter)
    was_activated = not versions or (activate and row.current != adapter.number)
    if activate:
        point_at(row, adapter.number, now)
    return Published(row, adapter, known is None, was_activated)


def point_at(row: AdapterName, number: int, now: datetime) -> None:
    """From here on the bare name stands for this version; a canary has served its purpose."""
    if row.current != number:
        row.previous, row.current = row.current, number
        row.canary = row.canary_percent = None
        row.updated_at = now


def numbers_named(values: Mapping[str, Any]) -> list[int]:
    """The versions that a change speaks of."""
    canary = values.get("canary")
    return [
        *([values["current"]] if "current" in values else []),
        *([canary["version"]] if canary else []),
    ]


def apply_changes(row: AdapterName, values: Mapping[str, Any], now: datetime) -> None:
    """Set what `values` names; the versions it speaks of are there."""
    if "current" in values:
        point_at(row, values["current"], now)
    if "canary" in values:
        canary = values["canary"]
        row.canary = canary["version"] if canary else None
        row.canary_percent = canary["percent"] if canary else None
    row.is_enabled = values.get("enabled", row.is_enabled)
    row.is_pinned = values.get("pinned", row.is_pinned)
    row.defaults = values.get("defaults", row.defaults)
    row.updated_at = now


def _new_name(tenant_id: str, name: str, now: datetime) -> AdapterName:
    return AdapterName(
        tenant_id=tenant_id,
        name=name,
        current=1,
        last_number=1,
        is_enabled=True,
        is_pinned=False,
        defaults={},
        created_at=now,
        updated_at=now,
    )
