"""Sums of events by quarter hour and by minute, and latency histograms by minute."""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.models import LatencyMinute, UsageEvent, UsageMinute, UsageQuarter
from loraplex_platform.usage.periods import BUCKET, floor_to
from loraplex_platform.usage.rating import sku_of, tokens_of

MINUTE = timedelta(minutes=1)
MINUTES_KEPT = timedelta(hours=48)
Measure = Literal["queue", "ttft", "tpot"]
Event = UsageFacts | UsageEvent
# Upper edges; the last bin has none. Fixed, so that histograms of any two minutes add up.
BIN_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Sums(NamedTuple):
    """Rows to be added up in each table."""

    quarters: list[dict[str, Any]]
    minutes: list[dict[str, Any]]
    latencies: list[dict[str, Any]]


def sums_of(events: Iterable[Event]) -> Sums:
    """Each row once, whatever the number of events that belong to it."""
    quarters: dict[tuple[Any, ...], dict[str, Any]] = {}
    minutes: dict[tuple[Any, ...], dict[str, Any]] = {}
    latencies: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in events:
        counts = _counts(event)
        for table, width, rows in (
            (UsageQuarter, BUCKET, quarters),
            (UsageMinute, MINUTE, minutes),
        ):
            keys = _keys(event) | {"bucket": floor_to(event.started_at, width)}
            _add(rows, keys, counts, table.__tablename__)
        for keys in _latency_keys(event):
            _add(latencies, keys, {"count": 1}, LatencyMinute.__tablename__)
    return Sums(list(quarters.values()), list(minutes.values()), list(latencies.values()))


def _add(
    rows: dict[tuple[Any, ...], dict[str, Any]],
    keys: dict[str, Any],
    counts: dict[str, int],
    table: str,
) -> None:
    row = rows.setdefault((table, *keys.values()), keys | dict.fromkeys(counts, 0))
    for name, count in counts.items():
        row[name] += count


def _keys(event: Event) -> dict[str, Any]:
    return {
        "tenant_id": event.tenant_id,
        "project_id": event.project_id,
        "key_id": event.key_id,
        "model": event.model,
        "base_model": event.base_model,
        "adapter": sku_of(event).adapter,
        "tier": event.tier,
    }


def _counts(event: Event) -> dict[str, int]:
    paid = tokens_of(event)
    return {
        "requests": 1,
        "failed_requests": int(event.outcome == "error"),
        "uncached_prompt_tokens": paid.uncached_prompt,
        "cached_prompt_tokens": paid.cached_prompt,
        "completion_tokens": paid.completion,
        "unbilled_tokens": event.prompt_tokens + event.completion_tokens - sum(paid),
        "recomputed_tokens": event.recomputed_tokens,
        "generated_tokens": event.completion_tokens + event.discarded_tokens,
    }


def _latency_keys(event: Event) -> Iterable[dict[str, Any]]:
    measures: dict[Measure, float | None] = {
        "queue": event.queue_s,
        "ttft": event.ttft_s,
        "tpot": _tpot_s(event),
    }
    for measure, seconds in measures.items():
        if seconds is not None:
            yield {
                "bucket": floor_to(event.started_at, MINUTE),
                "tenant_id": event.tenant_id,
                "model": event.model,
                "tier": event.tier,
                "measure": measure,
                "bin": bisect_left(BIN_EDGES_S, seconds),
            }


def _tpot_s(event: Event) -> float | None:
    """Seconds between two tokens of a sequence, after its first one."""
    steps = event.completion_tokens / max(1, event.sequences) - 1
    if event.ttft_s is None or steps <= 0:
        return None
    return (event.total_s - event.ttft_s) / steps


def quantile_s(counts: dict[int, int], share: float) -> float | None:
    """The upper edge of the bin in which the share is reached; None without counts."""
    wanted, seen = share * sum(counts.values()), 0
    for bin, count in sorted(counts.items()):
        seen += count
        if seen >= wanted:
            return BIN_EDGES_S[min(bin, len(BIN_EDGES_S) - 1)]
    return None
