"""Rules about tenants."""

import re
from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError

from loraplex_engine.messages import TIERS
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.tenants.models import Project, Tenant
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.tenants.schemas import TenantChange

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class TenantService:
    """What an operator may do with tenants."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(self, name: str, change: TenantChange | None = None) -> Tenant:
        """A new tenant and its project `default`."""
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"not a tenant name: {name!r} (a-z, 0-9, . _ -)", param="name")
        now = self._clock.now()
        tenant = Tenant(
            id=new_id("ten"), name=name, weight=1.0, max_tier="interactive", created_at=now
        )
        _apply(tenant, change or TenantChange())
        project = Project(id=new_id("proj"), tenant_id=tenant.id, name="default", created_at=now)
        try:
            async with self._database.unit_of_work() as session:
                await TenantRepository(session).add(tenant, project)
        except IntegrityError as error:
            raise Conflict(f"there is a tenant {name!r} already", param="name") from error
        return tenant

    async def list(self) -> Sequence[Tenant]:
        async with self._database.reading() as session:
            return await TenantRepository(session).all()

    async def get(self, name: str) -> Tenant:
        async with self._database.reading() as session:
            return await _named(TenantRepository(session), name)

    async def set(self, name: str, change: TenantChange) -> Tenant:
        """Change what the change names; running servers see it with the next request."""
        async with self._database.unit_of_work() as session:
            tenant = await _named(TenantRepository(session), name)
            _apply(tenant, change)
        return tenant

    async def default_project(self, tenant: Tenant) -> Project:
        async with self._database.reading() as session:
            return await TenantRepository(session).default_project(tenant.id)


async def _named(tenants: TenantRepository, name: str) -> Tenant:
    tenant = await tenants.named(name)
    if tenant is None:
        raise NotFound(f"there is no tenant {name!r}", param="tenant")
    return tenant


def _apply(tenant: Tenant, change: TenantChange) -> None:
    if change.weight is not None and not 0 < change.weight < float("inf"):
        raise InvalidRequest("weight must be positive", param="weight")
    if change.max_tier is not None and change.max_tier not in TIERS:
        raise InvalidRequest(f"max_tier must be one of {', '.join(TIERS)}", param="max_tier")
    if change.max_running is not None and change.max_running < 1:
        raise InvalidRequest("max_running must be at least 1", param="max_running")
    if change.kv_share is not None and not 0 < change.kv_share <= 1:
        raise InvalidRequest("kv_share must be in (0, 1]", param="kv_share")
    for name, value in change.given().items():
        setattr(tenant, name, value)
