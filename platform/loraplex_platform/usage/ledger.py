"""The ledger: double entry, append-only; each transaction adds up to zero and is posted once.

An account belongs to a tenant. Debits are positive: `receivable` is what the tenant owes, `credit`
(negative) is what we owe it in prepaid or given usage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Account = Literal["receivable", "revenue", "credit", "promotion", "cash", "tax", "rounding"]
TransactionKind = Literal[
    "usage",
    "hosting",
    "fee",
    "tax",
    "rounding",
    "grant",
    "burn",
    "payment",
    "reversal",
    "credit_note",
]


@dataclass(frozen=True, slots=True)
class Transaction:
    """The id is made of what it is about, so that posting it again changes nothing."""

    id: str
    tenant_id: str
    kind: TransactionKind
    occurred_at: datetime
    pico: Mapping[Account, int]  # debits are positive

    def __post_init__(self) -> None:
        assert sum(self.pico.values()) == 0, f"{self.id} does not add up to zero"

    def rows(self, posted_at: datetime) -> list[dict[str, Any]]:
        """One entry for each account that moves; none where nothing does."""
        return [
            {
                "transaction_id": self.id,
                "tenant_id": self.tenant_id,
                "account": account,
                "kind": self.kind,
                "occurred_at": self.occurred_at,
                "posted_at": posted_at,
                "pico": pico,
            }
            for account, pico in self.pico.items()
            if pico
        ]


def transfer(
    id: str,
    tenant_id: str,
    kind: TransactionKind,
    occurred_at: datetime,
    pico: int,
    *,
    debit: Account,
    credit: Account,
) -> Transaction:
    """Money moves from one account to another."""
    return Transaction(id, tenant_id, kind, occurred_at, {debit: pico, credit: -pico})


def charge(
    id: str, tenant_id: str, kind: TransactionKind, occurred_at: datetime, pico: int
) -> Transaction:
    """The tenant owes more, and we have earned it."""
    return transfer(id, tenant_id, kind, occurred_at, pico, debit="receivable", credit="revenue")
