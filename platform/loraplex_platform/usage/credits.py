"""Credits burn in the order of time: each charge takes from the grants that hold at its moment.

A pure function of grants and charges, so that it does not matter in which order events arrived.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

Funding = Literal["promotion", "paid"]
FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Grant:
    """What is left of a grant."""

    id: str
    pico: int
    priority: int  # lower burns first
    effective_at: datetime
    expires_at: datetime | None
    created_at: datetime

    def holds_at(self, moment: datetime) -> bool:
        return self.effective_at <= moment < (self.expires_at or FOREVER)

    @property
    def order(self) -> tuple[int, datetime, datetime, str]:
        return self.priority, self.expires_at or FOREVER, self.created_at, self.id


def turning_points(grants: Iterable[Grant]) -> Iterator[datetime]:
    """The moments between which the same grants hold."""
    for grant in grants:
        yield grant.effective_at
        if grant.expires_at is not None:
            yield grant.expires_at


class Spent(NamedTuple):
    """Money that was owed from this moment on."""

    at: datetime
    pico: int


def burn(grants: Sequence[Grant], charges: Iterable[Spent]) -> dict[str, int]:
    """Pico-USD that each grant pays; a grant that pays nothing is not named."""
    left = {grant.id: grant.pico for grant in grants}
    in_order = sorted(grants, key=lambda grant: grant.order)
    for moment, owed in sorted(charges):
        for grant in in_order:
            if owed <= 0:
                break
            if grant.holds_at(moment):
                paid = min(owed, left[grant.id])
                left[grant.id] -= paid
                owed -= paid
    return {grant.id: used for grant in grants if (used := grant.pico - left[grant.id])}
