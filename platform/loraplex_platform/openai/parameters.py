"""Parameters that both completion endpoints share, and what is accepted only in its neutral value."""

import secrets
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loraplex_engine.messages import SamplingParams
from loraplex_platform.catalogue.defaults import Defaults, Sampling
from loraplex_platform.kit.errors import InvalidRequest, UnsupportedParameter
from loraplex_platform.kit.json_schema import WHOLE, needs
from loraplex_platform.kit.texts import Stored

ServiceTier = Literal["auto", "default", "flex", "priority"]
MAX_SEQUENCES = 128
MAX_BIASES = 1024

# A parameter we do not support changes nothing in these values; null is neutral for all.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Equal and of the same type: 0 is not false."""
    return value is None or any(value == n and type(value) is type(n) for n in neutral)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Parameters(Sampling):
    """What a client may ask for; anything else is refused by name."""

    model_config = ConfigDict(json_schema_extra={"allOf": [needs("stream_options", "stream")]})
    neutral: ClassVar[dict[str, tuple[object, ...]]] = NEUTRAL

    model: Stored
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    min_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES), WHOLE] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)]
        | None
    ) = None
    return_token_ids: bool | None = None
    service_tier: ServiceTier | None = None
    user: Annotated[Stored, Field(max_length=512)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[Stored, Field(max_length=64)], Annotated[Stored, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in cls.neutral.items():
            if name in data and not is_neutral(data[name], neutral):
                raise UnsupportedParameter(name)
        return {name: value for name, value in data.items() if name not in cls.neutral}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
            )
        return self

    def with_defaults(self, defaults: Defaults) -> Self:
        """The request with what it left out; a limit under its other name counts as said."""
        said = {name for name in self.model_fields_set if getattr(self, name) is not None}
        if "max_completion_tokens" in said:
            said.add("max_tokens")
        given = {
            name: value
            for name in Sampling.model_fields
            if name not in said and (value := getattr(defaults, name)) is not None
        }
        return self.model_copy(update=given) if given else self

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(
        self, max_tokens: int, vocab_size: int, num_logprobs: int | None
    ) -> SamplingParams:
        """The engine's parameters, the seed drawn here so that a retry is identical."""
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=min(max(self.top_k or 0, 0), vocab_size),
            min_p=float(self.min_p or 0.0),
            presence_penalty=float(self.presence_penalty or 0.0),
            frequency_penalty=float(self.frequency_penalty or 0.0),
            repetition_penalty=float(self.repetition_penalty or 1.0),
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            stop=tuple(self.stop or ()),
            stop_token_ids=self._stop_tokens(vocab_size),
            ignore_eos=bool(self.ignore_eos),
            logprobs=num_logprobs,
            logit_bias=self._bias(vocab_size),
        )

    def _stop_tokens(self, vocab_size: int) -> tuple[int, ...]:
        found = tuple(self.stop_token_ids or ())
        beyond = [token for token in found if token >= vocab_size]
        if beyond:
            raise InvalidRequest(
                f"{beyond[0]} is not a token id of this model.",
                param="stop_token_ids",
                code="invalid_value",
            )
        return found

    def _bias(self, vocab_size: int) -> tuple[tuple[int, float], ...]:
        bias = []
        for token, value in (self.logit_bias or {}).items():
            is_number = token.isascii() and token.isdigit() and len(token) <= len(str(vocab_size))
            if not is_number or int(token) >= vocab_size:
                raise InvalidRequest(
                    f"'{token[:32]}' is not a token id of this model.",
                    param="logit_bias",
                    code="invalid_value",
                )
            bias.append((int(token), float(value)))
        return tuple(bias)
