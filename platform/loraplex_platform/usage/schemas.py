"""Answers about usage and costs, in OpenAI's shape, and what is told beside an export."""

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

Result = TypeVar("Result", bound=BaseModel)


class Bucket(BaseModel, Generic[Result]):
    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[Result]


class Report(BaseModel, Generic[Result]):
    object: Literal["page"]
    data: list[Bucket[Result]]
    has_more: bool
    next_page: str | None


class UsageResult(BaseModel):
    """Dimensions by which nobody asked to group are null."""

    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    input_audio_tokens: int
    output_audio_tokens: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None


class TenantsUsageResult(UsageResult):
    tenant_id: str | None = None


class CostAmount(BaseModel):
    value: float
    currency: Literal["usd"]


class CostResult(BaseModel):
    """Dimensions by which nobody asked to group are null."""

    object: Literal["organization.costs.result"]
    amount: CostAmount
    quantity: float
    project_id: str | None
    line_item: str | None
    api_key_id: str | None


class TenantsCostResult(CostResult):
    tenant_id: str | None = None


class ManifestPeriod(BaseModel):
    start: datetime
    end: datetime


class Manifest(BaseModel):
    """What an exported file holds; `sums` are by column."""

    tenant: str
    kind: str
    format: str
    period: ManifestPeriod
    invoice: str | None
    rows: int
    sums: dict[str, str]
    price_books: list[str]
    sha256: str
