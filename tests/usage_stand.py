"""What tests of metering stand on: facts with defaults, and books over any database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from loraplex_engine.messages import TIERS
from loraplex_platform.audit.trail import changing
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import (
    Adapter,
    BillingProfile,
    LedgerEntry,
    PriceBookRow,
    Tenant,
    UsageEvent,
    UsageQuarter,
)
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.invoice_service import InvoiceService
from loraplex_platform.usage.meter import Meter
from loraplex_platform.usage.money import PICO_PER_CENT
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.prices import PriceBook
from loraplex_platform.usage.spool import Spool

NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)
LATER = datetime(2027, 1, 1, tzinfo=UTC)
BIG = {"prompt_tokens": 10**6, "cached_tokens": 0, "completion_tokens": 10**6}  # half a dollar
BASE_MODEL = "tiny"
LIST = {
    "prices": [
        {"kind": "uncached_prompt", "usd_per_million": "0.20"},
        {"kind": "cached_prompt", "usd_per_million": "0.05"},
        {"kind": "completion", "usd_per_million": "0.80"},
        {"kind": "completion", "usd_per_million": "1.00", "adapter": "*"},
    ],
    "tier_percent": {"interactive": 150, "batch": 50},
    "hosting_usd_per_gib_hour": "0.002",
}
numbers = count()


def book(
    content: Any = LIST, *, at: datetime = datetime(2026, 1, 1, tzinfo=UTC), **more: Any
) -> PriceBook:
    fields = {"id": "list", "tenant_id": None} | more
    return PriceBook.from_json(fields["id"], at, fields["tenant_id"], content)


def facts(tenant_id: str = "ten_a", **change: Any) -> UsageFacts:
    """A request of the base model: 100 prompt tokens, 40 of them cached, and 10 generated."""
    started_at = change.pop("started_at", NOON)
    usual: dict[str, Any] = {
        "request_id": f"req_{next(numbers):08}",
        "project_id": f"proj_{tenant_id}",
        "key_id": f"key_{tenant_id}",
        "endpoint": "/v1/chat/completions",
        "model": BASE_MODEL,
        "base_model": BASE_MODEL,
        "adapter_version": None,
        "tier": "standard",
        "outcome": "stop",
        "error_code": None,
        "sequences": 1,
        "attempts": 1,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 10,
        "recomputed_tokens": 0,
        "ended_at": started_at + timedelta(seconds=2),
        "queue_s": 0.01,
        "ttft_s": 0.2,
        "total_s": 2.0,
        "engine_s": 0.5,
        "region": "test",
    }
    return UsageFacts(tenant_id=tenant_id, started_at=started_at, **(usual | change))


@st.composite
def any_facts(draw: st.DrawFn, tenants: tuple[str, ...] = ("ten_a", "ten_b")) -> UsageFacts:
    """Requests of two tenants over four months, of every tier and outcome."""
    prompt = draw(st.integers(0, 5_000))
    version = draw(st.sampled_from([None, "version-1", "version-2"]))
    return facts(
        draw(st.sampled_from(tenants)),
        started_at=NOON + timedelta(minutes=draw(st.integers(-60 * 24 * 45, 60 * 24 * 75))),
        tier=draw(st.sampled_from(TIERS)),
        adapter_version=version,
        model=version or BASE_MODEL,
        outcome=draw(st.sampled_from(["stop", "length", "disconnect", "cancelled", "error"])),
        delivered=draw(st.booleans()),
        prompt_tokens=prompt,
        cached_tokens=draw(st.integers(0, prompt)),
        completion_tokens=draw(st.integers(0, 2_000)),
    )


async def two_tenants(database: Database) -> tuple[str, str]:
    """Their ids."""
    service = TenantService(database, SystemClock())
    return (await service.create("acme")).id, (await service.create("globex")).id


async def add_book(database: Database, book: PriceBook) -> None:
    """Publishes a book whose time has come already."""
    async with changing(database, COMMAND_LINE, SystemClock()) as session:
        session.add(
            PriceBookRow(
                id=book.id,
                tenant_id=book.tenant_id,
                effective_from=book.effective_from,
                content=book.to_json(),
                created_at=book.effective_from,
            )
        )


async def add_adapter_of(
    database: Database,
    tenant_id: str,
    *,
    num_bytes: int,
    created_at: datetime,
    name: str = "support",
) -> None:
    """An adapter as the catalogue remembers it."""
    async with database.unit_of_work() as session:
        await AdapterRepository(session).add(
            Adapter(
                id=f"adp_{tenant_id}_{name}",
                tenant_id=tenant_id,
                name=name,
                version=f"version-{name}",
                rank=8,
                num_bytes=num_bytes,
                manifest={},
                created_at=created_at,
                updated_at=created_at,
            )
        )


async def fifty_days(database: Database) -> Tenant:
    """acme: fifty days of requests, an adapter, prices of its own from July on, credits, tax and a zone."""
    tenant_id, _ = await two_tenants(database)
    credits = CreditService(database, ManualClock(NOON - timedelta(days=60)))
    profile = BillingProfile(
        tenant_id=tenant_id,
        zone="Asia/Kathmandu",
        legal_name="",
        address="",
        tax_basis_points=1900,
        minimum_fee_cents=5_000,
        payment_days=30,
        is_prepaid=False,
    )
    await credits.set_profile(profile)
    await credits.grant(tenant_id, "welcome", 17 * PICO_PER_CENT)
    await add_adapter_of(database, tenant_id, num_bytes=3 * 10**8, created_at=NOON)
    own = {"prices": [{"kind": "completion", "usd_per_million": "0.24"}]}
    change = datetime(2026, 6, 20, 5, 15, tzinfo=UTC)
    await add_book(database, book(own, id="own", at=change, tenant_id=tenant_id))
    await post(
        database,
        [
            facts(
                tenant_id,
                started_at=NOON + timedelta(hours=5, minutes=11) * n,
                prompt_tokens=100_000 + n,
                completion_tokens=7_777,
                tier=("interactive", "standard", "batch")[n % 3],
                adapter_version="version-support" if n % 2 else None,
                model="=SUM(A1)" if n % 2 else "tiny",
                request_metadata={"team": "ops"} if n % 5 else None,
            )
            for n in range(200)
        ],
    )
    return await TenantService(database, SystemClock()).get("acme")


def books_of(database: Database, clock: ManualClock | None = None) -> Books:
    clock = clock or ManualClock(NOON)
    return Books(PriceService(database, clock), clock)


@asynccontextmanager
async def metering(database: Database, folder: Path, **more: Any) -> AsyncIterator[Meter]:
    meter = Meter(database, books_of(database), Spool(folder), **more)
    yield meter
    meter.close()


async def post(database: Database, events: list[UsageFacts], books: Books | None = None) -> int:
    async with database.unit_of_work() as session:
        return await (books or books_of(database)).post(session, events)


async def entries_of(database: Database) -> dict[tuple[str, str], int]:
    async with database.reading() as session:
        rows = await session.scalars(across_tenants(LedgerEntry))
        return {(row.transaction_id, row.account): row.pico for row in rows}


async def quarters_of(database: Database) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Rows of the quarter hours: key columns to the others."""
    columns = UsageQuarter.__table__.columns
    async with database.reading() as session:
        rows = list(await session.scalars(across_tenants(UsageQuarter)))
    keys = [column.name for column in columns if column.primary_key]
    sums = [column.name for column in columns if not column.primary_key]
    return {
        tuple(getattr(row, key) for key in keys): tuple(getattr(row, sum) for sum in sums)
        for row in rows
    }


async def num_events(database: Database) -> int:
    async with database.reading() as session:
        return len(list(await session.scalars(across_tenants(UsageEvent))))


def invoices_of(database: Database, now: datetime = LATER) -> InvoiceService:
    return InvoiceService(database, ManualClock(now), "Example Inc.", "Way 7; 12345 Town")


async def acme_of(database: Database) -> Tenant:
    await two_tenants(database)
    return await TenantService(database, SystemClock()).get("acme")
