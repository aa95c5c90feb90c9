"""What `/v1` answers about models, live requests and generated text, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Told(BaseModel):
    """Nothing else is in the answer."""

    model_config = ConfigDict(extra="forbid")


class ModelObject(Told):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Told):
    object: Literal["list"]
    data: list[ModelObject]


class DeletedModel(Told):
    id: str
    object: Literal["model"]
    deleted: Literal[True]


class LiveRequest(Told):
    id: str
    object: Literal["request"]
    tier: str
    phase: str
    reason: str | None
    waited_s: float
    prompt_tokens: int
    completion_tokens: int


class LiveRequestList(Told):
    object: Literal["list"]
    data: list[LiveRequest]


class RequestExplanation(Told):
    id: str
    object: Literal["request.explanation"]
    phase: str | None
    reason: str | None
    meaning: str | None
    ahead: int
    expected_s: float | None
    detail: str


class PromptDetails(Told):
    cached_tokens: int


class CompletionDetails(Told):
    reasoning_tokens: int


class Usage(Told):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Envelope(Told):
    """What chat and plain completions have in common."""

    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    usage: Usage


class Logprob(Told):
    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(Logprob):
    top_logprobs: list[Logprob]


class ChatLogprobs(Told):
    content: list[ChosenLogprob]
    refusal: None


class ChatMessage(Told):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Told):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: list[int] = []


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] = []


class CompletionLogprobs(Told):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Told):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []


class Completion(Envelope):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
