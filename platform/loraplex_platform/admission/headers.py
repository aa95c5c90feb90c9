"""Limits in a response's headers, exactly as OpenAI writes them."""

import math
from collections.abc import Sequence

from loraplex_platform.admission.limits import Charge, Reading

LONGEST_RETRY_S = 60.0  # the official clients do not wait longer by themselves


def limit_headers(charges: Sequence[Charge], readings: Sequence[Reading]) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the tightest rate of each unit."""
    headers: dict[str, str] = {}
    for unit in ("requests", "tokens"):
        rates = [
            (max(0, limit.value - reading.used), limit.value, reading.reset_ms)
            for (limit, _), reading in zip(charges, readings, strict=True)
            if limit.dimension.kind == "rate" and limit.dimension.unit == unit
        ]
        if rates:
            remaining, limit, reset_ms = min(rates)
            headers[f"x-ratelimit-limit-{unit}"] = str(limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(remaining)
            headers[f"x-ratelimit-reset-{unit}"] = go_duration(reset_ms)
    return headers


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """When to come back; None: never with the same request."""
    if retry_after_s is None:
        return {"x-should-retry": "false"}
    return {
        "retry-after": str(math.ceil(retry_after_s)),
        "retry-after-ms": str(math.ceil(retry_after_s * 1000)),
        "x-should-retry": "true" if retry_after_s <= LONGEST_RETRY_S else "false",
    }


def go_duration(milliseconds: int) -> str:
    """As Go prints a time.Duration: 0s, 12ms, 1.5s, 6m0s, 1h0m0.25s."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
