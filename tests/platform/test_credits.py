"""Credits: each granted once, burnt in an order that does not depend on what arrives when."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage_stand import (
    BIG,
    NOON,
    acme_of,
    facts,
    post,
)

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import Conflict
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.credits import Grant, Spent, burn
from loraplex_platform.usage.money import PICO


async def test_a_grant_key_grants_once(database: Database) -> None:
    acme = await acme_of(database)
    credits = CreditService(database, ManualClock(NOON))
    await credits.grant(acme.id, "k", PICO, funding="paid", expires_at=NOON + timedelta(days=30))
    with pytest.raises(Conflict):
        await credits.grant(acme.id, "k", PICO)
    await post(database, [facts(acme.id, started_at=NOON + timedelta(hours=1), **BIG)])
    state = await credits.balance(acme.id)
    assert (state.settled_pico, state.available_pico) == (PICO, PICO // 2)


def grant(id: str, pico: int, priority: int = 1, expires_in: int | None = None) -> Grant:
    expires = None if expires_in is None else NOON + timedelta(days=expires_in)
    return Grant(id, pico, priority, NOON, expires, NOON)


def test_grants_burn_by_priority_then_expiry_while_they_hold() -> None:
    grants = [grant("c", 100), grant("b", 5, 1, 9), grant("a", 5, 1, 3), grant("z", 100, 2)]
    at = [Spent(NOON + timedelta(days=day), 7) for day in (1, 4)]
    assert burn(grants, at) == {"a": 5, "b": 5, "c": 4}
    assert burn(grants, [Spent(NOON - timedelta(days=1), 7)]) == {}


@given(st.permutations(range(8)))
def test_credits_do_not_depend_on_arrival(order: list[int]) -> None:
    grants = [grant("a", 10, 2, 3), grant("b", 12, 1), grant("c", 7, 1, 5)]
    charges = [Spent(NOON + timedelta(days=day), 3 + day) for day in range(8)]
    assert burn(grants, [charges[i] for i in order]) == burn(grants, charges)
