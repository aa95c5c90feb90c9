"""One of each thing that the console has a page for, so that every page can be looked at."""

from datetime import datetime, timedelta
from urllib.parse import quote

from tests.console_stand import ConsoleStand
from tests.platform_stand import add_adapter
from tests.usage_stand import facts

from loraplex_admin.app import PAGES
from loraplex_admin.visit import Page
from loraplex_platform.admission.service import Subject
from loraplex_platform.audit.trail import changing
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.service import COUNTERS
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.ids import uuid7
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import (
    BillingProfile,
    Delivery,
    InvoiceRow,
    Plan,
    RejectionCount,
    RejectionSamples,
    Tenant,
    Webhook,
)
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.invoice_document import digest_of
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.periods import floor_to
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import sums_of

Places = dict[str, str]
FILES = ("/audit/export", "/tenants/{tenant_id}/bills/invoices/{invoice_id}/document.json")
AWAY = "/oidc"  # there only where a provider is configured
ASKED = "/requests/{request_id}"
LOOKED_AT = [
    page
    for page in PAGES
    if page.method == "GET" and page.path not in FILES and not page.path.startswith(AWAY)
]
LOOKED_AT += [
    page._replace(path="/requests/{refused_id}") for page in LOOKED_AT if page.path == ASKED
]


def path_of(page: Page, places: Places) -> str:
    """The page of something that acme has."""
    quoted = {name: quote(place, safe="") for name, place in places.items()}
    return page.path.replace(":path}", "}").format(**quoted)


async def furnish(stand: ConsoleStand, key_id: str, name: str | None = None) -> Places:
    """acme's things; `name` is what every one of them is called, past all rules."""
    database, clock, now = stand.app.state.database, SystemClock(), SystemClock().now()
    called = name or "acme-thing"
    if name is not None:
        await _rename(stand, name)
        key_id = (await stand.app.state.keys.create(stand.acme, stand.project, name=name)).id
        await stand.app.state.people.invite(
            "a@b.c", "tenant_viewer", name=name, tenant_id=stand.acme
        )
        await stand.app.state.people.invite("b@b.c", "viewer", name=name)
    async with changing(database, COMMAND_LINE.actor, clock) as session:
        plan, webhook = _plan(called, now), _webhook(stand.acme, called, now)
        invoice = _invoice(stand.acme, called, now)
        session.add_all((plan, webhook, invoice))
        session.add(BillingProfile(tenant_id=stand.acme, legal_name=called, address=called))
        tenant = await session.get(Tenant, stand.acme)
        assert tenant is not None
        await session.flush()
        tenant.plan_id = plan.id
        delivery = _delivery(webhook, called, now)
        session.add(delivery)
    await add_adapter(database, stand.acme, called, version=called)
    event = _event(stand, key_id, called, now)
    async with database.unit_of_work() as session:
        await BatchRepository(session).add(_batch(stand, called, now))
        usage = UsageRepository(session)
        await usage.add_up(sums_of(await usage.add_new([event])))
    await _money_and_limits(stand, called, now)
    return {
        "tenant_id": stand.acme,
        "project_id": stand.project,
        "key_id": key_id,
        "person_id": "per_none",
        "level": "tenant",
        "subject": stand.acme,
        "dimension": "tokens_per_day",
        "request_id": event.request_id,
        "refused_id": await _refused(stand, key_id, now),
        "plan_id": plan.id,
        "webhook_id": webhook.id,
        "delivery_id": delivery.id,
        "batch_id": f"batch_{stand.acme}",
        "invoice_id": invoice.id,
        "month": f"{now:%Y-%m}",
        "name": called,
    }


async def _rename(stand: ConsoleStand, name: str) -> None:
    async with changing(stand.app.state.database, COMMAND_LINE.actor, SystemClock()) as session:
        tenants = TenantRepository(session)
        tenant = await tenants.find(COMMAND_LINE, stand.acme)
        project = await tenants.project(COMMAND_LINE, stand.acme, stand.project)
        assert tenant is not None
        assert project is not None
        tenant.name = project.name = name


