"""What a request's `model` and `service_tier` mean within its tenant."""

from dataclasses import dataclass

from loraplex_engine.messages import TIERS, TenantShare, Tier
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.db.remembered import Remembered
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import ModelNotFound, PermissionDenied
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.parameters import Parameters, ServiceTier
from loraplex_platform.tenants.repository import TenantRepository

KNOWN_S = 0.5  # how long a tenant's change may go unseen: commands promise a second
TIER_OF: dict[ServiceTier, Tier] = {
    "flex": "batch",
    "default": "standard",
    "priority": "interactive",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What the database says of a tenant and a name of its own."""

    adapter_version: str | None
    max_tier: str
    share: TenantShare


@dataclass(frozen=True, slots=True)
class Target:
    """What a request resolves to within its tenant."""

    adapter_version: str | None
    tier: Tier
    share: TenantShare


class Resolver:
    """Reads the database at most once in KNOWN_S for each tenant and name."""

    def __init__(self, database: Database, base_id: str, clock: Clock) -> None:
        self._database = database
        self._base_id = base_id
        self._known: Remembered[tuple[str, str], Known] = Remembered(clock, KNOWN_S)

    async def resolve(self, principal: Principal, request: Parameters) -> Target:
        """The adapter version behind a name; other tenants' names do not exist."""
        if not principal.may_use(request.model):
            raise PermissionDenied(
                f"This key may not use the model '{request.model}'.",
                param="model",
                code="model_not_allowed",
            )
        known = await self._known.get(
            (principal.tenant_id, request.model), lambda: self._look_up(principal, request.model)
        )
        tier = _tier_of(request.service_tier, known.max_tier)
        return Target(known.adapter_version, tier, known.share)

    async def _look_up(self, principal: Principal, model: str) -> Known:
        async with self._database.reading() as session:
            tenants = TenantRepository(session)
            tenant = await tenants.own(principal)
            standing = await tenants.standing(tenant)
            version = None
            if model != self._base_id:
                adapter = await AdapterRepository(session).named(principal, model)
                if adapter is None:
                    raise ModelNotFound(model)
                version = adapter.version
        return Known(version, standing.max_tier, standing.share(tenant.id))


def _tier_of(asked: ServiceTier | None, max_tier: str) -> Tier:
    """The tier to use: the one asked for, or the tenant's best one if that is lower."""
    wanted = "standard" if asked is None or asked == "auto" else TIER_OF[asked]
    return TIERS[max(TIERS.index(wanted), TIERS.index(max_tier))]
