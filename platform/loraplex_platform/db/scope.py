"""Where every statement on tenant data starts."""

from typing import TypeVar

from sqlalchemy import Delete, Select, delete, select

from loraplex_platform.db.base import TenantOwned
from loraplex_platform.kit.principal import Principal

Row = TypeVar("Row", bound=TenantOwned)


def for_tenant(principal: Principal, table: type[Row]) -> Select[Row]:
    """The principal's own rows; narrow it with `.where`, shape it with `.with_only_columns`."""
    return select(table).where(table.tenant_id == principal.tenant_id)


def across_tenants(table: type[Row]) -> Select[Row]:
    """Rows of all tenants: for the operator's commands, the console, and to find out who asks."""
    return select(table)


def removing_across_tenants(table: type[Row]) -> Delete:
    """Deletes rows of all tenants: what has served its time, or is about to be made anew."""
    return delete(table)
