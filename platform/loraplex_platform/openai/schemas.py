"""The bodies of `POST /v1/chat/completions` and `POST /v1/completions`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator

from loraplex_platform.catalogue.defaults import Defaults
from loraplex_platform.kit.errors import InvalidRequest, UnsupportedParameter
from loraplex_platform.kit.json_schema import NULL, WHOLE, needs
from loraplex_platform.kit.texts import Text
from loraplex_platform.openai.parameters import (
    MAX_SEQUENCES,
    NEUTRAL,
    Parameters,
    is_neutral,
)

Prompt = str | tuple[int, ...]


PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Content = Annotated[
    JsonValue,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": PART}, NULL]}),
]


class Message(BaseModel):
    """One turn; what the official client adds to an assistant's turn is accepted when empty."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = None
    name: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        empty = ("refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id")
        return {k: v for k, v in data.items() if not (k in empty and is_neutral(v, ([],)))}


def turns_of(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as chat templates expect them."""
    turns = []
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        turn = {"role": role, "content": _text_of(message.content, f"messages.{index}.content")}
        turns.append(turn | ({"name": message.name} if message.name else {}))
    return turns


class ChatRequest(Parameters):
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [needs("top_logprobs", "logprobs"), needs("stream_options", "stream")]
        }
    )

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest(
                "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
            )
        return self

    def with_defaults(self, defaults: Defaults) -> Self:
        request = super().with_defaults(defaults)
        has_system = any(m.role in ("system", "developer") for m in request.messages)
        if defaults.system_prompt is None or has_system:
            return request
        system = Message(role="system", content=defaults.system_prompt)
        return request.model_copy(update={"messages": [system, *request.messages]})

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """What the client allows; None: up to the context's end."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_turns(self) -> int:
        """Each makes a token at the least."""
        return len(self.messages)

    @property
    def text_lengths(self) -> list[int]:
        """Characters of each prompt that is to be tokenised."""
        return [sum(len(turn["content"]) for turn in self.turns())]

    def turns(self) -> list[dict[str, str]]:
        """The messages as chat templates expect them."""
        return turns_of(self.messages)


class CompletionRequest(Parameters):
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **{k: NEUTRAL[k] for k in ("store", "prompt_cache_key", "safety_identifier")},
        "best_of": (1,),
        "echo": (False,),
        "suffix": (),
    }

    prompt: JsonValue
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens or 16  # the API's documented default

    @property
    def num_turns(self) -> int:
        return 1

    @property
    def text_lengths(self) -> list[int]:
        """Characters of each prompt that is to be tokenised."""
        given = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return [len(text) for text in given if isinstance(text, str)]

    def prompts(self, vocab_size: int) -> list[Prompt]:
        """One or several prompts: texts, or token ids of this model."""
        given = self.prompt
        if isinstance(given, str):
            return [_text(given, "prompt")]
        if isinstance(given, list) and given and all(isinstance(p, int) for p in given):
            return [_token_ids(given, "prompt", vocab_size)]
        if not isinstance(given, list) or not given:
            raise _not_a_prompt("prompt")
        if len(given) * self.num_choices > MAX_SEQUENCES:
            raise InvalidRequest(
                f"At most {MAX_SEQUENCES} completions are made at once.", param="prompt"
            )
        return [
            _text(prompt, f"prompt.{i}")
            if isinstance(prompt, str)
            else _token_ids(prompt, f"prompt.{i}", vocab_size)
            for i, prompt in enumerate(given)
        ]


def _token_ids(value: JsonValue, param: str, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise _not_a_prompt(param)
    ids = tuple(i for i in value if type(i) is int and 0 <= i < vocab_size)
    if len(ids) != len(value):
        raise InvalidRequest(
            f"'{param}' holds something that is not a token id of this model.",
            param=param,
            code="invalid_value",
        )
    return ids


def _not_a_prompt(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' must be a string, a list of strings, or token ids.",
        param=param,
        code="invalid_type",
    )


def _text_of(content: JsonValue, param: str) -> str:
    """A message's text: a string, or parts of type text."""
    if content is None or isinstance(content, str):
        return _text(content or "", param)
    if not isinstance(content, list):
        raise InvalidRequest(
            f"'{param}' must be a string or a list of parts.", param=param, code="invalid_type"
        )
    return "".join(_text_of_part(part, f"{param}.{i}") for i, part in enumerate(content))


def _text_of_part(part: JsonValue, param: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text":
        raise UnsupportedParameter(f"{param}.type")
    if not isinstance(text, str):
        raise InvalidRequest(f"'{param}.text' must be a string.", param=f"{param}.text")
    return _text(text, f"{param}.text")


def _text(value: str, param: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
        raise InvalidRequest(
            f"'{param}' is not valid Unicode.", param=param, code="invalid_value"
        ) from error
    return value
