"""From logits to tokens. A row's draw depends on its logits, its request's seed and its step alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from loraplex_engine.messages import SamplingParams, TokenLogprob
from loraplex_engine.scheduling.policy import ScheduledTokens
from loraplex_kernels.sampling import keep_top_k, keep_top_p, most_likely, pick

NEGATIVE_INFINITY = float("-inf")
LEAST_TEMPERATURE = 1e-5  # draws the most likely token; less of it would overflow
LARGEST_LOGIT = 1e30  # what penalties may make of one; still finite after the temperature


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token a row; log probabilities only of the rows in `logprob_rows`, top ones of all of these."""

    token_ids: torch.Tensor  # int64 [num_rows]
    logprob_rows: list[int]
    logprobs: torch.Tensor | None = None  # float32 [len(logprob_rows)]
    top_ids: torch.Tensor | None = None  # int64 [len(logprob_rows), most wanted]
    top_logprobs: torch.Tensor | None = None  # float32, alike

    def row_logprobs(self, items: Sequence[ScheduledTokens]) -> dict[int, TokenLogprob]:
        """Of each row that wants them, by row."""
        if self.logprobs is None or self.top_ids is None or self.top_logprobs is None:
            return {}
        ids, own = self.token_ids.tolist(), self.logprobs.tolist()
        top = zip(self.top_ids.tolist(), self.top_logprobs.tolist(), strict=True)
        return {
            row: TokenLogprob(
                ids[row], own[i], tuple(zip(*pair, strict=True))[: _wanted(items[row])]
            )
            for i, (row, pair) in enumerate(zip(self.logprob_rows, top, strict=True))
        }


class TokenSampler(Protocol):
    """Turns logits into tokens: `Sampler`, or one that is told what to say."""

    def sample(self, logits: torch.Tensor, items: Sequence[ScheduledTokens]) -> Drawn: ...


class Sampler:
    """Draws all rows of a step together; greedy rows of a plain step cost one argmax."""

    def sample(self, logits: torch.Tensor, items: Sequence[ScheduledTokens]) -> Drawn:
        """logits: [num_rows, vocab_size]; items: the plan's items that sample, in the rows' order."""
        adjusted = self._adjust(logits, items)
        token_ids = most_likely(adjusted)
        hot = [row for row, item in enumerate(items) if item.seq.sampling.temperature > 0]
        if hot:
            params = [items[row].seq.sampling for row in hot]
            rows = torch.tensor(hot, device=logits.device)
            uniform = uniforms([p.seed for p in params], [_step(items[row]) for row in hot])
            token_ids[rows] = draw(adjusted[rows].float(), params, uniform)
        wanting = [row for row, item in enumerate(items) if item.seq.sampling.logprobs is not None]
        if not wanting:
            return Drawn(token_ids, wanting)
        rows = torch.tensor(wanting, device=logits.device)
        logprobs = logits[rows].float().log_softmax(-1)
        top_ids = _largest(logprobs, max(_wanted(items[row]) for row in wanting))
        own = logprobs.gather(1, token_ids[rows, None])[:, 0]
        return Drawn(token_ids, wanting, own, top_ids, logprobs.gather(1, top_ids))

    def _adjust(self, logits: torch.Tensor, items: Sequence[ScheduledTokens]) -> torch.Tensor:
        """Penalties, biases and bans, on a copy if there are any."""
        adjusted = logits
        for row, item in enumerate(items):
            params = item.seq.sampling
            is_short = _step(item) < params.min_tokens
            if not (is_short or params.logit_bias or has_penalty(params)):
                continue
            if adjusted is logits:
                adjusted = logits.float().clone()
            _penalise(adjusted[row], item)
            if params.logit_bias:
                ids, values = zip(*params.logit_bias, strict=True)
                bias = torch.tensor(values, dtype=adjusted.dtype, device=adjusted.device)
                adjusted[row].index_add_(0, torch.tensor(ids, device=adjusted.device), bias)
            if is_short:
                banned = item.seq.eos_token_ids.union(params.stop_token_ids)
                adjusted[row, sorted(banned)] = NEGATIVE_INFINITY
        return adjusted


def _largest(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the largest of each row, the first of equals first: topk's own order of equals depends
    on how many are asked for, and that on who else is in the step."""
    if count == 0:
        return logprobs.new_empty((len(logprobs), 0), dtype=torch.int64)
    is_large = logprobs >= logprobs.topk(count).values[:, -1:]
    rows = []
    for row, is_kept in zip(logprobs, is_large, strict=True):
        ids = is_kept.nonzero()[:, 0]
        order = row[ids].sort(descending=True, stable=True).indices
        rows.append(ids[order[:count]])
    return torch.stack(rows)


def draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniform: npt.NDArray[np.float64]
) -> torch.Tensor:
    """One token a row, of temperature > 0: min_p, then top_k, then top_p, then the inverse of the
    distribution function at `uniform`, in the vocabulary's order. Ties at a limit are all kept."""
    device = logits.device
    temperature = torch.tensor([max(p.temperature, LEAST_TEMPERATURE) for p in params])
    logits = logits / temperature.to(device)[:, None]
    _apply_min_p(logits, params)
    if any(p.top_k for p in params):
        keep_top_k(logits, torch.tensor([p.top_k for p in params], device=device))
    probabilities = logits.softmax(-1)
    if any(p.top_p < 1 for p in params):
        top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
        keep_top_p(probabilities, top_p)
    return pick(probabilities, torch.from_numpy(uniform).to(device))


def uniforms(seeds: Sequence[int], steps: Sequence[int]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each pair of seed and step: two rounds of splitmix64."""
    seed = np.array([seed % 2**64 for seed in seeds], np.uint64)
    step = np.array(steps, np.uint64)
    bits = _mix(_mix(seed) + step)
    return (bits >> np.uint64(16)).astype(np.float64) / 2.0**48


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _step(item: ScheduledTokens) -> int:
    """Which completion token of its sequence this item samples, from 0."""
    return item.start + item.num_tokens - item.seq.num_prompt_tokens


def _wanted(item: ScheduledTokens) -> int:
    return item.seq.sampling.logprobs or 0


def has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def _penalise(row: torch.Tensor, item: ScheduledTokens) -> None:
    """Repetition counts the prompt too; presence and frequency only what was generated."""
    params, seq = item.seq.sampling, item.seq
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted({*seq.prompt_ids, *seq.output_ids}), device=row.device)
        logits = row[seen]
        penalty = params.repetition_penalty
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        row[seen] = penalised.clamp(max=LARGEST_LOGIT)
    if seq.output_ids and (params.presence_penalty or params.frequency_penalty):
        ids, counts = np.unique(np.array(seq.output_ids), return_counts=True)
        penalty_of = params.presence_penalty + params.frequency_penalty * counts
        indices = torch.from_numpy(ids).to(row.device)
        row[indices] -= torch.from_numpy(penalty_of).to(row)


def _apply_min_p(logits: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    rows = [row for row, p in enumerate(params) if p.min_p > 0]
    if rows:
        chosen = logits[rows]
        least = torch.tensor([params[row].min_p for row in rows], device=logits.device).log()
        limit = chosen.amax(-1) + least
        logits[rows] = chosen.masked_fill(chosen < limit[:, None], NEGATIVE_INFINITY)
