"""Plans and overrides: what binds a tenant at a moment, and where each value comes from."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from loraplex_platform.admission.effective import CACHE_S, EffectiveLimits
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import Conflict, InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.service import TenantService

RPM = "requests_per_minute"


@dataclass
class Stand:
    clock: ManualClock
    plans: PlanService
    limits: LimitService
    tenants: TenantService
    serving: EffectiveLimits  # of a process that knows nothing of the changes
    tenant: Tenant

    @property
    def whole(self) -> Subject:
        return Subject(self.tenant.id, "tenant", self.tenant.id)

    @property
    def principal(self) -> Principal:
        return Principal(self.tenant.id, "proj", "key")

    async def join(self, **limits: int) -> None:
        plan = await self.plans.create("gold", {"weight": 4.0, "limits": limits})
        await self.tenants.change(COMMAND_LINE, self.tenant.id, {"plan_id": plan.id})

    async def shown(self) -> list[tuple[int, str]]:
        return [(e.limit.value, e.source) for e in await self.limits.effective(self.principal)]

    async def felt(self) -> list[int]:
        """What a server admits by, once its cache is old."""
        self.clock.advance(CACHE_S)
        return [limit.value for limit in await self.serving.of(self.principal)]


@pytest.fixture
async def stand(database: Database) -> Stand:
    clock = ManualClock()
    tenants = TenantService(database, clock)
    return Stand(
        clock,
        PlanService(database, clock),
        LimitService(database, clock),
        tenants,
        EffectiveLimits(database, clock),
        await tenants.create("acme"),
    )


async def test_own_limit_goes_before_the_plans(stand: Stand) -> None:
    await stand.join(**{RPM: 100})
    assert await stand.shown() == [(100, "plan")]
    await stand.limits.set(stand.whole, RPM, 50, strict=False)
    assert await stand.shown() == [(50, "rule")]
    assert await stand.felt() == [50]


async def test_override_holds_until_it_expires_and_is_never_felt_later(stand: Stand) -> None:
    await stand.join(**{RPM: 100})
    ends = stand.clock.now() + timedelta(days=1)
    await stand.limits.override(stand.whole, RPM, 500, expires_at=ends, reason="launch")
    assert await stand.shown() == [(500, "override")]
    assert await stand.felt() == [500]
    stand.clock.advance((ends - stand.clock.now()).total_seconds())
    assert await stand.shown() == [(100, "plan")]
    assert await stand.felt() == [100]


async def test_override_ends_on_the_moment_though_it_is_cached(stand: Stand) -> None:
    ends = stand.clock.now() + timedelta(seconds=CACHE_S * 1.5)
    await stand.limits.override(stand.whole, RPM, 500, expires_at=ends)
    assert await stand.felt() == [500]
    stand.clock.advance(CACHE_S / 2)
    assert list(await stand.serving.of(stand.principal)) == []


async def test_removed_override_gives_way_at_once(stand: Stand) -> None:
    await stand.limits.set(stand.whole, RPM, 50, strict=True)
    await stand.limits.override(stand.whole, RPM, 500, expires_at=None)
    await stand.limits.end_override(stand.whole, RPM)
    assert await stand.shown() == [(50, "rule")]


async def test_standing_is_the_tenants_own_before_the_plans(stand: Stand) -> None:
    await stand.join()
    await stand.tenants.change(COMMAND_LINE, stand.tenant.id, {"max_tier": "standard"})
    standing = await stand.tenants.standing(await stand.tenants.get("acme"))
    assert (standing.weight, standing.max_tier) == (4.0, "standard")
    assert standing.sources["weight"] == "plan"
    assert standing.sources["max_tier"] == "tenant"
    assert standing.sources["kv_share"] == "default"


async def test_changed_plan_is_felt_by_its_tenants(stand: Stand) -> None:
    await stand.join(**{RPM: 100})
    plan = await stand.plans.named("gold")
    await stand.plans.change(COMMAND_LINE, plan.id, {"limits": {RPM: 200}})
    assert await stand.felt() == [200]


async def test_plan_in_use_stays(stand: Stand) -> None:
    await stand.join()
    plan = await stand.plans.named("gold")
    with pytest.raises(Conflict):
        await stand.plans.remove(COMMAND_LINE, plan.id)
    await stand.tenants.change(COMMAND_LINE, stand.tenant.id, {"plan_id": None})
    await stand.plans.remove(COMMAND_LINE, plan.id)


@pytest.mark.parametrize("limits", [{"smiles_per_minute": 1}, {RPM: -1}, {"adapter_bytes": -1}])
async def test_plan_with_a_limit_that_cannot_be_kept_is_refused(
    stand: Stand, limits: dict[str, int]
) -> None:
    with pytest.raises(InvalidRequest):
        await stand.plans.create("gold", {"limits": limits})


async def test_override_that_is_over_already_is_refused(stand: Stand) -> None:
    with pytest.raises(InvalidRequest):
        await stand.limits.override(stand.whole, RPM, 1, expires_at=stand.clock.now())