async def _refused(stand: ConsoleStand, key_id: str, now: datetime) -> str:
    """A request that acme's key was turned away with; its id."""
    request_id = f"req_{uuid7(int(now.timestamp() * 1000), bytes(10)).hex}"
    limit = f"requests_per_minute:tenant:{stand.acme}"
    sample = {
        "at": now.isoformat(), "request_id": request_id, "reason": "exceeded", "limit": limit,
        "value": 5, "used": 5, "requested": 1, "retry_after_s": 12.0,
    }  # fmt: skip
    of_key = {"tenant_id": stand.acme, "key_id": key_id}
    minute = floor_to(now, timedelta(minutes=1))
    async with stand.app.state.database.unit_of_work() as session:
        session.add(RejectionSamples(**of_key, samples=[sample]))
        session.add(
            RejectionCount(**of_key, minute=minute, reason="exceeded", limit=limit, count=1)
        )
    return request_id


async def _money_and_limits(stand: ConsoleStand, called: str, now: datetime) -> None:
    state = stand.app.state
    of_tenant = Subject(stand.acme, "tenant", stand.acme)
    await state.limits.set(of_tenant, "tokens_per_day", 10**6, strict=False)
    day = now + timedelta(days=1)
    await state.limits.override(
        of_tenant, "tokens_per_day", 2 * 10**6, expires_at=day, reason=called
    )
    await state.credits.grant(stand.acme, called, PICO)
    await state.budgets.set(stand.acme, "tenant", stand.acme, "month", 100 * PICO, is_hard=False)


def _plan(called: str, now: datetime) -> Plan:
    limits = {"requests_per_minute": 600}
    return Plan(
        id="plan_1", name=called, weight=2.0, max_tier="standard", limits=limits, created_at=now
    )


def _webhook(tenant_id: str, called: str, now: datetime) -> Webhook:
    return Webhook(
        id=f"wh_{tenant_id}", tenant_id=tenant_id, url=f"https://example.com/{called}",
        events=[called], sealed_secret=b"", is_active=False, created_at=now,
    )  # fmt: skip


def _delivery(webhook: Webhook, called: str, now: datetime) -> Delivery:
    return Delivery(
        id=f"msg_{webhook.id}", tenant_id=webhook.tenant_id, webhook_id=webhook.id, type=called,
        data={}, created_at=now, attempts=1, next_attempt_at=None, delivered_at=None,
        last_answer=called,
    )  # fmt: skip


def _batch(stand: ConsoleStand, called: str, now: datetime) -> Batch:
    counters = dict.fromkeys(COUNTERS, 0) | {"total": 40, "completed": 9, "failed": 1}
    return Batch(
        id=f"batch_{stand.acme}", tenant_id=stand.acme, project_id=stand.project, key_id="k",
        rights={}, status="in_progress", endpoint="/v1/completions", completion_window="24h",
        input_file_id=called, model=called, request_metadata={called: called}, priority=0,
        created_at=now, in_progress_at=now, expires_at=now + timedelta(days=1), paused_at=now,
        **counters,
    )  # fmt: skip


def _invoice(tenant_id: str, called: str, now: datetime) -> InvoiceRow:
    line = {
        "description": called, "quantity": "9000", "unit": "tokens", "unit_price": "0.001",
        "amount": "9.00", "is_correction": False, "month": "2026-10-01T00:00:00Z",
    }  # fmt: skip
    document = {
        "title": "Invoice", "number": "INV-000001", "issuer": called, "tenant": tenant_id,
        "bill_to": {"name": called, "address": called}, "currency": "USD", "lines": [line],
        "period": {"start": "2026-10-01T00:00:00Z", "end": "2026-11-01T00:00:00Z",
                   "time_zone": "UTC"},
        "subtotal": "9.00", "minimum_fee": "0.00", "credits": [{"grant": called, "amount": "-1.00"}],
        "tax": {"percent": "0", "amount": "0.00"}, "total": "8.00",
        "finalized_at": "2026-11-01T02:00:00Z", "due_at": "2026-12-01T02:00:00Z",
    }  # fmt: skip
    return InvoiceRow(
        id=f"inv_{tenant_id}", tenant_id=tenant_id, number=1, period_start=now - timedelta(days=60),
        period_end=now - timedelta(days=30), total_cents=800, document=document,
        sha256=digest_of(document), finalized_at=now, due_at=now,
    )  # fmt: skip


def _event(stand: ConsoleStand, key_id: str, called: str, now: datetime) -> UsageFacts:
    return facts(
        stand.acme,
        project_id=stand.project,
        key_id=key_id,
        started_at=now,
        ended_at=now,
        model=called,
        adapter_version=called,
        error_code=called,
        end_user=called,
        client_request_id=called,
        request_metadata={called: called},
    )
