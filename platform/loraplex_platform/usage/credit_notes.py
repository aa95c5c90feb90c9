"""Credit notes: a document that takes back an invoice, a line of it, or an amount."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.usage.invoice_document import basis_points_of, tax_cents_of
from loraplex_platform.usage.money import PICO_PER_CENT, cents_text, pico_of, text_of

Document = dict[str, Any]


class Wish(NamedTuple):
    """What is to be taken back: of one line or of all, so much or all that is left; before tax."""

    line: int | None = None  # from 1
    cents: int | None = None
    reason: str = ""


def whole_of(invoice: Document) -> Document:
    """The invoice, the other way round."""
    lines = [
        line | {name: _minus(line[name]) for name in ("quantity", "exact_amount", "amount")}
        for line in invoice["lines"]
    ]
    credits = [credit | {"amount": _minus(credit["amount"])} for credit in invoice["credits"]]
    tax = invoice["tax"] | {"amount": _minus(invoice["tax"]["amount"])}
    changed = {name: _minus(invoice[name]) for name in ("subtotal", "minimum_fee", "total")}
    return {"lines": lines, "credits": credits, "tax": tax} | changed


def part_of(invoice: Document, earlier: Sequence[Document], wish: Wish) -> Document:
    """A part of the invoice, with the tax on it; raises InvalidRequest beyond what earlier notes left.

    All the notes of an invoice come to its total and never to more, tax included.
    """
    taken = -sum(cents_in(note["subtotal"]) for note in earlier)
    left = cents_in(invoice["total"]) - cents_in(invoice["tax"]["amount"]) - taken
    if wish.line is not None:
        left = min(left, _left_of_line(invoice, earlier, wish.line))
    cents = left if wish.cents is None else wish.cents
    if not 0 < cents <= left:
        most = cents_text(max(0, left))
        raise InvalidRequest(f"at most {most} can be credited, before tax", param="amount")
    rate = basis_points_of(invoice)
    tax = tax_cents_of(taken + cents, rate) - tax_cents_of(taken, rate)
    return {
        "reason": wish.reason,
        "lines": [_line(invoice, wish, cents)],
        "subtotal": cents_text(-cents),
        "minimum_fee": cents_text(0),
        "credits": [],
        "tax": invoice["tax"] | {"amount": cents_text(-tax)},
        "total": cents_text(-cents - tax),
    }


def whole_cents(pico: int) -> int:
    """Raises InvalidRequest where an amount is finer than a cent."""
    cents, rest = divmod(pico, PICO_PER_CENT)
    if rest:
        raise InvalidRequest(f"{text_of(pico)} is finer than a cent", param="amount")
    return cents


def cents_in(amount: str) -> int:
    """Of an amount as documents say it."""
    return pico_of(amount) // PICO_PER_CENT


def _left_of_line(invoice: Document, earlier: Sequence[Document], number: int) -> int:
    if not 1 <= number <= len(invoice["lines"]):
        raise InvalidRequest(f"the invoice has no line {number}", param="line")
    taken = [line for note in earlier for line in note["lines"] if line["line"] == number]
    amounts = [invoice["lines"][number - 1], *taken]  # what was taken is negative
    return sum(cents_in(line["amount"]) for line in amounts)


def _line(invoice: Document, wish: Wish, cents: int) -> Document:
    """With the keys of an invoice's line; an amount has neither quantity nor price."""
    amount = {
        "line": wish.line,
        "quantity": "",
        "unit": "",
        "unit_price": "",
        "exact_amount": text_of(-cents * PICO_PER_CENT),
        "amount": cents_text(-cents),
        "is_correction": False,
    }
    if wish.line is not None:
        line: Document = invoice["lines"][wish.line - 1]
        return line | amount
    described = {"description": wish.reason or f"Credit on {invoice['number']}", "kind": "credit"}
    return described | dict.fromkeys(("model", "adapter", "tier", "month"), "") | amount


def _minus(amount: str) -> str:
    """Of a decimal number as text, with as many decimals."""
    if amount.strip("0.") == "":
        return amount
    return amount[1:] if amount.startswith("-") else f"-{amount}"
