"""Which version answers a request: the name's, one of its number, or its canary."""

import hashlib
import re
from dataclasses import dataclass

from loraplex_platform.catalogue.defaults import NO_DEFAULTS, Defaults
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.db.remembered import Remembered
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import ModelNotFound, PermissionDenied
from loraplex_platform.kit.principal import Principal

KNOWN_S = 0.5  # how long another process's change may go unseen: commands promise a second
ADDRESS = re.compile(r"(?P<name>[^@]+)@(?P<number>[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Address:
    """What a client writes: `support`, or `support@2` for its second version."""

    name: str
    number: int | None

    @staticmethod
    def parse(text: str) -> "Address":
        match = ADDRESS.fullmatch(text)
        return Address(match["name"], int(match["number"])) if match else Address(text, None)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a name leads."""

    version: str
    defaults: Defaults = NO_DEFAULTS
    canary: str | None = None
    canary_percent: int = 0

    def version_for(self, caller: str) -> str:
        """The same for the same caller, until the canary or its share changes; a greater share
        moves callers to the canary and none away from it.
        """
        if self.canary is None:
            return self.version
        digest = hashlib.sha256(f"{self.canary} {caller}".encode()).digest()
        bucket = int.from_bytes(digest[:8], "big") % 100
        return self.canary if bucket < self.canary_percent else self.version


class Routes:
    """Reads the database at most once in KNOWN_S for each tenant and name."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._known: Remembered[tuple[str, str], Route] = Remembered(clock, KNOWN_S)
        database.news.subscribe(lambda tenants: self._known.forget(lambda key: key[0] in tenants))

    async def find(self, principal: Principal, model: str) -> Route:
        """Other tenants' names do not exist; a disabled name says so."""
        address = Address.parse(model)
        return await self._known.get(
            (principal.tenant_id, model), lambda: self._read(principal, model, address)
        )

    def forget(self) -> None:
        """A name has changed: this process sees it with the next request."""
        self._known.clear()

    async def _read(self, principal: Principal, model: str, address: Address) -> Route:
        async with self._database.reading(principal) as session:
            adapters = AdapterRepository(session)
            row = await adapters.name(principal, address.name)
            versions = await adapters.versions(principal, address.name)
        by_number = {each.number: each.version for each in versions}
        number = address.number or (row.current if row else 0)
        if row is None or number not in by_number:
            raise ModelNotFound(model)
        if not row.is_enabled:
            raise PermissionDenied(
                f"The model '{model}' is disabled.", param="model", code="model_disabled"
            )
        defaults = Defaults.model_validate(row.defaults)
        if address.number is not None or row.canary is None:
            return Route(by_number[number], defaults)
        canary = by_number.get(row.canary)
        return Route(by_number[number], defaults, canary, row.canary_percent or 0)
