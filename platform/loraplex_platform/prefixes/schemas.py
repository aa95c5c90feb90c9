"""The bodies of `/v1/prefixes`."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loraplex_engine.messages import PrefixStats
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.json_schema import has
from loraplex_platform.kit.pagination import Listed
from loraplex_platform.kit.texts import Stored
from loraplex_platform.openai.schemas import Message, turns_of
from loraplex_platform.prefixes.models import Prefix


class PrefixRequest(BaseModel):
    """What prompts begin with: messages, usually one of the system, or a text."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"oneOf": [has("messages", "prompt"), has("prompt", "messages")]},
    )

    name: Annotated[Stored, Field(min_length=1, max_length=64)]
    model: Stored
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    prompt: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise InvalidRequest("Give either 'messages' or 'prompt'.", param="messages")
        return self

    def turns(self) -> list[dict[str, str]]:
        return turns_of(self.messages or [])


class PrefixObject(Listed):
    """A registered prefix; the counts are those of the engine since it started."""

    object: Literal["prefix"] = "prefix"
    name: str
    model: str
    num_tokens: int
    created_at: int
    warm_tokens: int
    requests: int
    hits: int
    hit_rate: float | None  # None: nobody has used it
    saved_tokens: int

    @classmethod
    def of(cls, prefix: Prefix, seen: PrefixStats | None) -> Self:
        requests, hits = (seen.requests, seen.hits) if seen else (0, 0)
        return cls(
            id=prefix.id,
            name=prefix.name,
            model=prefix.model,
            num_tokens=prefix.num_tokens,
            created_at=int(prefix.created_at.timestamp()),
            warm_tokens=seen.warm_tokens if seen else 0,
            requests=requests,
            hits=hits,
            hit_rate=hits / requests if requests else None,
            saved_tokens=seen.saved_tokens if seen else 0,
        )


class PrefixQuery(BaseModel):
    """What a list is asked for."""

    after: Annotated[str, Field(max_length=64)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 100


class DeletedPrefix(BaseModel):
    id: str
    object: Literal["prefix"] = "prefix"
    deleted: Literal[True] = True
