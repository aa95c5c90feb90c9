"""What is remembered is read once, by however many who ask at once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.exc import OperationalError

from loraplex_platform.db.remembered import OUTAGE_S, Remembered
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import Overloaded

FRESH_S = 0.5


class Reads:
    """A reading that goes on until it is told to end."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await self.may_end.wait()
        return number


async def lost() -> int:
    raise OperationalError("SELECT", {}, Exception("away"))


def at_once(number: int) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        return number

    return read


async def test_many_who_ask_at_once_share_one_reading() -> None:
    remembered, read = Remembered[str, int](ManualClock(), FRESH_S), Reads()
    asks = [asyncio.create_task(remembered.get("a", read)) for _ in range(10)]
    await asyncio.sleep(0)
    asks[0].cancel()  # who asked first leaves, and stops nobody else
    read.may_end.set()
    assert await asyncio.gather(*asks[1:]) == [1] * 9
    assert await remembered.get("a", read) == 1


@pytest.mark.parametrize("forget", [Remembered.clear, lambda r: r.forget(lambda key: key == "a")])
async def test_what_was_being_read_when_it_changed_is_not_kept(
    forget: Callable[[Remembered[str, int]], None],
) -> None:
    remembered, read = Remembered[str, int](ManualClock(), FRESH_S), Reads()
    before = asyncio.create_task(remembered.get("a", read))
    await asyncio.sleep(0)
    forget(remembered)
    after = asyncio.create_task(remembered.get("a", read))
    read.may_end.set()
    assert (await before, await after) == (1, 2)
    assert await remembered.get("a", read) == 2


async def test_without_a_database_the_last_reading_is_believed_for_a_while() -> None:
    clock = ManualClock()
    remembered = Remembered[str, int](clock, FRESH_S)
    assert await remembered.get("a", at_once(1)) == 1
    for _ in range(3):  # believing it does not make it any younger
        clock.advance(OUTAGE_S / 4)
        assert await remembered.get("a", lost) == 1
    clock.advance(OUTAGE_S / 4)
    with pytest.raises(Overloaded):
        await remembered.get("a", lost)
    assert await remembered.get("a", at_once(2)) == 2
