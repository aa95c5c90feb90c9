"""The seam between the engine's loop and the device: launch a plan, collect its tokens."""

from collections.abc import Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

import torch

from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.batch import build_batch
from loraplex_engine.device import Device, LayerKv
from loraplex_engine.messages import TokenLogprob
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.sampler import Drawn
from loraplex_engine.scheduling.policy import BlockCopy, ScheduledTokens, StepPlan

Handle = TypeVar("Handle")


class SampledTokens(NamedTuple):
    """What one item of a plan yielded: none for a prompt's inner chunk, one for a decode."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token if the request wants them, else empty


class Runner(Protocol[Handle]):
    """Computes steps. The next step may be launched before the last one is collected."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Start copies between device and host, in their order and before what is launched next."""
        ...

    def launch(self, plan: StepPlan) -> Handle:
        """Start computing the plan; its sequences' block tables are final until it is collected."""
        ...

    def collect(self, handle: Handle) -> list[SampledTokens]:
        """Wait for a launched step; one entry per item of its plan, in order."""
        ...


class StepHandle(NamedTuple):
    """A launched step; `drawn` is None if no row of it samples."""

    plan: StepPlan
    drawn: Drawn | None


class TokenSampler(Protocol):
    """Turns logits into tokens: `Sampler`, or one that is told what to say."""

    def sample(self, logits: torch.Tensor, items: Sequence[ScheduledTokens]) -> Drawn: ...


class ModelRunner:
    """Runs steps on one device."""

    def __init__(
        self,
        decoder: Decoder,
        kv: list[LayerKv],
        adapters: AdapterTier,
        sampler: TokenSampler,
        device: Device,
        host_kv: list[LayerKv] | None = None,
    ) -> None:
        self.decoder = decoder
        self.kv = kv
        self.adapters = adapters
        self.sampler = sampler
        self.device = device
        self.host_kv = host_kv
        self._block_size = kv[0].k.shape[2]

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for direction, run in groupby(copies, key=attrgetter("direction")):
            assert self.host_kv is not None, "the policy has no host blocks to name"
            pairs = [(copy.source, copy.target) for copy in run]
            if direction == "to_host":
                self.device.copy_blocks(self.kv, self.host_kv, pairs)
            else:
                self.device.copy_blocks(self.host_kv, self.kv, pairs)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepHandle:
        batch = build_batch(plan, self._block_size, self.adapters.slot_of, self.device.torch_device)
        adapters = self.adapters
        logits = self.decoder.forward(batch, self.kv, adapters.slabs, adapters.extras)
        if logits is None:
            return StepHandle(plan, None)
        return StepHandle(plan, self.sampler.sample(logits, _sampling_items(plan)))

    def collect(self, handle: StepHandle) -> list[SampledTokens]:
        if handle.drawn is None:
            return [SampledTokens()] * len(handle.plan.items)
        token_ids = handle.drawn.token_ids.tolist()
        logprobs = handle.drawn.row_logprobs(_sampling_items(handle.plan))
        rows = count()
        outcome = []
        for item in handle.plan.items:
            if item.samples:
                row = next(rows)
                own = (logprobs[row],) if row in logprobs else ()
                outcome.append(SampledTokens((token_ids[row],), own))
            else:
                outcome.append(SampledTokens())
        return outcome


def _sampling_items(plan: StepPlan) -> list[ScheduledTokens]:
    return [item for item in plan.items if item.samples]
