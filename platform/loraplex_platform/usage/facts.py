"""What happened to a request, as it is written down."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from loraplex_engine.messages import Tier

# disconnect: the client went away; cancelled: it was stopped by us, as when its tenant is suspended.
Outcome = Literal["stop", "length", "disconnect", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class UsageFacts:
    """The columns of a usage event; a request writes them once, whatever its end."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    endpoint: str
    model: str  # as the client named it
    base_model: str
    adapter_version: str | None
    tier: Tier
    outcome: Outcome
    error_code: str | None
    sequences: int
    attempts: int
    prompt_tokens: int
    cached_tokens: int  # part of the prompt tokens
    completion_tokens: int
    recomputed_tokens: int
    started_at: datetime
    ended_at: datetime
    queue_s: float | None
    ttft_s: float | None
    total_s: float
    engine_s: float
    region: str
    discarded_tokens: int = 0  # made by attempts that were lost: the platform's cost
    delivered: bool = True  # whether the client got any of it, or left of its own accord
    job_id: str | None = None
    end_user: str | None = None
    client_request_id: str | None = None
    request_metadata: dict[str, str] | None = None
