"""What operators do with money, batches and webhooks is in the audit log, in their name."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.usage_stand import NOON, facts, post, two_tenants

from loraplex_platform.audit.repository import AuditFilter
from loraplex_platform.audit.service import AuditService
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.repository import BatchFilter, BatchRepository
from loraplex_platform.batches.service import COUNTERS, BatchService
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.principal import Actor, Administrator
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import BillingProfile
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending
from loraplex_platform.webhooks.sender import Sender
from loraplex_platform.webhooks.service import WebhookService

SHE = Administrator(Actor("person", "per_she", "she@example.com"), "owner")
CLOCK = ManualClock(datetime(2026, 8, 1, tzinfo=UTC))


async def told(database: Database) -> list[str]:
    """What the log says that she did, in this order."""
    events = await AuditService(database).page(SHE, AuditFilter(actor_id="per_she"), limit=100)
    return [event.action for event in reversed(events)]


async def test_money_is_moved_in_somebodys_name(database: Database) -> None:
    acme, _ = await two_tenants(database)
    await post(database, [facts(acme, started_at=NOON, prompt_tokens=10**6)])
    credits = CreditService(database, CLOCK)
    budgets = BudgetService(database, CLOCK, Spending(PriceService(database, CLOCK)))
    invoices = InvoiceService(database, CLOCK, "Example Inc.")
    tenant = await TenantService(database, CLOCK).get("acme")
    await credits.grant(acme, "welcome", PICO, by=SHE)
    profile = BillingProfile(
        tenant_id=acme, zone="UTC", legal_name="Acme", address="", tax_basis_points=0,
        minimum_fee_cents=0, payment_days=14,
    )  # fmt: skip
    await credits.set_profile(profile, by=SHE)
    await budgets.set(acme, "tenant", acme, "month", PICO, is_hard=True, by=SHE)
    await budgets.remove("tenant", acme, "month", by=SHE)
    row = await invoices.finalize(tenant, Month(2026, 6), by=SHE)
    await invoices.void(row.id, by=SHE)
    again = await invoices.finalize(tenant, Month(2026, 6), by=SHE)
    await invoices.pay(again.id, by=SHE)
    assert await told(database) == [
        "credit_grant.created",
        "billing_profile.created",
        "budget.created",
        "budget.deleted",
        "invoice.created",
        "invoice.created",  # the credit note
        "invoice.updated",
        "invoice.created",
        "invoice.updated",
    ]


async def test_batch_is_paused_in_somebodys_name_and_only_where_it_is_seen(
    database: Database,
) -> None:
    acme, globex = await two_tenants(database)
    made = Batch(
        id="batch_1", tenant_id=acme, project_id="p", key_id="k", rights={}, status="validating",
        endpoint="/v1/completions", completion_window="24h", input_file_id="file_1", priority=0,
        created_at=CLOCK.now(), expires_at=CLOCK.now(), **dict.fromkeys(COUNTERS, 0),
    )  # fmt: skip
    async with database.unit_of_work() as session:
        await BatchRepository(session).add(made)
    batches = BatchService(database, None, CLOCK)
    await batches.pause("batch_1", by=SHE)
    await batches.resume("batch_1", by=SHE)
    assert await told(database) == ["batch.paused", "batch.resumed"]
    other = Administrator(Actor("person", "per_it"), "tenant_admin", globex)
    with pytest.raises(NotFound):
        await batches.pause("batch_1", by=other)
    with pytest.raises(NotFound):
        await batches.find(other, "batch_1")
    assert await batches.seen(other, BatchFilter(acme)) == []


async def test_delivery_is_sent_again_in_somebodys_name(database: Database, tmp_path: Path) -> None:
    acme, globex = await two_tenants(database)
    secrets = Secrets.load_or_create(tmp_path)
    webhooks = WebhookService(database, secrets, Sender(), CLOCK)
    made = (await webhooks.create(SHE, acme, "https://example.com/hook", ["*"])).webhook
    other = (await webhooks.create(SHE, globex, "https://example.com/hook", ["*"])).webhook
    delivery = await webhooks.test(SHE, acme, made.id)
    again = await webhooks.replay(SHE, acme, made.id, delivery.id)
    assert (again.id, again.attempts, again.next_attempt_at) == (delivery.id, 0, CLOCK.now())
    with pytest.raises(NotFound):
        await webhooks.replay(SHE, globex, other.id, delivery.id)
    assert (await told(database))[2:] == ["webhook.tested", "webhook.replayed"]
