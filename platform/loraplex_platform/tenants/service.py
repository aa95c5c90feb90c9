"""Rules about tenants."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import EventType, LimitsEvent, TenantEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.models import Project, Tenant
from loraplex_platform.tenants.repository import ALL, TenantFilter, TenantRepository
from loraplex_platform.tenants.schemas import (
    NEXT_STATES,
    Standing,
    TenantChange,
    TenantState,
    check_name,
    check_networks,
    check_standing,
)

EVENTS: dict[TenantState, EventType] = {
    "active": "tenant.resumed",
    "suspended": "tenant.suspended",
    "closing": "tenant.closed",  # the last that it is told
}


class TenantService:
    """Tenants, as those who administer them may see and change them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self,
        name: str,
        change: TenantChange | Mapping[str, object] | None = None,
        *,
        by: Administrator = COMMAND_LINE,
    ) -> Tenant:
        """A new tenant and its project `default`."""
        check_name(name, "tenant")
        now = self._clock.now()
        tenant = Tenant(id=new_id("ten"), name=name, state="active", created_at=now)
        project = Project(id=new_id("proj"), tenant_id=tenant.id, name="default", created_at=now)
        try:
            async with changing(self._database, by, self._clock) as session:
                await _apply(session, tenant, _given(change))
                await TenantRepository(session).add(tenant)
                await TenantRepository(session).add(project)
        except IntegrityError as error:
            raise Conflict(f"there is a tenant {name!r} already", param="name") from error
        return tenant

    async def list(self) -> Sequence[Tenant]:
        async with self._database.reading() as session:
            return await TenantRepository(session).all()

    async def page(
        self,
        by: Administrator,
        *,
        after: str | None = None,
        limit: int = 20,
        wanted: TenantFilter = ALL,
        order: str = "",
    ) -> Sequence[Tenant]:
        async with self._database.reading(by) as session:
            tenants = TenantRepository(session)
            return await tenants.page(by, after, limit, wanted=wanted, order=order)

    async def names(self, by: Administrator, tenant_ids: Collection[str]) -> dict[str, str]:
        """By id, of those that are seen."""
        async with self._database.reading(by) as session:
            return await TenantRepository(session).names(by, tenant_ids)

    async def get(self, name: str) -> Tenant:
        async with self._database.reading() as session:
            return await _named(TenantRepository(session), name)

    async def find(self, by: Administrator, tenant_id: str) -> Tenant:
        """By id; what the administrator may not see does not exist."""
        async with self._database.reading(by) as session:
            return await found(session, by, tenant_id)

    async def set(
        self, name: str, change: TenantChange, *, by: Administrator = COMMAND_LINE
    ) -> Tenant:
        """Change what the change names; running servers see it with the next request."""
        async with changing(self._database, by, self._clock) as session:
            tenant = await _named(TenantRepository(session), name)
            await _apply(session, tenant, change.given())
        return tenant

    async def change(
        self,
        by: Administrator,
        tenant_id: str,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> Tenant:
        """Set the given columns; `revision` is the one that the caller has seen."""
        try:
            async with changing(self._database, by, self._clock) as session:
                tenant = await found(session, by, tenant_id)
                check_revision(tenant, revision)
                plan_id = tenant.plan_id
                await _apply(session, tenant, values)
                if tenant.plan_id != plan_id:
                    payload = LimitsEvent("tenant", tenant.id, None)
                    await emit(session, tenant.id, "limits.changed", payload, self._clock.now())
        except IntegrityError as error:
            raise Conflict("there is a tenant of this name already", param="name") from error
        return tenant

    async def move(self, by: Administrator, tenant_id: str, state: TenantState) -> Tenant:
        """Suspend, resume or close; keys follow within a second. Twice is as good as once."""
        async with changing(self._database, by, self._clock) as session:
            tenant = await found(session, by, tenant_id)
            if tenant.state != state:
                if state not in NEXT_STATES[tenant.state]:
                    raise Conflict(f"a tenant that is {tenant.state} cannot become {state}")
                tenant.state = state
                payload = TenantEvent(tenant.id, tenant.name)
                await emit(session, tenant.id, EVENTS[state], payload, self._clock.now())
        return tenant

    async def standing(self, tenant: Tenant) -> Standing:
        """What it comes to: the tenant's own settings before its plan's."""
        async with self._database.reading() as session:
            return await TenantRepository(session).standing(tenant)

    async def default_project(self, tenant: Tenant) -> Project:
        async with self._database.reading() as session:
            return await TenantRepository(session).default_project(tenant.id)


async def found(session: AsyncSession, by: Administrator, tenant_id: str) -> Tenant:
    tenant = await TenantRepository(session).find(by, tenant_id)
    if tenant is None:
        raise NotFound(f"there is no tenant {tenant_id!r}", param="tenant_id")
    return tenant


async def _named(tenants: TenantRepository, name: str) -> Tenant:
    tenant = await tenants.named(name)
    if tenant is None:
        raise NotFound(f"there is no tenant {name!r}", param="tenant")
    return tenant


def _given(change: TenantChange | Mapping[str, object] | None) -> Mapping[str, object]:
    return change.given() if isinstance(change, TenantChange) else change or {}


async def _apply(session: AsyncSession, tenant: Tenant, values: Mapping[str, object]) -> None:
    check_standing(dict(values))
    check_networks(values.get("allowed_networks"))
    prefix_tokens = values.get("prefix_tokens")
    if isinstance(prefix_tokens, int) and prefix_tokens < 0:
        raise InvalidRequest("prefix_tokens must not be negative", param="prefix_tokens")
    plan_id = values.get("plan_id")
    if isinstance(plan_id, str) and await TenantRepository(session).plan(plan_id) is None:
        raise InvalidRequest(f"there is no plan {plan_id!r}", param="plan_id")
    for name, value in values.items():
        setattr(tenant, name, value)
