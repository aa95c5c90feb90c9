"""Statements on tenants, projects, service accounts and plans."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Select, or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import Sorting, page_after
from loraplex_platform.db.scope import across_tenants, for_platform, for_tenant, visible_to
from loraplex_platform.kit.principal import Administrator, Principal
from loraplex_platform.tenants.models import Plan, Project, ServiceAccount, Tenant
from loraplex_platform.tenants.schemas import Standing, standing_of

TENANTS = Sorting(Tenant.id, {"since": Tenant.id, "name": Tenant.name})
PROJECTS = Sorting(Project.id, {"since": Project.id, "name": Project.name})
PLANS = Sorting(Plan.id, {"since": Plan.id, "name": Plan.name, "weight": Plan.weight})


@dataclass(frozen=True, slots=True)
class TenantFilter:
    """Which tenants to show; None does not filter."""

    like: str = ""  # how the name begins, or the id
    state: str | None = None
    plan_id: str | None = None


ALL = TenantFilter()
Row = TypeVar("Row", Tenant, Project, ServiceAccount, Plan)


class TenantRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, *rows: Row) -> None:
        """In this order."""
        for row in rows:
            self._session.add(row)
            await self._session.flush()

    async def remove(self, row: Row) -> None:
        await self._session.delete(row)
        await self._session.flush()

    async def own(self, principal: Principal) -> Tenant:
        """The principal's tenant."""
        return (await self._session.scalars(for_tenant(principal, Tenant))).one()

    async def locked(self, tenant_id: str) -> Tenant:
        """Until the transaction ends nobody else locks it."""
        statement = across_tenants(Tenant).where(Tenant.id == tenant_id)
        return (await self._session.scalars(statement.with_for_update())).one()

    async def own_plan(self, principal: Principal) -> Plan | None:
        """The plan that the principal's tenant is on."""
        own = for_tenant(principal, Tenant).join(Plan, Plan.id == Tenant.plan_id)
        return await self._session.scalar(own.with_only_columns(Plan))

    async def named(self, name: str) -> Tenant | None:
        return await self._session.scalar(across_tenants(Tenant).where(Tenant.name == name))

    async def inactive(self, tenant_ids: Sequence[str]) -> Sequence[str]:
        """Those that are suspended, closing or closed."""
        statement = across_tenants(Tenant).where(
            Tenant.id.in_(tenant_ids), Tenant.state != "active"
        )
        return [tenant.id for tenant in await self._session.scalars(statement)]

    async def closing(self) -> Sequence[Tenant]:
        statement = across_tenants(Tenant).where(Tenant.state == "closing")
        return (await self._session.scalars(statement.order_by(Tenant.id))).all()

    async def to_close(self, tenant_id: str) -> Tenant | None:
        """Locked; None when it is closed, or another process is about to."""
        statement = across_tenants(Tenant).where(Tenant.state == "closing", Tenant.id == tenant_id)
        return await self._session.scalar(statement.with_for_update(skip_locked=True))

    async def closed_between(self, start: datetime, end: datetime) -> Sequence[str]:
        """The ids of tenants whose content was erased then."""
        statement = across_tenants(Tenant).where(Tenant.closed_at >= start, Tenant.closed_at < end)
        return (await self._session.scalars(statement.with_only_columns(Tenant.id))).all()

    async def all(self) -> Sequence[Tenant]:
        return (await self._session.scalars(across_tenants(Tenant).order_by(Tenant.name))).all()

    async def find(self, by: Administrator, tenant_id: str) -> Tenant | None:
        return await self._session.scalar(visible_to(by, Tenant).where(Tenant.id == tenant_id))

    async def page(
        self,
        by: Administrator,
        after: str | None,
        limit: int,
        *,
        wanted: TenantFilter = ALL,
        order: str = "",
    ) -> Sequence[Tenant]:
        seen = _filtered(visible_to(by, Tenant), wanted)
        return await TENANTS.page(self._session, seen, order, after, limit)

    async def names(self, by: Administrator, tenant_ids: Collection[str]) -> dict[str, str]:
        """By id, of those that are seen."""
        statement = visible_to(by, Tenant).where(Tenant.id.in_(tenant_ids))
        return {tenant.id: tenant.name for tenant in await self._session.scalars(statement)}

    async def standing(self, tenant: Tenant) -> Standing:
        plan = None if tenant.plan_id is None else await self.plan(tenant.plan_id)
        return standing_of(tenant, plan)

    async def among(self, tenant_ids: Collection[str]) -> Sequence[Tenant]:
        """The tenants of these ids."""
        statement = across_tenants(Tenant).where(Tenant.id.in_(tenant_ids))
        return (await self._session.scalars(statement)).all()

    async def default_project(self, tenant_id: str) -> Project:
        statement = across_tenants(Project).where(
            Project.tenant_id == tenant_id, Project.name == "default"
        )
        return (await self._session.scalars(statement)).one()

    async def project(self, by: Administrator, tenant_id: str, project_id: str) -> Project | None:
        statement = visible_to(by, Project).where(
            Project.tenant_id == tenant_id, Project.id == project_id
        )
        return await self._session.scalar(statement)

    async def projects(
        self, by: Administrator, tenant_id: str, after: str | None, limit: int, order: str = ""
    ) -> Sequence[Project]:
        own = visible_to(by, Project).where(Project.tenant_id == tenant_id)
        return await PROJECTS.page(self._session, own, order, after, limit)

    async def service_account(
        self, by: Administrator, project: Project, account_id: str
    ) -> ServiceAccount | None:
        statement = visible_to(by, ServiceAccount).where(
            ServiceAccount.tenant_id == project.tenant_id,
            ServiceAccount.project_id == project.id,
            ServiceAccount.id == account_id,
        )
        return await self._session.scalar(statement)

    async def service_accounts(
        self, by: Administrator, project: Project, after: str | None, limit: int
    ) -> Sequence[ServiceAccount]:
        own = visible_to(by, ServiceAccount).where(
            ServiceAccount.tenant_id == project.tenant_id, ServiceAccount.project_id == project.id
        )
        return (await self._session.scalars(page_after(own, ServiceAccount.id, after, limit))).all()

    async def plan(self, plan_id: str) -> Plan | None:
        return await self._session.scalar(for_platform(Plan).where(Plan.id == plan_id))

    async def plan_named(self, name: str) -> Plan | None:
        return await self._session.scalar(for_platform(Plan).where(Plan.name == name))

    async def plans(self, after: str | None, limit: int, order: str = "") -> Sequence[Plan]:
        return await PLANS.page(self._session, for_platform(Plan), order, after, limit)

    async def on_plan(self, plan_id: str) -> Sequence[str]:
        """The ids of the tenants on a plan."""
        statement = across_tenants(Tenant).where(Tenant.plan_id == plan_id)
        return (await self._session.scalars(statement.with_only_columns(Tenant.id))).all()

    async def project_names(self, tenant_id: str) -> dict[str, str]:
        """By id."""
        statement = across_tenants(Project).where(Project.tenant_id == tenant_id)
        return {project.id: project.name for project in await self._session.scalars(statement)}


def _filtered(statement: Select[Tenant], wanted: TenantFilter) -> Select[Tenant]:
    if wanted.like:
        begins = Tenant.name.startswith(wanted.like, autoescape=True)
        statement = statement.where(or_(begins, Tenant.id == wanted.like))
    if wanted.state is not None:
        statement = statement.where(Tenant.state == wanted.state)
    if wanted.plan_id is not None:
        statement = statement.where(Tenant.plan_id == wanted.plan_id)
    return statement
