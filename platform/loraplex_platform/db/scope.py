"""Where every statement on tenant data starts."""

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Delete, Select, Update, delete, select, update

from loraplex_platform.db.base import Base, PerhapsTenantOwned, TenantOwned
from loraplex_platform.kit.principal import Administrator, Principal

Row = TypeVar("Row", bound=TenantOwned)
Seen = TypeVar("Seen", bound=TenantOwned | PerhapsTenantOwned)
Platform = TypeVar("Platform", bound=Base)
ACROSS = "loraplex_across_tenants"


def for_tenant(principal: Principal, table: type[Row]) -> Select[Row]:
    """The principal's own rows; narrow it with `.where`, shape it with `.with_only_columns`."""
    return select(table).where(table.tenant_id == principal.tenant_id)


def visible_to(by: Administrator, table: type[Seen]) -> Select[Seen]:
    """What an administrator may see: staff see all rows, a tenant's people their own."""
    if by.tenant_id is None:
        return across_tenants(table)
    return select(table).where(table.tenant_id == by.tenant_id)


def across_tenants(table: type[Seen]) -> Select[Seen]:
    """Rows of all tenants: for the operator's commands, the console, and to find out who asks."""
    return select(table).execution_options(**{ACROSS: True})


def over(scoped: Select[*tuple[Any, ...]], *columns: ColumnElement[Any]) -> Select[Any]:
    """A statement on what a scoped one found, as a CTE or subquery; its scope is the same."""
    return select(*columns).execution_options(**scoped.get_execution_options())


def for_platform(table: type[Platform]) -> Select[Platform]:
    """Rows of no tenant: plans, admin keys, sessions."""
    assert "tenant_id" not in table.__table__.c, "a tenant's rows need a scope"
    return select(table)


def change_across_tenants(table: type[Seen]) -> Update:
    """A change of many rows at once, for the platform's own work; narrow it with `.where`."""
    return update(table).execution_options(**{ACROSS: True})


def remove_across_tenants(table: type[Row]) -> Delete:
    """The same for rows that are no longer needed."""
    return delete(table).execution_options(**{ACROSS: True})
