"""How values read: names without tricks, times, numbers."""

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from loraplex_platform.usage.money import PICO_PER_NANO, dollars
from loraplex_platform.usage.reconciliation import Between, Drift

# Marks that turn the direction of text or cannot be seen: a name must not dress up as another.
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
LONGEST = 300

DIMENSIONS = {
    "requests_per_minute": "Requests per minute",
    "tokens_per_minute": "Tokens per minute",
    "concurrent_requests": "Requests at a time",
    "queued_requests": "Requests in the queue",
    "tokens_per_day": "Tokens per day (UTC)",
    "tokens_per_month": "Tokens per month (UTC)",
    "adapter_bytes": "Bytes of adapters",
    "enqueued_batch_tokens": "Tokens that wait in batches",
    "budget_per_day": "Budget per day",
    "budget_per_month": "Budget per month",
}
REASONS = {
    "exceeded": "the limit was used up",
    "too_large": "one request alone exceeds the limit",
    "store_unavailable": "the shared limiter could not be reached",
}
SIDES: dict[Between, tuple[str, str, str]] = {
    "requests": ("events", "roll-ups", "requests"),
    "tokens": ("events", "roll-ups", "tokens"),
    "money": ("roll-ups at their prices", "the ledger", ""),
    "engine": ("engines", "events", "completion tokens"),
}
MEASURES = {"queue": "In queue", "ttft": "First token", "tpot": "Per token"}


def plain(value: Any) -> Any:
    """Jinja's finalizer: each text that a page shows goes through here."""
    if value is None:
        return "–"
    if type(value) is not str:  # markup is ours
        return value
    seen = INVISIBLE.sub("", value)
    return seen if len(seen) <= LONGEST else seen[:LONGEST] + "…"


def dimension(name: str) -> str:
    return DIMENSIONS.get(name, name.replace("_", " "))


def reason(name: str) -> str:
    return REASONS.get(name, name)


def drift(found: Drift) -> str:
    """Which side has more, and how much."""
    more, less, unit = SIDES[found.between]
    if found.amount < 0:
        more, less = less, more
    amount = abs(found.amount)
    text = money(amount) if found.between == "money" else f"{number(amount)} {unit}"
    return f"{more} have {text} more than {less}"


def measure(name: str) -> str:
    return MEASURES.get(name, name)


def number(value: float) -> str:
    """Thin spaces between thousands."""
    text = f"{value:,.1f}" if isinstance(value, float) and value != int(value) else f"{value:,.0f}"
    return text.replace(",", "\u202f")


def money(pico: int) -> str:
    """Dollars: to the cent, and where that is nothing, to the first two digits."""
    amount = dollars(pico)
    if amount and abs(amount) < Decimal("0.01"):
        return f"${Decimal(f'{amount:.1e}'):f}"
    return f"${number_with(amount, 2)}"


def number_with(value: Decimal, places: int) -> str:
    return f"{value:,.{places}f}".replace(",", "\u202f")


def quantity(value: int, dimension: str) -> str:
    """What a limit counts: requests, tokens, bytes, or nano-dollars."""
    if dimension.startswith("budget_"):
        return money(value * PICO_PER_NANO)
    return bytes_text(value) if dimension == "adapter_bytes" else number(value)


def bytes_text(value: int) -> str:
    size = Decimal(value)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def utc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def left(until: datetime, now: datetime) -> str:
    """How long until then, in the largest unit."""
    rest = until - now
    if rest >= timedelta(days=2):
        return f"{rest.days} days"
    hours = rest / timedelta(hours=1)
    return f"{hours:.0f} h" if hours >= 1.5 else f"{rest / timedelta(minutes=1):.0f} min"
