"""How the try of a line can end."""

import json
from dataclasses import dataclass
from typing import Any

from loraplex_platform.usage.facts import UsageFacts

MAX_ATTEMPTS = 5  # tries that may have been the line's own fault; then it is set aside
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class Done:
    """Answered; the facts are written with the line, or never."""

    request_id: str
    body: str  # JSON
    facts: UsageFacts


@dataclass(frozen=True, slots=True)
class Failed:
    """It would fail again: an HTTP error, or, without a status, one of the job's own."""

    request_id: str | None
    status_code: int | None
    body: str  # JSON
    lost: UsageFacts | None = None  # what the engine made for nobody


@dataclass(frozen=True, slots=True)
class Retry:
    """Another try later; `is_counted` when the line may be what went wrong."""

    reason: str
    is_counted: bool
    after_s: float | None = None  # None: ever more patiently
    lost: UsageFacts | None = None  # what the engine made for nobody


Outcome = Done | Failed | Retry


def failure(code: str, message: str) -> Failed:
    """An error without an HTTP status."""
    return Failed(None, None, error_json(code, message))


def error_json(code: str, message: str) -> str:
    error: dict[str, Any] = {"code": code, "message": message}
    return json.dumps(error)


def set_aside(attempts: int, reason: str) -> Failed:
    return failure(
        "too_many_attempts", f"This request was set aside after {attempts} attempts: {reason}"
    )


def retry_delay_s(retry: Retry, attempts: int) -> float:
    if retry.after_s is not None:
        return min(retry.after_s, LONGEST_RETRY_S)
    return float(min(FIRST_RETRY_S * 2 ** (attempts - 1), LONGEST_RETRY_S))
