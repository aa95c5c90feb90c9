"""Versions in slots, and what each needs of the device."""

from dataclasses import dataclass
from typing import NamedTuple


class Need(NamedTuple):
    """What a version takes of a device, and what it would cost to bring it back."""

    rank: int
    extra_bytes: int = 0  # of what lies outside the slabs
    num_bytes: int = 1
    reload_s: float = 1.0
    tenant: str | None = None


@dataclass(slots=True)
class Resident:
    """A version whose factors lie in a slot."""

    slot: int
    row_start: int
    need: Need
    used_s: float
    references: int = 0
    is_pinned: bool = False
    is_promised: bool = False  # its slot goes to a load in flight once that has been validated
    is_dropped: bool = False  # leaves with its last reference

    @property
    def is_evictable(self) -> bool:
        return not (self.references or self.is_pinned or self.is_promised)
