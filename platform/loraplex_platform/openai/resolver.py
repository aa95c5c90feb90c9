"""What a request's `model` and `service_tier` mean within its tenant."""

from dataclasses import dataclass

from loraplex_engine.messages import TIERS, TenantShare, Tier
from loraplex_platform.catalogue.defaults import NO_DEFAULTS, Defaults
from loraplex_platform.catalogue.routes import KNOWN_S, Address, Routes
from loraplex_platform.db.database import Database
from loraplex_platform.db.remembered import Remembered
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import PermissionDenied
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.parameters import Parameters, ServiceTier
from loraplex_platform.tenants.repository import TenantRepository

TIER_OF: dict[ServiceTier, Tier] = {
    "flex": "batch",
    "default": "standard",
    "priority": "interactive",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What the database says of a tenant."""

    max_tier: str
    share: TenantShare
    stores_prompts: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What a request resolves to within its tenant."""

    adapter_version: str | None
    tier: Tier
    share: TenantShare
    defaults: Defaults = NO_DEFAULTS
    stores_prompts: bool = False


class Resolver:
    """Reads the database at most once in KNOWN_S for each tenant and each of its names."""

    def __init__(
        self, database: Database, base_id: str, clock: Clock, routes: Routes | None = None
    ) -> None:
        self._database = database
        self._routes = routes or Routes(database, clock)
        self._base_id = base_id
        self._known: Remembered[str, Known] = Remembered(clock, KNOWN_S)
        database.news.subscribe(self._forget)

    async def resolve(self, principal: Principal, request: Parameters) -> Target:
        """The adapter version behind a name; other tenants' names do not exist."""
        if not (
            principal.may_use(request.model) or principal.may_use(Address.parse(request.model).name)
        ):
            raise PermissionDenied(
                f"This key may not use the model '{request.model}'.",
                param="model",
                code="model_not_allowed",
            )
        known = await self._known.get(principal.tenant_id, lambda: self._look_up(principal))
        tier = _tier_of(request.service_tier, known.max_tier)
        if request.model == self._base_id:
            return Target(None, tier, known.share, stores_prompts=known.stores_prompts)
        route = await self._routes.find(principal, request.model)
        caller = f"key {principal.key_id}" if request.user is None else f"user {request.user}"
        version = route.version_for(caller)
        return Target(version, tier, known.share, route.defaults, known.stores_prompts)

    def _forget(self, tenants: frozenset[str | None]) -> None:
        """A plan's change may be anybody's."""
        self._known.forget(lambda tenant_id: tenant_id in tenants or None in tenants)

    async def _look_up(self, principal: Principal) -> Known:
        async with self._database.reading(principal) as session:
            tenants = TenantRepository(session)
            tenant = await tenants.own(principal)
            standing = await tenants.standing(tenant)
        return Known(standing.max_tier, standing.share(tenant.id), tenant.stores_prompts)


def check_region(principal: Principal, region: str) -> None:
    """Raises where the tenant's data may not be processed."""
    if principal.allowed_regions is not None and region not in principal.allowed_regions:
        raise PermissionDenied(
            f"Your data may not be processed in the region '{region}'.", code="region_not_allowed"
        )


def _tier_of(asked: ServiceTier | None, max_tier: str) -> Tier:
    """The tier to use: the one asked for, or the tenant's best one if that is lower."""
    wanted = "standard" if asked is None or asked == "auto" else TIER_OF[asked]
    return TIERS[max(TIERS.index(wanted), TIERS.index(max_tier))]
