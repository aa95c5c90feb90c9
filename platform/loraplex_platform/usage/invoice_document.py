"""An invoice as a document: lines rounded once each, credits, tax, total; JSON and HTML."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader

from loraplex_platform.usage.charges import Amount, Item
from loraplex_platform.usage.money import PICO_PER_CENT, cents_of, cents_text, text_of
from loraplex_platform.usage.periods import Period

TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
BASIS_POINTS = 10_000
GIB_HOUR_BYTE_SECONDS = 2**30 * 3600
LABELS = {
    "uncached_prompt": "Input tokens",
    "cached_prompt": "Cached input tokens",
    "completion": "Output tokens",
    "hosting": "Adapter hosting",
}


class DraftLine(NamedTuple):
    """What one item of one month comes to on this invoice."""

    month: datetime
    item: Item
    amount: Amount

    @property
    def cents(self) -> int:
        return cents_of(self.amount.pico)


@dataclass(frozen=True, slots=True)
class Draft:
    """All that an invoice says, before it has a number."""

    period: Period
    lines: tuple[DraftLine, ...]
    fee_cents: int  # up to the minimum
    burned: Mapping[str, int]  # cents by grant
    tax_basis_points: int

    @property
    def subtotal_cents(self) -> int:
        return sum(line.cents for line in self.lines)

    @property
    def net_cents(self) -> int:
        return self.subtotal_cents + self.fee_cents - sum(self.burned.values())

    @property
    def tax_cents(self) -> int:
        return tax_cents_of(self.net_cents, self.tax_basis_points)

    @property
    def total_cents(self) -> int:
        return self.net_cents + self.tax_cents

    @property
    def exact_pico(self) -> int:
        """What the lines come to before rounding."""
        return sum(line.amount.pico for line in self.lines)

    @property
    def rounding_pico(self) -> int:
        return self.subtotal_cents * PICO_PER_CENT - self.exact_pico


def tax_cents_of(net_cents: int, basis_points: int) -> int:
    return cents_of(net_cents * PICO_PER_CENT * basis_points // BASIS_POINTS)


def basis_points_of(document: Mapping[str, Any]) -> int:
    """The tax rate that a document names."""
    return int(Decimal(document["tax"]["percent"]) * 100)


def description_of(item: Item) -> str:
    if item.kind == "hosting":
        return f"{LABELS[item.kind]}, {item.model}"
    return f"{LABELS[item.kind]}, {item.model}, tier {item.tier}"


def body_of(draft: Draft, zone: str) -> dict[str, Any]:
    """The part of the document that follows from the draft alone."""
    return {
        "period": {
            "start": _utc(draft.period.start),
            "end": _utc(draft.period.end),
            "time_zone": zone,
        },
        "currency": "USD",
        "lines": [_line(line, draft.period) for line in draft.lines],
        "subtotal": cents_text(draft.subtotal_cents),
        "minimum_fee": cents_text(draft.fee_cents),
        "credits": [
            {"grant": grant, "amount": cents_text(-cents)} for grant, cents in draft.burned.items()
        ],
        "tax": {
            "percent": f"{Decimal(draft.tax_basis_points) / 100:f}",
            "amount": cents_text(draft.tax_cents),
        },
        "total": cents_text(draft.total_cents),
    }


def canonical(document: Mapping[str, Any]) -> bytes:
    """The same bytes for the same document, on every machine."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def digest_of(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(document)).hexdigest()


def html_of(document: Mapping[str, Any], status: str) -> str:
    """A page that prints well and loads nothing."""
    return TEMPLATES.get_template("invoice.html").render(invoice=document, status=status)


def _line(line: DraftLine, period: Period) -> dict[str, Any]:
    item, amount = line.item, line.amount
    is_hosting = item.kind == "hosting"
    quantity = str(amount.quantity)
    if is_hosting:
        quantity = f"{Decimal(amount.quantity) / GIB_HOUR_BYTE_SECONDS:.6f}"
    return {
        "description": description_of(item),
        "kind": item.kind,
        "model": item.model,
        "adapter": item.adapter,
        "tier": item.tier,
        "month": _utc(line.month),
        "is_correction": line.month != period.start,
        "quantity": quantity,
        "unit": "GiB-hours" if is_hosting else "tokens",
        "unit_price": text_of(item.unit_pico),
        "exact_amount": text_of(amount.pico),
        "amount": cents_text(line.cents),
    }


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
