"""Statements on keys."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.auth.models import AdminKey, ApiKey, KeyUse
from loraplex_platform.db.paging import Sorting, page_after
from loraplex_platform.db.scope import across_tenants, visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.tenants.models import Project, ServiceAccount, Tenant

LAST_USED = across_tenants(KeyUse).where(KeyUse.key_id == ApiKey.id)
KEYS = Sorting(
    ApiKey.id,
    {
        "name": func.nullif(ApiKey.name, ""),
        "used": LAST_USED.with_only_columns(KeyUse.last_used_at).scalar_subquery(),
        "expires": ApiKey.expires_at,
        "made": ApiKey.created_at,
    },
)


class Holder(NamedTuple):
    """A key with whom it belongs to."""

    key: ApiKey
    tenant: Tenant
    project: Project


class KeyRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, key: ApiKey | AdminKey) -> None:
        self._session.add(key)
        await self._session.flush()

    async def get(self, key_id: str) -> ApiKey | None:
        """Any tenant's key: for the operator's commands."""
        return await self._session.scalar(across_tenants(ApiKey).where(ApiKey.id == key_id))

    async def holder(self, key_id: str) -> Holder | None:
        """Any tenant's key: this is how we learn whose it is."""
        statement = (
            across_tenants(ApiKey)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .join(Project, Project.id == ApiKey.project_id)
            .add_columns(Tenant, Project)
            .where(ApiKey.id == key_id)
        )
        row = (await self._session.execute(statement)).one_or_none()
        return None if row is None else Holder(*row)

    async def of_tenant(self, tenant_id: str) -> Sequence[ApiKey]:
        statement = across_tenants(ApiKey).where(ApiKey.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(ApiKey.created_at))).all()

    async def of_account(self, account: ServiceAccount) -> Sequence[ApiKey]:
        statement = across_tenants(ApiKey).where(
            ApiKey.tenant_id == account.tenant_id, ApiKey.service_account_id == account.id
        )
        return (await self._session.scalars(statement)).all()

    async def find(
        self, by: Administrator, tenant_id: str, project_id: str, key_id: str
    ) -> ApiKey | None:
        statement = visible_to(by, ApiKey).where(
            ApiKey.tenant_id == tenant_id, ApiKey.project_id == project_id, ApiKey.id == key_id
        )
        return await self._session.scalar(statement)

    async def find_in(self, by: Administrator, tenant_id: str, key_id: str) -> ApiKey | None:
        statement = visible_to(by, ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.id == key_id)
        return await self._session.scalar(statement)

    async def page(
        self,
        by: Administrator,
        project: Project,
        after: str | None,
        limit: int,
        order: str = "",
    ) -> Sequence[ApiKey]:
        own = visible_to(by, ApiKey).where(
            ApiKey.tenant_id == project.tenant_id, ApiKey.project_id == project.id
        )
        return await KEYS.page(self._session, own, order, after, limit)

    async def last_used(
        self, by: Administrator, tenant_id: str, key_ids: Sequence[str]
    ) -> dict[str, datetime]:
        statement = visible_to(by, KeyUse).where(
            KeyUse.tenant_id == tenant_id, KeyUse.key_id.in_(key_ids)
        )
        return {use.key_id: use.last_used_at for use in await self._session.scalars(statement)}

    async def note_use(self, used: Mapping[str, tuple[str, datetime]]) -> None:
        """Key id -> (tenant id, when); several workers may write the same key's row."""
        values: list[dict[str, Any]] = [
            {"key_id": key_id, "tenant_id": tenant_id, "last_used_at": at}
            for key_id, (tenant_id, at) in sorted(used.items())  # one order: no deadlocks
        ]
        is_sqlite = self._session.get_bind().dialect.name == "sqlite"
        insert = sqlite.insert(KeyUse) if is_sqlite else postgresql.insert(KeyUse)
        last = insert.excluded.last_used_at
        await self._session.execute(
            insert.on_conflict_do_update(
                index_elements=["key_id"], set_={"last_used_at": last}
            ).values(values)
        )

    async def admin_key(self, key_id: str) -> AdminKey | None:
        """Anybody's: this is how we learn whose it is."""
        return await self._session.scalar(across_tenants(AdminKey).where(AdminKey.id == key_id))

    async def admin_keys_of(self, tenant_id: str) -> Sequence[AdminKey]:
        statement = across_tenants(AdminKey).where(AdminKey.tenant_id == tenant_id)
        return (await self._session.scalars(statement)).all()

    async def find_admin_key(self, by: Administrator, key_id: str) -> AdminKey | None:
        return await self._session.scalar(visible_to(by, AdminKey).where(AdminKey.id == key_id))

    async def admin_keys(
        self, by: Administrator, after: str | None, limit: int
    ) -> Sequence[AdminKey]:
        statement = page_after(visible_to(by, AdminKey), AdminKey.id, after, limit)
        return (await self._session.scalars(statement)).all()
