"""What goes in and comes out where plans and limits are concerned."""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import Path
from pydantic import BaseModel, Field, WithJsonSchema

from loraplex_platform.admission.effective import EffectiveLimit
from loraplex_platform.admission.limits import DIMENSIONS, MAX_EXACT
from loraplex_platform.control.schemas import (
    Change,
    Count,
    Moment,
    Name,
    Output,
    Share,
    Text,
    Tier,
    Weight,
)
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.json_schema import WHOLE

Dimension = Annotated[
    str, Path(pattern=r"^[a-z_]{1,64}$", json_schema_extra={"enum": [*DIMENSIONS]})
]
Overridden = Annotated[  # what exists is not lent
    str,
    Path(
        pattern=r"^[a-z_]{1,64}$",
        json_schema_extra={"enum": [d.name for d in DIMENSIONS.values() if d.kind != "stock"]},
    ),
]
Value = Annotated[int, Field(ge=0, le=MAX_EXACT, strict=True), WHOLE]
Values = Annotated[
    dict[Text, Value],
    Field(max_length=100),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                name: {"type": "integer", "minimum": 0, "maximum": dimension.most}
                for name, dimension in DIMENSIONS.items()
            },
            "additionalProperties": False,
        }
    ),
]


class PlanPatch(Change):
    name: Name | None = None
    weight: Weight | None = None
    max_tier: Tier | None = None
    max_running: Count | None = None
    kv_share: Share | None = None
    limits: Values | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset({"name", "weight", "max_tier", "limits"})


class NewPlan(PlanPatch):
    name: Name


class PlanOut(Output):
    object: Literal["plan"] = "plan"
    name: str
    weight: float
    max_tier: str
    max_running: int | None
    kv_share: float | None
    limits: dict[str, int]
    created_at: datetime


class LimitBody(Body):
    value: Value
    strict: bool = False  # refuse while the shared store is away


class OverrideBody(Body):
    value: Value
    expires_at: Moment | None = None  # None: until it is removed
    reason: Text = ""


class RuleOut(Output):
    object: Literal["limit"] = "limit"
    level: str
    subject: str
    dimension: str
    value: int
    strict: bool
    updated_at: datetime


class OverrideOut(Output):
    object: Literal["override"] = "override"
    level: str
    subject: str
    dimension: str
    value: int
    reason: str
    created_at: datetime
    expires_at: datetime | None


class SettingOut(BaseModel):
    value: float | str | None
    source: Literal["tenant", "plan", "default"]


class EffectiveLimitOut(BaseModel):
    level: str
    subject: str
    dimension: str
    value: int
    strict: bool
    source: Literal["override", "rule", "plan", "budget", "credit"]
    until: datetime | None

    @classmethod
    def of(cls, effective: EffectiveLimit) -> Self:
        limit = effective.limit
        return cls(
            level=limit.level,
            subject=limit.subject,
            dimension=limit.dimension.name,
            value=limit.value,
            strict=limit.is_strict,
            source=effective.source,
            until=effective.until,
        )


class EffectiveOut(BaseModel):
    settings: dict[str, SettingOut]
    limits: list[EffectiveLimitOut]
