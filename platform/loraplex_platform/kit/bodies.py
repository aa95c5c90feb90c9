"""What all bodies of requests have in common."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Body(BaseModel):
    """Unknown fields are refused, and `true` is no number, though Python counts with it."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def refuse_truth_for_numbers(cls, value: object, info: ValidationInfo) -> object:
        assert info.field_name is not None
        kinds = set(_kinds(cls.model_fields[info.field_name].annotation))
        if {int, float, Decimal} & kinds and bool not in kinds and _has_truth(value):
            raise PydanticCustomError("number_type", "Input should be a valid number")
        return value


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_args(annotation):
        for each in get_args(annotation):
            yield from _kinds(each)
    else:
        yield annotation


def _has_truth(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_truth, value.values()))
    if isinstance(value, list):
        return any(map(_has_truth, value))
    return isinstance(value, bool)
