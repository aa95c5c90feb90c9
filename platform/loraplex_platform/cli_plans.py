"""`loraplex plans`: named bundles of standing and limits, and who is on them."""

from typing import Annotated

import typer

from loraplex_platform.admission.plans import PlanService
from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.service import TenantService

plans = typer.Typer(no_args_is_help=True, help="Plans: bundles of standing and limits.")


@plans.command("create")
def create_plan(
    name: str,
    weight: Annotated[float, typer.Option(help="Share of the engine.")] = 1.0,
    max_tier: Annotated[str, typer.Option(help="The best tier it may use.")] = "interactive",
    limit: Annotated[list[str] | None, typer.Option(help="DIMENSION=VALUE, repeatable.")] = None,
) -> None:
    """Create a plan."""

    async def work() -> None:
        values = {"weight": weight, "max_tier": max_tier, "limits": _limits(limit or [])}
        async with open_database() as database:
            plan = await PlanService(database, SystemClock()).create(name, values)
        typer.echo(f"{plan.name}  {plan.id}")

    run(work())


@plans.command("list")
def list_plans() -> None:
    """List plans with weight, best tier and limits."""

    async def work() -> None:
        async with open_database() as database:
            for plan in await PlanService(database, SystemClock()).page(limit=1000):
                limits = " ".join(f"{d}={v}" for d, v in sorted(plan.limits.items()))
                typer.echo(f"{plan.name}  {plan.weight:g}  {plan.max_tier}  {limits}".rstrip())

    run(work())


@plans.command("assign")
def assign_plan(name: str, tenant: TenantOption) -> None:
    """Put a tenant on a plan; its own settings and limits still go first."""

    async def work() -> None:
        async with open_database() as database:
            plan = await PlanService(database, SystemClock()).named(name)
            tenants = TenantService(database, SystemClock())
            owner = await tenants.get(tenant)
            await tenants.change(COMMAND_LINE, owner.id, {"plan_id": plan.id})

    run(work())


@plans.command("remove")
def remove_plan(name: str) -> None:
    """Remove a plan that no tenant is on."""

    async def work() -> None:
        async with open_database() as database:
            service = PlanService(database, SystemClock())
            await service.remove(COMMAND_LINE, (await service.named(name)).id)

    run(work())


def _limits(given: list[str]) -> dict[str, int]:
    limits = {}
    for text in given:
        dimension, _, value = text.partition("=")
        if not value.isdigit():
            raise InvalidRequest(f"not a limit: {text!r} (DIMENSION=VALUE)", param="limit")
        limits[dimension] = int(value)
    return limits
