"""Usage events as rows of a table, and as CloudEvents."""

import json
from typing import Any

from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.money import text_of
from loraplex_platform.usage.prices import Tariffs
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of

TEXTS = [
    "request_id",
    "tenant_id",
    "project_id",
    "key_id",
    "endpoint",
    "model",
    "base_model",
    "adapter_version",
    "tier",
    "outcome",
    "error_code",
    "region",
    "job_id",
    "end_user",
    "client_request_id",
]
INTEGERS = [
    "sequences",
    "attempts",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "recomputed_tokens",
    "discarded_tokens",
]
SECONDS = ["queue_s", "ttft_s", "total_s", "engine_s"]
COLUMNS: dict[str, str] = (
    dict.fromkeys(TEXTS, "text")
    | {"delivered": "text", "started_at": "text", "ended_at": "text"}
    | dict.fromkeys(INTEGERS, "integer")
    | dict.fromkeys(SECONDS, "seconds")
    | {"metadata": "text", "price_book": "text", "cost_usd": "number"}
)
NUMBERS = frozenset(name for name, kind in COLUMNS.items() if kind != "text")


def row_of(event: UsageEvent, tariffs: Tariffs) -> dict[str, Any]:
    """Facts, and what they cost by the book that held."""
    tariff = tariffs.at(event.started_at)
    metadata = event.request_metadata
    return {
        **{name: getattr(event, name) for name in (*TEXTS, *INTEGERS, *SECONDS)},
        "delivered": "true" if event.delivered else "false",
        "started_at": _time(event.started_at.isoformat()),
        "ended_at": _time(event.ended_at.isoformat()),
        "metadata": None if metadata is None else json.dumps(metadata, sort_keys=True),
        "price_book": tariff.version,
        "cost_usd": text_of(cost_pico(sku_of(event), tokens_of(event), tariff)),
    }


def cloud_event_of(event: UsageEvent, tariffs: Tariffs) -> dict[str, Any]:
    """CloudEvents 1.0, structured mode."""
    row = row_of(event, tariffs)
    data = {name: row[name] for name in COLUMNS if name not in ("request_id", "tenant_id")}
    data["delivered"] = event.delivered
    data["metadata"] = event.request_metadata
    return {
        "specversion": "1.0",
        "type": "com.loraplex.usage.request",
        "source": f"/loraplex/{event.region}",
        "id": event.request_id,
        "subject": event.tenant_id,
        "time": row["ended_at"],
        "datacontenttype": "application/json",
        "data": data,
    }


def _time(text: str) -> str:
    return text.replace("+00:00", "Z")
