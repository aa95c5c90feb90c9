"""What an invoice moves in the ledger: usage itself was booked when it happened."""

from collections.abc import Iterable
from datetime import datetime

from loraplex_platform.usage.billing_models import InvoiceRow, LedgerEntry
from loraplex_platform.usage.invoice_document import Draft
from loraplex_platform.usage.ledger import Transaction, charge, transfer
from loraplex_platform.usage.money import PICO_PER_CENT, pico_of
from loraplex_platform.usage.periods import BUCKET


def final_postings(row: InvoiceRow, draft: Draft) -> list[Transaction]:
    """Hosting, fee, rounding, tax and credits; afterwards the invoice's total is owed, to the cent."""
    tenant, at = row.tenant_id, row.period_end - BUCKET  # within the month
    hosting = sum(line.amount.pico for line in draft.lines if line.item.kind == "hosting")
    fee, tax = draft.fee_cents * PICO_PER_CENT, draft.tax_cents * PICO_PER_CENT
    return [
        charge(f"hosting:{row.id}", tenant, "hosting", at, hosting),
        charge(f"fee:{row.id}", tenant, "fee", at, fee),
        transfer(
            f"rounding:{row.id}",
            tenant,
            "rounding",
            at,
            draft.rounding_pico,
            debit="receivable",
            credit="rounding",
        ),
        transfer(f"tax:{row.id}", tenant, "tax", at, tax, debit="receivable", credit="tax"),
        *(
            transfer(
                f"burn:{row.id}:{grant}",
                tenant,
                "burn",
                at,
                cents * PICO_PER_CENT,
                debit="credit",
                credit="receivable",
            )
            for grant, cents in draft.burned.items()
        ),
    ]


def payment(row: InvoiceRow, now: datetime) -> Transaction:
    pico = row.total_cents * PICO_PER_CENT
    return transfer(
        f"payment:{row.id}",
        row.tenant_id,
        "payment",
        now,
        pico,
        debit="cash",
        credit="receivable",
    )


def credited(note: InvoiceRow, now: datetime) -> Transaction:
    """What a credit note takes back of earnings and of tax, the tenant owes no more."""
    total = note.total_cents * PICO_PER_CENT
    tax = pico_of(note.document["tax"]["amount"])
    return Transaction(
        f"credit_note:{note.id}",
        note.tenant_id,
        "credit_note",
        now,
        {"revenue": tax - total, "tax": -tax, "receivable": total},
    )


def reversal(entries: Iterable[LedgerEntry], row: InvoiceRow, now: datetime) -> list[Transaction]:
    """All that the invoice posted, the other way round."""
    pico: dict[str, dict[str, int]] = {}
    for entry in entries:
        pico.setdefault(entry.transaction_id, {})[entry.account] = -entry.pico
    return [
        Transaction(f"void:{id}", row.tenant_id, "reversal", now, accounts)  # type: ignore[arg-type]
        for id, accounts in pico.items()
    ]
