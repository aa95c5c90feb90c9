"""The bill that README and deploy/docs/billing.md compute by hand."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from tests.usage_stand import NOON, add_adapter_of, facts, post, two_tenants

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import text_of
from loraplex_platform.usage.periods import Period

JUNE = Period(datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC))

ROOT = Path(__file__).parents[2]


def products_in(page: str) -> list[tuple[Fraction, Decimal]]:
    """What each row of a bill multiplies, exactly, and what it says that this comes to."""
    rows = re.findall(r"^\|[^|]*\| ([^|]* × [^|]*) \| ([0-9.]+) \|$", page, re.MULTILINE)
    return [(product_of(left), Decimal(right)) for left, right in rows]


def product_of(text: str) -> Fraction:
    product = Fraction(1)
    for factor in text.split("×"):
        product *= Fraction(re.search(r"[0-9][0-9,./]*", factor).group().replace(",", ""))
    return product


def test_readme_and_the_billing_page_multiply_rightly() -> None:
    for name in ("README.md", "deploy/docs/billing.md"):
        rows = products_in((ROOT / name).read_text())
        assert len(rows) == 6, name
        for product, stated in rows:
            assert product == Fraction(stated), name
        assert sum(stated for _, stated in rows) == Decimal("0.29821875")


async def test_one_tenants_bill_by_hand_is_the_ledgers(database: Database) -> None:
    acme_id, _ = await two_tenants(database)
    await add_adapter_of(database, acme_id, num_bytes=3 * 2**20, created_at=JUNE.start)
    asked = {"model": "support", "adapter_version": "version-support", "prompt_tokens": 10**6}
    await post(
        database,
        [
            facts(acme_id, **asked, cached_tokens=400_000, completion_tokens=200_000),
            facts(acme_id, **asked, cached_tokens=0, completion_tokens=200_000, tier="batch"),
            facts(acme_id, **asked, cached_tokens=0, outcome="error", delivered=False),
        ],
    )
    acme = await TenantService(database, SystemClock()).get("acme")
    later = ManualClock(NOON.replace(month=8))
    row = await InvoiceService(database, later, "Example").finalize(acme, Month(2026, 6))
    async with database.reading() as session:
        earned = -await LedgerRepository(session).balance(acme.id, "revenue", period=JUNE)
    [stated] = re.findall(r"\*\*ledger\*\*[ |]*\*\*([0-9.]+)\*\*", (ROOT / "README.md").read_text())
    assert text_of(earned) == stated
    lines = [(line["kind"], line["tier"], line["amount"]) for line in row.document["lines"]]
    assert sorted(lines) == [
        ("cached_prompt", "standard", "0.01"),
        ("completion", "batch", "0.05"),
        ("completion", "standard", "0.10"),
        ("hosting", "", "0.00"),
        ("uncached_prompt", "batch", "0.06"),
        ("uncached_prompt", "standard", "0.07"),
    ]
    assert row.document["total"] == "0.29"
