"""What the OpenAPI document says of a form whose route reads it as a stream."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel

from loraplex_platform.kit.json_schema import never_null

FILE = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}


class FileParts(NamedTuple):
    """Parts of a form that are files, and what each of them is."""

    needed: Mapping[str, str]
    besides: Mapping[str, str] = MappingProxyType({})


def form_body(
    fields: type[BaseModel], *sent: FileParts, file_name: str | None = None
) -> dict[str, Any]:
    """For a route's `openapi_extra`: the fields, with one or another of these sets of files.

    `file_name` is an example of what the files are called, where that is looked at.
    """
    schema = fields.model_json_schema()
    kinds, properties = schema.pop("$defs", {}), schema["properties"]
    del schema["description"]  # speaks of the fields alone
    never_null(properties, properties)
    for name in [name for name, field in properties.items() if "$ref" in field]:
        _flatten(schema, name, kinds[properties.pop(name)["$ref"].rpartition("/")[2]])
    parts = {name: of for files in sent for each in files for name, of in each.items()}
    properties |= {name: FILE | {"description": of} for name, of in parts.items()}
    if len(sent) == 1:
        schema["required"] += sent[0].needed
    else:
        schema["oneOf"] = [_alone(files, parts) for files in sent]
    content: dict[str, Any] = {"schema": schema}
    if file_name is not None:
        content["encoding"] = {part: _called(part, file_name) for part in parts}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


def _flatten(schema: dict[str, Any], outer: str, kind: dict[str, Any]) -> None:
    """A field that has fields comes as `outer[inner]`: all of them, or none."""
    inner = {f"{outer}[{name}]": field for name, field in kind["properties"].items()}
    assert len(inner) == len(kind["required"]), "what may be left out is not told here"
    schema["properties"] |= inner
    schema["dependentRequired"] = {name: sorted(inner.keys() - {name}) for name in inner}


def _alone(files: FileParts, parts: Mapping[str, str]) -> dict[str, Any]:
    others = sorted(parts.keys() - files.needed.keys() - files.besides.keys())
    absent = {"not": {"anyOf": [{"required": [name]} for name in others]}}
    return {"required": list(files.needed)} | absent


def _called(part: str, file_name: str) -> dict[str, Any]:
    example = f'form-data; name="{part}"; filename="{file_name}"'
    return {"headers": {"Content-Disposition": {"schema": {"type": "string"}, "example": example}}}
