"""Limits in a response's headers, exactly as OpenAI writes them."""

from collections.abc import Sequence

from loraplex_platform.admission.limits import Charge, Reading


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
