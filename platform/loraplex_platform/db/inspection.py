"""Whose rows a statement means: what the tests ask of every statement that is executed."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    BindParameter,
    BooleanClauseList,
    ClauseElement,
    Column,
    ColumnElement,
    Delete,
    Insert,
    Select,
    Table,
    Update,
)
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression

from loraplex_platform.db.scope import ACROSS


def unscoped_tables(statement: ClauseElement, options: dict[str, Any]) -> set[str]:
    """The tables of tenants that a statement touches without saying whose rows it means.

    A table is scoped when its tenant is compared with a bound value, or with the tenant of
    another table, in a condition that always holds. What a flush writes is found by primary key:
    it was read through a scope before.
    """
    if isinstance(statement, Insert) or options.get(ACROSS):
        return set()
    tables = {
        element
        for element in visitors.iterate(statement)
        if (isinstance(element, Table) and "tenant_id" in element.c) or _is_tenant(element)
    }
    conditions = [
        condition
        for element in visitors.iterate(statement)
        if isinstance(element, Select | Update | Delete)
        for condition in _conjuncts(element.whereclause)
    ]
    scoped = {column.table for condition in conditions for column in _bound(condition)}
    if isinstance(statement, Update | Delete):
        scoped |= {column.table for c in conditions for column in _bound(c, by_key=True)}
    return {table.name for table in tables - scoped if isinstance(table, Table)}


def _is_tenant(element: object) -> bool:
    return isinstance(element, Table) and element.name == "tenant"


def _conjuncts(clause: ColumnElement[Any] | None) -> Iterator[ColumnElement[Any]]:
    if isinstance(clause, BooleanClauseList) and clause.operator is operators.and_:
        for part in clause.clauses:
            yield from _conjuncts(part)
    elif clause is not None:
        yield clause


def _bound(condition: ColumnElement[Any], *, by_key: bool = False) -> Iterator[Column[Any]]:
    """Columns that hold the owner (or the primary key), held equal to a value or to each other."""
    if not isinstance(condition, BinaryExpression) or condition.operator is not operators.eq:
        return
    sides = [condition.left, condition.right]
    owners = [side for side in sides if isinstance(side, Column) and _names_owner(side, by_key)]
    if len(owners) == 2 or any(isinstance(side, BindParameter) for side in sides):
        yield from owners


def _names_owner(column: Column[Any], by_key: bool) -> bool:
    if _is_tenant(column.table):
        return column.name == "id"
    return column.name == "tenant_id" or (by_key and column.primary_key)
