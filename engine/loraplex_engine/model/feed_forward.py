"""The second half of a layer: one gated feed-forward, or a few out of many for each token."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_engine.model.config import ExpertsConfig
from loraplex_engine.model.layers import Lora, Projection
from loraplex_kernels.activation import gelu_tanh_and_multiply, silu_and_multiply

Activate = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, Activate] = {"silu": silu_and_multiply, "gelu_tanh": gelu_tanh_and_multiply}


@dataclass(frozen=True, slots=True)
class FeedForward:
    gate_up: Projection
    down: Projection
    activate: Activate

    def __call__(self, x: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        return self.down(self.activate(self.gate_up(x, lora)), lora)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts. Tokens are sorted by expert, and each expert that has any runs once.

    All that is done to a token is done row by row or in the order of its own experts, so its result
    does not depend on its neighbours.
    """

    router: Projection
    experts: tuple[FeedForward, ...]
    per_token: int
    has_normed_weights: bool

    def __call__(self, x: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        scores = self.router(x, lora).float().softmax(-1)
        weights, chosen = scores.topk(self.per_token)  # [num_tokens, per_token]
        if self.has_normed_weights:
            weights = weights / weights.sum(-1, keepdim=True)
        wanted = chosen.flatten()
        order = wanted.argsort(stable=True)
        tokens = order // self.per_token
        counts = wanted.bincount(minlength=len(self.experts)).tolist()
        said = self._run(x[tokens], tokens, counts, lora)
        answers = torch.empty_like(said)
        answers[order] = said
        return _blend(answers.view(-1, self.per_token, x.shape[1]), weights)

    def _run(
        self, x: torch.Tensor, tokens: torch.Tensor, counts: list[int], lora: Lora | None
    ) -> torch.Tensor:
        """Each expert on its own run of the rows of x, which are of these tokens."""
        rows = None if lora is None else tokens.cpu().numpy().astype(np.int32)
        said = torch.empty_like(x)
        end = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                start, end = end, end + count
                theirs = None
                if lora is not None and rows is not None:
                    theirs = lora.of_rows(rows[start:end])
                said[start:end] = expert(x[start:end], theirs)
        return said


def _blend(answers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum over [num_tokens, per_token, hidden_size], in float32 and in that order."""
    mixed = answers[:, 0].float() * weights[:, :1]
    for i in range(1, answers.shape[1]):
        mixed += answers[:, i].float() * weights[:, i : i + 1]
    return mixed.to(answers.dtype)


def expert_specs(
    name: str, prefix: str, hidden_size: int, experts: ExpertsConfig
) -> Iterator[ProjectionSpec]:
    """The router and the experts of a layer as projections that adapters may change."""
    names, inner = experts.names, experts.intermediate_size
    block = f"{prefix}.{names.block}"
    router = SliceSpec(f"{block}.{names.router}", experts.count)
    yield ProjectionSpec(f"{name}.router", hidden_size, (router,))
    for e in range(experts.count):
        expert, module = f"{name}.experts.{e}", f"{block}.experts.{e}"
        gate_up = tuple(SliceSpec(f"{module}.{part}", inner) for part in (names.gate, names.up))
        down = SliceSpec(f"{module}.{names.down}", hidden_size)
        yield ProjectionSpec(f"{expert}.gate_up", hidden_size, gate_up)
        yield ProjectionSpec(f"{expert}.down", inner, (down,))
