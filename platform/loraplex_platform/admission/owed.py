"""What a process still has to tell the shared store: requests that ended, leases that did."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from loraplex_platform.admission.limits import Claim

MAX_OWED = 10_000


class Ending(NamedTuple):
    """A claim is settled with what was used; or, before that, some of its leases end."""

    claim: Claim
    actual: Mapping[str, int]
    is_final: bool = True  # False: the charges are leases that end, the claim stands


class Owed:
    """Endings by tenant, one for each request, oldest first; the oldest are lost when it is full.

    A claim whose ending is lost expires by itself.
    """

    def __init__(self, max_endings: int = MAX_OWED) -> None:
        self._max_endings = max_endings
        self._by_tenant: dict[str, dict[str, Ending]] = {}
        self._count = 0
        self._oldest: dict[str, str] = {}  # by tenant, as of the last look

    def __len__(self) -> int:
        return self._count

    @property
    def tenants(self) -> list[str]:
        return list(self._by_tenant)

    def left_over(self) -> list[str]:
        """Tenants of whom no request took along what was already owed at the last look."""
        before = self._oldest
        self._oldest = {tenant: next(iter(ends)) for tenant, ends in self._by_tenant.items()}
        return [tenant for tenant, oldest in self._oldest.items() if before.get(tenant) == oldest]

    def add(self, ending: Ending) -> None:
        """The end of a request includes the end of its leases."""
        claim = ending.claim
        endings = self._by_tenant.setdefault(claim.tenant, {})
        known = endings.get(claim.id)
        if known is not None and (known.is_final or not ending.is_final):
            return
        self._count += known is None
        endings[claim.id] = ending
        if self._count > self._max_endings:
            self.take(next(iter(self._by_tenant)), 1)

    def take(self, tenant: str, count: int) -> list[Ending]:
        """Up to so many, which the caller now has."""
        endings = self._by_tenant.get(tenant, {})
        taken = [endings.pop(id) for id in list(endings)[:count]]
        self._count -= len(taken)
        if not endings:
            self._by_tenant.pop(tenant, None)
        return taken

    def put_back(self, endings: Iterable[Ending]) -> None:
        """They could not be told; what came meanwhile is newer."""
        for ending in endings:
            self.add(ending)
