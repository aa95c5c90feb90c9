"""What the engine accepts: from a Generate to a live request, or to the reason why not."""

import math
from dataclasses import dataclass, replace

from loraplex_adapters.errors import AdapterError
from loraplex_engine.adapter_tier import Vocabularies
from loraplex_engine.detokenizer import BaseDecoder
from loraplex_engine.live_request import Ending, LiveRequest, Vocabulary
from loraplex_engine.messages import ErrorCode, Generate, Hello, SamplingParams
from loraplex_engine.prefix_cache import root_key
from loraplex_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine serves: its first word to clients, and what the loop must know of the model."""

    engine_id: str
    hello: Hello
    vocab_size: int
    eos_token_ids: frozenset[int]
    decoder: BaseDecoder
    max_num_batched_tokens: int
    max_queue_s: float = math.inf  # a live request that would wait longer is refused at once


def live_request(
    request: Generate, served: Served, now: float, tokens: Vocabularies
) -> LiveRequest:
    hello, sampling = served.hello, request.sampling
    root = root_key(
        hello.model_hash, hello.dtype, hello.block_size, request.cache_scope, request.adapter
    )
    vocabulary = _vocabulary(request.adapter, served, tokens)
    seq = Sequence(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        # Siblings of one request share its seed, and must not share their draws.
        sampling=replace(sampling, seed=sampling.seed + request.index),
        tenant=request.tenant,
        arrival_s=now,
        tier=request.tier,
        adapter=request.adapter,
        cache_root=root,
        deadline_s=None if request.remaining_s is None else now + request.remaining_s,
        parent_id=request.parent_id,
        job_id=request.job_id,
        eos_token_ids=vocabulary.eos_token_ids,
    )
    return LiveRequest(seq, vocabulary)


def _vocabulary(adapter: str | None, served: Served, tokens: Vocabularies) -> Vocabulary:
    """The model's, and what the adapter adds to it."""
    base = Vocabulary(served.vocab_size, served.eos_token_ids, served.decoder)
    if adapter is None:
        return base
    try:
        added = tokens.of(adapter)
    except (AdapterError, OSError):  # its load will say why
        return base._replace(is_known=False)
    if added is None:
        return base
    return Vocabulary(
        max(served.vocab_size, added.stop_id),
        served.eos_token_ids.union(added.eos_token_ids),
        served.decoder.of_version(adapter, added),
    )


def refusal(request: Generate, served: Served, vocab_size: int) -> Ending | None:
    """Why this engine can never serve a request, or None; `vocab_size` is its adapter's."""
    limit, sampling = served.hello.max_model_len, request.sampling
    biased = (token for token, _ in sampling.logit_bias)
    tokens = [*request.prompt_ids, *biased, *sampling.stop_token_ids]
    num_tokens = len(request.prompt_ids) + sampling.max_tokens
    if not all(math.isfinite(number) for number in _numbers(sampling)):
        return _error("bad_request", "a sampling parameter is not a finite number")
    if not request.prompt_ids:
        return _error("bad_request", "the prompt is empty")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        return _error("bad_request", "a token id is outside the vocabulary")
    if sampling.max_tokens < 1 or "" in sampling.stop:
        return _error("bad_request", "max_tokens is below 1, or a stop string is empty")
    if num_tokens > limit:
        text = f"prompt and max_tokens make {num_tokens} tokens; the limit is {limit}"
        return _error("context_too_long", text)
    return None


def _numbers(sampling: SamplingParams) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        *(bias for _, bias in sampling.logit_bias),
    )


def _error(code: ErrorCode, message: str) -> Ending:
    return Ending("error", error=code, message=message)
