"""Where what we accept and what the OpenAPI document says would differ."""

from collections.abc import Iterable
from typing import Any

from pydantic import BeforeValidator
from pydantic.json_schema import JsonSchemaValue

NULL: JsonSchemaValue = {"type": "null"}


def _without_fraction(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_without_fraction)  # of a strict integer: 2.0 is one in JSON, true is none


def form(name: str) -> dict[str, Any]:
    """For `Field(json_schema_extra=…)`: the text has this form, which a pattern cannot tell."""
    return {"format": name}


def never_null(fields: dict[str, JsonSchemaValue], names: Iterable[str]) -> None:
    """These may be left out, but when they are there they have a value."""
    for name in names:
        kinds = [kind for kind in fields[name].pop("anyOf", []) if kind != NULL]
        if kinds:
            del fields[name]["default"]
            fields[name] |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def needs(name: str, flag: str) -> JsonSchemaValue:
    """A field that may have a value only where this flag is true."""
    return {
        "if": {"properties": {name: {"not": NULL}}, "required": [name]},
        "then": {"properties": {flag: {"const": True}}, "required": [flag]},
    }


def has(name: str, other: str) -> JsonSchemaValue:
    """Of these two fields, the first has a value and the second has none."""
    return {"properties": {name: {"not": NULL}, other: NULL}, "required": [name]}
