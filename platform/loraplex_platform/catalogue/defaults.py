"""What an adapter's answers are like where a request does not say."""

from typing import Annotated

from jinja2 import TemplateError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from loraplex_platform.kit.chat_template import ChatTemplate
from loraplex_platform.kit.json_schema import WHOLE, form


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _compiles(source: str) -> str:
    try:
        ChatTemplate(source, is_bounded=True)
    except (TemplateError, RecursionError) as error:
        raise ValueError(f"no chat template: {error}") from error
    return source


class Sampling(BaseModel):
    """How tokens are drawn and where an answer stops."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), WHOLE] | None = None  # -1 and 0 keep all
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31), WHOLE]], Field(max_length=64)] | None
    ) = None
    stop: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(max_length=4),
            BeforeValidator(_as_list),
        ]
        | None
    ) = None


class Defaults(Sampling):
    """An adapter's own; a request's values go first, and so does its system message."""

    model_config = ConfigDict(frozen=True)

    system_prompt: Annotated[str, Field(min_length=1, max_length=32_768)] | None = None
    chat_template: (
        Annotated[
            str,
            Field(min_length=1, max_length=65_536, json_schema_extra=form("chat-template")),
            AfterValidator(_compiles),
        ]
        | None
    ) = None


NO_DEFAULTS = Defaults()
