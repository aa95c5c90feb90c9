"""Answers in OpenAI's shapes: whole ones and chunks, for chat and for plain completions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loraplex_engine.messages import Finished, FinishReason, TokenEvent, TokenLogprob
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.openai.tally import Tally, Usage

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str


@dataclass(slots=True)
class Choice:
    """One choice as it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, event: TokenEvent | Finished) -> None:
        if isinstance(event, Finished):
            self.finish_reason = event.finish_reason
            return
        self.text += event.text
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs


class Answer(Protocol):
    """The shapes of one endpoint; `prompts[i]` are the prompt ids of choice i."""

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Json: ...

    def opening(self, choice: int) -> Iterator[Json]:
        """Chunks before a choice's first token."""
        ...

    def chunk(self, choice: int, event: TokenEvent | Finished) -> Json | None:
        """None: there is nothing to show yet."""
        ...

    def usage_chunk(self, tally: Tally) -> Json: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """What the client asked to see."""

    includes_usage: bool
    returns_token_ids: bool
    has_logprobs: bool


def usage_object(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class _Answer:
    """What both shapes have in common."""

    def __init__(
        self, head: Head, shape: Shape, model: ServedModel, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        self._head = head
        self._shape = shape
        self._model = model
        self._prompts = prompts

    def _envelope(self, kind: str, choices: list[Json], **more: object) -> Json:
        return {
            "id": self._head.id,
            "object": kind,
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
            "service_tier": self._head.service_tier,
            "system_fingerprint": self._head.system_fingerprint,
            **more,
        }

    def _is_silent(self, event: TokenEvent) -> bool:
        return not (event.text or self._shape.returns_token_ids or self._shape.has_logprobs)

    def _no_usage_yet(self) -> Mapping[str, None]:
        return {"usage": None} if self._shape.includes_usage else {}


class ChatAnswer(_Answer):
    """`chat.completion` and its chunks."""

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Json:
        more: Json = {"usage": usage_object(tally.usage)}
        if self._shape.returns_token_ids:
            more["prompt_token_ids"] = list(self._prompts[0])
        shown = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return self._envelope("chat.completion", shown, **more)

    def opening(self, choice: int) -> Iterator[Json]:
        more: Json = {}
        if self._shape.returns_token_ids:
            more["prompt_token_ids"] = list(self._prompts[choice])
        yield self._chunk(choice, {"role": "assistant", "content": ""}, **more)

    def chunk(self, choice: int, event: TokenEvent | Finished) -> Json | None:
        if isinstance(event, Finished):
            return self._chunk(choice, {}, finish_reason=event.finish_reason)
        if self._is_silent(event):
            return None
        chunk = self._chunk(choice, {"content": event.text})
        if self._shape.has_logprobs:
            chunk["choices"][0]["logprobs"] = self._logprobs(event.logprobs)
        if self._shape.returns_token_ids:
            chunk["choices"][0]["token_ids"] = list(event.token_ids)
        return chunk

    def usage_chunk(self, tally: Tally) -> Json:
        return self._envelope("chat.completion.chunk", [], usage=usage_object(tally.usage))

    def _chunk(
        self, index: int, delta: Json, *, finish_reason: FinishReason | None = None, **more: object
    ) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._envelope("chat.completion.chunk", [choice], **self._no_usage_yet(), **more)

    def _whole_choice(self, index: int, choice: Choice) -> Json:
        shown: Json = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs) if self._shape.has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        if self._shape.returns_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json:
        content = [
            self._token(t.token_id, t.logprob)
            | {"top_logprobs": [self._token(token_id, value) for token_id, value in t.top]}
            for t in tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> Json:
        return {
            "token": self._model.token_text(token_id),
            "logprob": logprob,
            "bytes": list(self._model.token_bytes(token_id)),
        }


class CompletionAnswer(_Answer):
    """`text_completion`, whole or as a chunk."""

    def __init__(
        self, head: Head, shape: Shape, model: ServedModel, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(head, shape, model, prompts)
        self._offsets = [0] * len(prompts)  # where each choice's next token starts in its text

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Json:
        shown = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return self._envelope("text_completion", shown, usage=usage_object(tally.usage))

    def opening(self, choice: int) -> Iterator[Json]:
        if self._shape.returns_token_ids:
            more: Json = {"prompt_token_ids": list(self._prompts[choice]), "token_ids": []}
            yield self._chunk(choice, "", **more)

    def chunk(self, choice: int, event: TokenEvent | Finished) -> Json | None:
        if isinstance(event, Finished):
            return self._chunk(choice, "", finish_reason=event.finish_reason)
        if self._is_silent(event):
            return None
        more: Json = {}
        if self._shape.has_logprobs:
            more["logprobs"] = self._logprobs(choice, event.logprobs)
        if self._shape.returns_token_ids:
            more["token_ids"] = list(event.token_ids)
        return self._chunk(choice, event.text, **more)

    def usage_chunk(self, tally: Tally) -> Json:
        return self._envelope("text_completion", [], usage=usage_object(tally.usage))

    def _chunk(
        self, index: int, text: str, *, finish_reason: FinishReason | None = None, **more: object
    ) -> Json:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return self._envelope("text_completion", [choice | more], **self._no_usage_yet())

    def _whole_choice(self, index: int, choice: Choice) -> Json:
        shown: Json = {
            "index": index,
            "text": choice.text,
            "logprobs": self._logprobs(index, choice.logprobs)
            if self._shape.has_logprobs
            else None,
            "finish_reason": choice.finish_reason,
        }
        if self._shape.returns_token_ids:
            shown["prompt_token_ids"] = list(self._prompts[index])
            shown["token_ids"] = choice.token_ids
        return shown

    def _logprobs(self, choice: int, tokens: Sequence[TokenLogprob]) -> Json:
        texts = [self._model.token_text(t.token_id) for t in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [
                {self._model.token_text(token_id): value for token_id, value in t.top}
                for t in tokens
            ],
            "text_offset": offsets,
        }
