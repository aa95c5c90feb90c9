"""Where every statement on tenant data starts."""

from typing import TypeVar

from sqlalchemy import Delete, Select, Update, delete, select, update

from loraplex_platform.db.base import TenantOwned
from loraplex_platform.kit.principal import Principal

Row = TypeVar("Row", bound=TenantOwned)


def for_tenant(principal: Principal, table: type[Row]) -> Select[Row]:
    """The principal's own rows; narrow it with `.where`, shape it with `.with_only_columns`."""
    return select(table).where(table.tenant_id == principal.tenant_id)


def across_tenants(table: type[Row]) -> Select[Row]:
    """Rows of all tenants: for the operator's commands, the console, and to find out who asks."""
    return select(table)


def change_across_tenants(table: type[Row]) -> Update:
    """A change of many rows at once, for the platform's own work; narrow it with `.where`."""
    return update(table)


def remove_across_tenants(table: type[Row]) -> Delete:
    """The same for rows that are no longer needed."""
    return delete(table)
