"""Statements on tenants and projects."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants, for_tenant
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.models import Project, Tenant


class TenantRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, tenant: Tenant, project: Project) -> None:
        self._session.add(tenant)
        await self._session.flush()
        self._session.add(project)
        await self._session.flush()

    async def own(self, principal: Principal) -> Tenant:
        """The principal's tenant."""
        return (await self._session.scalars(for_tenant(principal, Tenant))).one()

    async def named(self, name: str) -> Tenant | None:
        return await self._session.scalar(across_tenants(Tenant).where(Tenant.name == name))

    async def all(self) -> Sequence[Tenant]:
        return (await self._session.scalars(across_tenants(Tenant).order_by(Tenant.name))).all()

    async def default_project(self, tenant_id: str) -> Project:
        statement = across_tenants(Project).where(
            Project.tenant_id == tenant_id, Project.name == "default"
        )
        return (await self._session.scalars(statement)).one()
