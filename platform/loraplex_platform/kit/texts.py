"""Texts of a body, in a form that every database takes."""

from typing import Annotated

from pydantic import AfterValidator, Field


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL")  # PostgreSQL keeps no such text
    return text


# A length, even 0, has pydantic look inside: half a surrogate pair is no text.
Text = Annotated[str, Field(min_length=0)]
Stored = Annotated[
    Text, AfterValidator(_storable), Field(json_schema_extra={"pattern": r"^[^\x00]*$"})
]
