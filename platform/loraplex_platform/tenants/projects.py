"""Rules about projects and the service accounts in them."""

from collections.abc import Mapping, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.models import Project, ServiceAccount
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.tenants.schemas import check_name
from loraplex_platform.tenants.service import found


class ProjectService:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self, by: Administrator, tenant_id: str, name: str, values: Mapping[str, object]
    ) -> Project:
        check_name(name, "project")
        project = Project(
            id=new_id("proj"), tenant_id=tenant_id, name=name, created_at=self._clock.now()
        )
        _apply(project, values)
        try:
            async with changing(self._database, by, self._clock) as session:
                await found(session, by, tenant_id)
                await TenantRepository(session).add(project)
        except IntegrityError as error:
            raise Conflict(f"there is a project {name!r} already", param="name") from error
        return project

    async def page(
        self,
        by: Administrator,
        tenant_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: str = "",
    ) -> Sequence[Project]:
        async with self._database.reading(by) as session:
            rows = await TenantRepository(session).projects(by, tenant_id, after, limit, order)
            if not rows:  # past the end, or there is no such tenant
                await found(session, by, tenant_id)
            return rows

    async def find(self, by: Administrator, tenant_id: str, project_id: str) -> Project:
        async with self._database.reading(by) as session:
            return await found_project(session, by, tenant_id, project_id)

    async def change(
        self,
        by: Administrator,
        tenant_id: str,
        project_id: str,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> Project:
        try:
            async with changing(self._database, by, self._clock) as session:
                project = await found_project(session, by, tenant_id, project_id)
                check_revision(project, revision)
                _apply(project, values)
        except IntegrityError as error:
            raise Conflict("there is a project of this name already", param="name") from error
        return project

    async def archive(self, by: Administrator, tenant_id: str, project_id: str) -> Project:
        """Its keys no longer work, within a second; what it used stays in the books."""
        async with changing(self._database, by, self._clock) as session:
            project = await found_project(session, by, tenant_id, project_id)
            if project.name == "default":
                raise Conflict("the default project stays as long as its tenant")
            project.archived_at = project.archived_at or self._clock.now()
        return project

    async def create_account(
        self, by: Administrator, tenant_id: str, project_id: str, name: str
    ) -> ServiceAccount:
        check_name(name, "service account")
        account = ServiceAccount(
            id=new_id("sa"),
            tenant_id=tenant_id,
            project_id=project_id,
            name=name,
            created_at=self._clock.now(),
        )
        try:
            async with changing(self._database, by, self._clock) as session:
                await found_project(session, by, tenant_id, project_id)
                await TenantRepository(session).add(account)
        except IntegrityError as error:
            raise Conflict(f"there is a service account {name!r} already", param="name") from error
        return account

    async def accounts(
        self,
        by: Administrator,
        tenant_id: str,
        project_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
    ) -> Sequence[ServiceAccount]:
        async with self._database.reading(by) as session:
            project = await found_project(session, by, tenant_id, project_id)
            return await TenantRepository(session).service_accounts(by, project, after, limit)

    async def account(
        self, by: Administrator, tenant_id: str, project_id: str, account_id: str
    ) -> ServiceAccount:
        async with self._database.reading(by) as session:
            return await found_account(session, by, tenant_id, project_id, account_id)

    async def rename_account(
        self,
        by: Administrator,
        ids: tuple[str, str, str],
        name: str,
        *,
        revision: int | None = None,
    ) -> ServiceAccount:
        """`ids` are those of tenant, project and account."""
        check_name(name, "service account")
        try:
            async with changing(self._database, by, self._clock) as session:
                account = await found_account(session, by, *ids)
                check_revision(account, revision)
                account.name = name
        except IntegrityError as error:
            raise Conflict(f"there is a service account {name!r} already", param="name") from error
        return account


def _apply(project: Project, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(project, name, value)


async def found_project(
    session: AsyncSession, by: Administrator, tenant_id: str, project_id: str
) -> Project:
    project = await TenantRepository(session).project(by, tenant_id, project_id)
    if project is None:
        raise NotFound(f"there is no project {project_id!r}", param="project_id")
    return project


async def found_account(
    session: AsyncSession, by: Administrator, tenant_id: str, project_id: str, account_id: str
) -> ServiceAccount:
    project = await found_project(session, by, tenant_id, project_id)
    account = await TenantRepository(session).service_account(by, project, account_id)
    if account is None:
        raise NotFound(f"there is no service account {account_id!r}", param="account_id")
    return account
