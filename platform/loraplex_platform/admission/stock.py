"""Limits on what exists, checked in the transaction that makes more of it."""

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.limits import ADAPTER_BYTES, Dimension
from loraplex_platform.admission.repository import LimitRepository
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.kit.errors import QuotaExceeded


async def check_adapter_bytes(
    session: AsyncSession, tenant_id: str, version: str, num_bytes: int
) -> None:
    """Raises QuotaExceeded when the tenant's versions would take more than they may."""
    limit = await locked_limit(session, tenant_id, ADAPTER_BYTES)
    if limit is None:
        return
    used = await AdapterRepository(session).bytes_of_tenant(tenant_id, besides=version)
    if used + num_bytes > limit:
        raise QuotaExceeded(
            f"The tenant's adapters take {used} bytes of {limit}; {num_bytes} more do not fit."
        )


async def locked_limit(session: AsyncSession, tenant_id: str, dimension: Dimension) -> int | None:
    """The tenant's limit, held until the transaction ends so that two of them cannot both fit."""
    rule = await LimitRepository(session).locked(tenant_id, dimension.name)
    return None if rule is None else rule.value
