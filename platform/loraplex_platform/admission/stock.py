"""Limits on what exists, checked in the transaction that makes more of it."""

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.limits import (
    ADAPTER_BYTES,
    REGISTERED_PREFIX_TOKENS,
    Dimension,
)
from loraplex_platform.admission.repository import LimitRepository
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.kit.errors import QuotaExceeded
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.repository import TenantRepository

PREFIX_TOKENS = 4096  # of a tenant for which nothing is set


async def check_adapter_bytes(
    session: AsyncSession, tenant_id: str, version: str, num_bytes: int
) -> None:
    """Raises QuotaExceeded when the tenant's versions would take more than they may."""
    limit = await _stock(session, await _locked(session, tenant_id), ADAPTER_BYTES)
    if limit is None:
        return
    used = await AdapterRepository(session).bytes_of_tenant(tenant_id, besides=version)
    if used + num_bytes > limit:
        raise QuotaExceeded(
            f"The tenant's adapters take {used} bytes of {limit}; {num_bytes} more do not fit."
        )


async def prefix_tokens_of(session: AsyncSession, tenant_id: str) -> int:
    """How many tokens the tenant may register: its own limit or setting before its plan's."""
    tenant = await _locked(session, tenant_id)
    own = tenant.prefix_tokens
    limit = await _stock(session, tenant, REGISTERED_PREFIX_TOKENS, own)
    return PREFIX_TOKENS if limit is None else limit


async def _locked(session: AsyncSession, tenant_id: str) -> Tenant:
    """Held until the transaction ends, so that two additions cannot both fit."""
    return await TenantRepository(session).locked(tenant_id)


async def _stock(
    session: AsyncSession, tenant: Tenant, dimension: Dimension, own: int | None = None
) -> int | None:
    """A rule before the tenant's own setting, that before what its plan says."""
    rule = await LimitRepository(session).of_whole(tenant.id, dimension.name)
    if rule is not None:
        return rule.value
    if own is not None or tenant.plan_id is None:
        return own
    plan = await TenantRepository(session).plan(tenant.plan_id)
    return None if plan is None else plan.limits.get(dimension.name)
