"""The engine without a server: prompts in, tokens (and logits, if wanted) out. For tests and benchmarks."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.build import LoadedModel, build_engine
from loraplex_engine.config import EngineConfig
from loraplex_engine.detokenizer import BaseDecoder, TokenDecoder
from loraplex_engine.messages import (
    Event,
    Finished,
    Generate,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from loraplex_engine.sampler import Drawn, Sampler
from loraplex_engine.scheduling.policy import ScheduledTokens

STALLED_S = 0.001  # pause when all sequences wait, so that adapters can load


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to complete. With `forced_ids` these are said, whatever the model prefers."""

    token_ids: Sequence[int]
    adapter: str | None = None
    sampling: SamplingParams = field(
        default_factory=lambda: SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    )
    forced_ids: Sequence[int] | None = None
    arrives: int = 0  # submitted before this step of the run
    tenant: str = "offline"


@dataclass(slots=True)
class Completion:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one per token, if asked for
    text: str = ""
    finished: Finished | None = None
    logits: torch.Tensor | None = None  # float32 [num tokens, vocab_size], if recorded


class Recorder:
    """A sampler that keeps each row's logits, and says the forced tokens of forced sequences."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.forced: Mapping[str, Sequence[int]] = {}
        self.logits: dict[str, list[torch.Tensor]] = {}

    def sample(self, logits: torch.Tensor, items: Sequence[ScheduledTokens]) -> Drawn:
        drawn = self.sampler.sample(logits, items)
        for row, item in enumerate(items):
            kept = self.logits.setdefault(item.seq.request_id, [])
            if item.seq.request_id in self.forced:
                drawn.token_ids[row] = self.forced[item.seq.request_id][len(kept)]
            kept.append(logits[row].float().cpu().clone())
        return drawn


class NoText:
    """A token decoder for runs that look at ids alone."""

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def of_version(self, version: str, added: AddedTokens) -> TokenDecoder:
        return self


class Offline:
    """An engine stepped by the caller's thread; its prefix cache and slots outlive a run."""

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        adapters: AdapterTier,
        *,
        decoder: BaseDecoder | None = None,
        records_logits: bool = False,
    ) -> None:
        sampler = Sampler()
        self._recorder = Recorder(sampler) if records_logits else None
        self._num_requests = 0
        self.engine = build_engine(
            config, model, adapters, decoder or NoText(), sampler=self._recorder or sampler
        )

    def run(self, prompts: Iterable[Prompt]) -> list[Completion]:
        """Complete all prompts, in their order."""
        waiting = {f"offline-{self._num_requests + i}": p for i, p in enumerate(prompts)}
        self._num_requests += len(waiting)
        done = {request_id: Completion() for request_id in waiting}
        forced = {r: p.forced_ids for r, p in waiting.items() if p.forced_ids is not None}
        assert self._recorder is not None or not forced, "forced_ids need records_logits"
        if self._recorder is not None:
            self._recorder.forced = forced
        step = 0
        while waiting or self.engine.has_work:
            for request_id in [r for r, p in waiting.items() if p.arrives <= step]:
                self.engine.submit(generate(request_id, waiting.pop(request_id)))
            for event in self.engine.step():
                _take(event, done)
            step += 1
            if self.engine.is_stalled:
                time.sleep(STALLED_S)
        if self._recorder is not None:
            for request_id, rows in self._recorder.logits.items():
                done[request_id].logits = torch.stack(rows)
            self._recorder.logits = {}
        return list(done.values())


def generate(request_id: str, prompt: Prompt) -> Generate:
    """A prompt as the engine takes it; forced ids are the sampler's business."""
    sampling = prompt.sampling
    if prompt.forced_ids is not None:
        sampling = replace(sampling, max_tokens=len(prompt.forced_ids), ignore_eos=True)
    return Generate(
        request_id=request_id,
        prompt_ids=tuple(prompt.token_ids),
        sampling=sampling,
        tenant=prompt.tenant,
        project="offline",
        cache_scope=prompt.tenant,
        adapter=prompt.adapter,
    )


def _take(event: Event, done: Mapping[str, Completion]) -> None:
    match event:
        case TokenEvent(request_id, token_ids, text, logprobs):
            done[request_id].token_ids += token_ids
            done[request_id].logprobs += logprobs
            done[request_id].text += text
        case Finished(request_id):
            done[request_id].finished = event
