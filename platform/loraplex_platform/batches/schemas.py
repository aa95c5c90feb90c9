"""Batches as clients see them."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from loraplex_platform.batches.models import Batch
from loraplex_platform.files.schemas import ExpiresAfter
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.pagination import Listed
from loraplex_platform.kit.texts import Stored

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
FINAL: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")
Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
Metadata = Annotated[
    dict[Annotated[Stored, Field(max_length=64)], Annotated[Stored, Field(max_length=512)]],
    Field(max_length=16),
]


class CreateBatch(Body):
    """The body of `POST /v1/batches`."""

    input_file_id: Stored
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0  # ours: among the tenant's own batches


class BatchQuery(BaseModel):
    """What a list is asked for."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchError(BaseModel):
    """What is wrong with a line of the input; without a line, with the file."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class InputDetails(BaseModel):
    cached_tokens: int


class OutputDetails(BaseModel):
    reasoning_tokens: int = 0


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        return cls(
            input_tokens=batch.input_tokens,
            input_tokens_details=InputDetails(cached_tokens=batch.cached_tokens),
            output_tokens=batch.output_tokens,
            output_tokens_details=OutputDetails(),
            total_tokens=batch.input_tokens + batch.output_tokens,
        )


class BatchObject(Listed):
    """OpenAI's batch object, all keys, nulls included."""

    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch) -> Self:
        errors = batch.errors
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            model=batch.model,
            errors=None if errors is None else BatchErrors(data=errors),
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=int(batch.created_at.timestamp()),
            in_progress_at=_unix(batch.in_progress_at),
            expires_at=_unix(batch.expires_at),
            finalizing_at=_unix(batch.finalizing_at),
            completed_at=_unix(batch.completed_at),
            failed_at=_unix(batch.failed_at),
            expired_at=_unix(batch.expired_at),
            cancelling_at=_unix(batch.cancelling_at),
            cancelled_at=_unix(batch.cancelled_at),
            request_counts=RequestCounts(
                total=batch.total, completed=batch.completed, failed=batch.failed
            ),
            usage=BatchUsage.of(batch),
            metadata=batch.request_metadata,
        )


def _unix(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
