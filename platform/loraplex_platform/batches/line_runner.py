"""Runs one line as the request that it is."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from loraplex_engine.errors import EngineError, EngineOverloaded, EngineUnavailable
from loraplex_platform.batches.input_file import body_of
from loraplex_platform.batches.line_repository import Claim
from loraplex_platform.batches.outcomes import Done, Failed, Outcome, Retry
from loraplex_platform.errors import error_object, from_body, from_engine, shape_of
from loraplex_platform.kit.errors import (
    InternalError,
    InvalidRequest,
    Overloaded,
    PlatformError,
    RateLimited,
)
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.order import Caller
from loraplex_platform.openai.schemas import ChatRequest, CompletionRequest
from loraplex_platform.openai.service import InferenceService
from loraplex_platform.usage.facts import UsageFacts

log = structlog.get_logger(__name__)
TIERS = (None, "auto", "default", "flex")


@dataclass(frozen=True, slots=True)
class Job:
    """What a line needs to know of its batch."""

    id: str
    principal: Principal
    endpoint: str
    is_urgent: bool


class HeldFacts:
    """A recorder that keeps what happened until the line's own transaction writes it."""

    def __init__(self) -> None:
        self._facts: dict[str, UsageFacts] = {}

    async def record(self, facts: UsageFacts) -> None:
        self._facts[facts.request_id] = facts

    def take(self, request_id: str) -> UsageFacts | None:
        return self._facts.pop(request_id, None)


class LineRunner:
    """The inference service must record into `held`."""

    def __init__(self, inference: InferenceService, held: HeldFacts) -> None:
        self._inference = inference
        self._held = held

    async def run(self, job: Job, claim: Claim, raw: bytes) -> Outcome:
        """Never raises, but for a cancellation: whatever went wrong is an outcome."""
        caller = Caller(job.principal, new_id("req"), job_id=job.id)
        try:
            answer = await self._try(caller, job, claim, raw)
        finally:
            facts = self._held.take(caller.request_id)
        if not isinstance(answer, dict):
            return replace(answer, lost=facts)
        assert facts is not None, "what was answered was recorded"
        billed = replace(
            facts,
            request_id=event_id(claim),
            client_request_id=caller.request_id,
            tier="batch",
        )
        return Done(caller.request_id, json.dumps(answer, ensure_ascii=False), billed)

    async def _try(
        self, caller: Caller, job: Job, claim: Claim, raw: bytes
    ) -> dict[str, Any] | Failed | Retry:
        try:
            return await self._answer(caller, job, claim, raw)
        except PlatformError as error:
            return outcome_of(error, caller.request_id)
        except (EngineOverloaded, EngineUnavailable) as error:
            return Retry(str(error), is_counted=isinstance(error, EngineUnavailable))
        except EngineError as error:
            return outcome_of(from_engine(error), caller.request_id)
        except Exception as error:
            log.exception("batch_line_failed", batch=claim.batch_id, line=claim.line_no)
            return Retry(type(error).__name__, is_counted=True)

    async def _answer(self, caller: Caller, job: Job, claim: Claim, raw: bytes) -> dict[str, Any]:
        body = body_of(raw)
        if job.endpoint == "/v1/chat/completions":
            reply = await self._inference.chat(caller, _parsed(ChatRequest, body, job, claim))
        else:
            request = _parsed(CompletionRequest, body, job, claim)
            reply = await self._inference.complete(caller, request)
        try:
            return await reply.whole()
        finally:
            reply.abandon()

    async def drain(self) -> None:
        """Wait for what abandoned lines still have to settle."""
        await self._inference.tasks.drain()


def event_id(claim: Claim) -> str:
    """The usage event of a line, whoever runs it and however often."""
    return f"batch:{claim.name}"


Request = TypeVar("Request", ChatRequest, CompletionRequest)


def _parsed(kind: type[Request], body: dict[str, Any], job: Job, claim: Claim) -> Request:
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        raise from_body(error) from error
    if request.service_tier not in TIERS:
        raise InvalidRequest(
            "A request of a batch runs in the batch tier.", param="service_tier",
            code="unsupported_value",
        )  # fmt: skip
    # A job that would miss its window runs among the standard requests; it is billed as a batch.
    tier = None if job.is_urgent else "flex"
    seed = _seed_of(claim) if request.seed is None else request.seed
    return request.model_copy(update={"service_tier": tier, "seed": seed})


def _seed_of(claim: Claim) -> int:
    """Another try of a line draws the same tokens."""
    return int.from_bytes(hashlib.sha256(claim.name.encode()).digest()[:8], "big") >> 1


def outcome_of(error: PlatformError, request_id: str) -> Failed | Retry:
    if isinstance(error, RateLimited) and error.may_retry:
        return Retry(error.message, is_counted=False, after_s=error.retry_after_s)
    if isinstance(error, Overloaded):
        return Retry(error.message, is_counted=False, after_s=error.retry_after_s)
    if isinstance(error, InternalError):
        return Retry(error.message, is_counted=True)
    return Failed(request_id, shape_of(error).status, json.dumps(error_object(error)))
