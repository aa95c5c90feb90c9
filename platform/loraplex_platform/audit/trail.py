"""How rows change: every flush of an audited row writes what changed beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from sqlalchemy import event, inspect
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, UOWTransaction
from sqlalchemy.orm.exc import StaleDataError

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.db.base import Audited, Base
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import PreconditionFailed
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Actor, Administrator, Principal

Verb = Literal["created", "updated", "deleted"]
CHANGED = "tenants_changed"


class Change(NamedTuple):
    """What a flush does to one row."""

    before: dict[str, Any]
    after: dict[str, Any]


@asynccontextmanager
async def changing(
    database: Database, by: Administrator | Actor, clock: Clock, *, of: Principal | None = None
) -> AsyncIterator[AsyncSession]:
    """A unit of work whose changes to audited rows are logged in its transaction.

    An administrator touches what they see, and an actor the rows of the principal they act for;
    an actor alone does the platform's work.
    Raises PreconditionFailed when another transaction changed one of the rows meanwhile.
    """
    try:
        asking, actor = (by, by.actor) if isinstance(by, Administrator) else (of, by)
        async with database.unit_of_work(asking) as session:
            watch(session, actor, clock)
            yield session
    except StaleDataError as error:
        raise PreconditionFailed from error
    if changed := session.info.get(CHANGED):
        await database.news.tell(frozenset(changed))


def watch(session: AsyncSession, actor: Actor, clock: Clock) -> None:
    """From here on, what this session changes is the actor's doing."""

    def record(session: Session, _: UOWTransaction, __: object) -> None:
        events = [_event(row, "created", actor, clock) for row in _audited(session.new)]
        events += [
            _event(row, "updated", actor, clock)
            for row in _audited(session.dirty)
            if session.is_modified(row)
        ]
        events += [_event(row, "deleted", actor, clock) for row in _audited(session.deleted)]
        session.info.setdefault(CHANGED, set()).update(event.tenant_id for event in events)
        session.add_all(events)

    session.info["actor"] = actor
    event.listen(session.sync_session, "before_flush", record)


def note(
    session: AsyncSession,
    row: Base,
    verb: str,
    actor: Actor,
    clock: Clock,
    after: dict[str, Any] | None = None,
) -> None:
    """Log what was done to a row whose flushes are not watched, such as a file or a job."""
    event = _about(row, verb, actor, clock)
    event.after = after
    session.add(event)


def _audited(rows: Any) -> list[Audited]:
    return [row for row in rows if isinstance(row, Audited)]


def _event(row: Audited, verb: Verb, actor: Actor, clock: Clock) -> AuditEvent:
    change, event = change_of(row, verb), _about(row, verb, actor, clock)
    event.before = None if verb == "created" else change.before
    event.after = None if verb == "deleted" else change.after
    return event


def _about(row: object, verb: str, actor: Actor, clock: Clock) -> AuditEvent:
    mapper = inspect(type(row))
    keys = [str(getattr(row, mapper.get_property_by_column(c).key)) for c in mapper.primary_key]
    kind: str = mapper.local_table.name
    return AuditEvent(
        id=new_id("aud"),
        at=clock.now(),
        tenant_id=getattr(row, "tenant_id", None),
        action=f"{kind}.{verb}",
        object_type=kind,
        object_id="/".join(keys),
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name=actor.name,
        request_id=actor.request_id,
        address=actor.address,
    )


def change_of(row: Audited, verb: Verb) -> Change:
    """The values of columns before and after, in JSON; of an update, only those that differ."""
    state = inspect(row)
    before, after = {}, {}
    for attribute in state.mapper.column_attrs:
        column = attribute.columns[0]
        if column.info.get("secret") or attribute.key == "revision":
            continue
        history = state.attrs[attribute.key].history
        if verb == "updated" and not history.has_changes():
            continue
        current = as_json(getattr(row, attribute.key))
        before[attribute.key] = as_json(history.deleted[0]) if history.deleted else current
        after[attribute.key] = current
    return Change(before, after)


def as_json(value: object) -> object:
    """A column's value as the log, and an export, writes it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
