"""Plans: named bundles of standing and limits."""

from collections.abc import Mapping, Sequence

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.service import Subject, check_limit
from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import LimitsEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.models import Plan
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.tenants.schemas import DEFAULTS, check_name, check_standing


class PlanService:
    """A changed plan is felt by its tenants within a second."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self, name: str, values: Mapping[str, object], *, by: Administrator = COMMAND_LINE
    ) -> Plan:
        check_name(name, "plan")
        plan = Plan(id=new_id("plan"), name=name, limits={}, created_at=self._clock.now())
        _apply(plan, {**DEFAULTS, **values})
        try:
            async with changing(self._database, by, self._clock) as session:
                await TenantRepository(session).add(plan)
        except IntegrityError as error:
            raise Conflict(f"there is a plan {name!r} already", param="name") from error
        return plan

    async def page(
        self, *, after: str | None = None, limit: int = 20, order: str = ""
    ) -> Sequence[Plan]:
        async with self._database.reading() as session:
            return await TenantRepository(session).plans(after, limit, order)

    async def find(self, plan_id: str) -> Plan:
        async with self._database.reading() as session:
            return await _found(session, plan_id)

    async def named(self, name: str) -> Plan:
        async with self._database.reading() as session:
            plan = await TenantRepository(session).plan_named(name)
        if plan is None:
            raise NotFound(f"there is no plan {name!r}", param="plan")
        return plan

    async def change(
        self,
        by: Administrator,
        plan_id: str,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> Plan:
        try:
            async with changing(self._database, by, self._clock) as session:
                plan = await _found(session, plan_id)
                check_revision(plan, revision)
                _apply(plan, values)
                if "limits" in values:
                    await self._tell(session, plan)
        except IntegrityError as error:
            raise Conflict("there is a plan of this name already", param="name") from error
        return plan

    async def remove(self, by: Administrator, plan_id: str) -> None:
        """Only a plan that no tenant is on."""
        try:
            async with changing(self._database, by, self._clock) as session:
                await TenantRepository(session).remove(await _found(session, plan_id))
        except IntegrityError as error:
            raise Conflict("tenants are on this plan") from error

    async def _tell(self, session: AsyncSession, plan: Plan) -> None:
        """Each tenant on the plan."""
        now = self._clock.now()
        for tenant_id in await TenantRepository(session).on_plan(plan.id):
            payload = LimitsEvent("tenant", tenant_id, None)
            await emit(session, tenant_id, "limits.changed", payload, now)


def _apply(plan: Plan, values: Mapping[str, object]) -> None:
    check_standing(dict(values))
    limits = values.get("limits")
    for dimension, value in limits.items() if isinstance(limits, dict) else ():
        check_limit(dimension, value, Subject("", "tenant", plan.id))
    for name, value in values.items():
        setattr(plan, name, value)


async def _found(session: AsyncSession, plan_id: str) -> Plan:
    plan = await TenantRepository(session).plan(plan_id)
    if plan is None:
        raise NotFound(f"there is no plan {plan_id!r}", param="plan_id")
    return plan
