"""The seam between the engine's loop and the device: launch a plan, collect its tokens."""

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import accumulate, count, groupby
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.batch import StepTables, build_batch, move
from loraplex_engine.device import Device, LayerKv, Mark
from loraplex_engine.graphs import DecodeGraphs
from loraplex_engine.messages import TokenLogprob
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.model.extras import Logits
from loraplex_engine.pace import Pace
from loraplex_engine.sampler import Drawn, TokenSampler, has_penalty
from loraplex_engine.scheduling.policy import BlockCopy, ScheduledTokens, StepPlan
from loraplex_engine.sequence import Sequence
from loraplex_engine.widths import sample_all
from loraplex_kernels.attention import has_companies
from loraplex_kernels.lora import Int32Array

Handle = TypeVar("Handle")
T = TypeVar("T")


class SampledTokens(NamedTuple):
    """What one item of a plan yielded: none for a prompt's inner chunk, one for a decode."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token if the request wants them, else empty


class Runner(Protocol[Handle]):
    """Computes steps. The next step may be launched before the last one is collected."""

    def copy_blocks(self, copies: Ordered[BlockCopy]) -> None:
        """Start copies between device and host, in their order and before what is launched next."""
        ...

    def launch(self, plan: StepPlan) -> Handle:
        """Start computing the plan; its sequences' block tables are final until it is collected."""
        ...

    def collect(self, handle: Handle) -> list[SampledTokens]:
        """Wait for a launched step; one entry per item of its plan, in order."""
        ...


class StepHandle(NamedTuple):
    """A launched step; `drawn` yields None if no row of it samples."""

    plan: StepPlan
    drawn: "Future[Drawn | None]"


class Feed(NamedTuple):
    """Tokens that the step before samples and this one computes, in the order of its items."""

    drawn: "Future[Drawn | None]"
    sampled_rows: list[int]
    token_rows: list[int]
    penalised: list[tuple[Sequence, int]]  # whose output lacks the token of this sampled row


class CopyInFlight(NamedTuple):
    """Blocks that move while steps are computed."""

    mark: Mark
    blocks: Int32Array  # of the device, read or written


class AtOnce(Executor):
    """Does what it is asked to before it returns."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as fault:
            done.set_exception(fault)
        return done


class ModelRunner:
    """Runs steps on one device, one after the other on the executor's only thread.

    What a step needs of the sequences is read at its launch, so the loop may go on with them.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: list[LayerKv],
        adapters: AdapterTier,
        sampler: TokenSampler,
        device: Device,
        host_kv: list[LayerKv] | None = None,
        executor: Executor | None = None,
        graphs: DecodeGraphs | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.decoder = decoder
        self.kv = kv
        self.adapters = adapters
        self.sampler = sampler
        self.device = device
        self.host_kv = host_kv
        self._executor = executor or AtOnce()
        self._graphs = graphs
        self._pace = pace or Pace()
        self._copying: list[CopyInFlight] = []  # of the executor's thread alone
        self._block_size = kv[0].k.shape[2]
        self._has_companies = has_companies(kv[0].k)
        self._copied: Future[None] | None = None
        self._last: StepHandle | None = None

    def copy_blocks(self, copies: Ordered[BlockCopy]) -> None:
        if self._copied is not None and self._copied.done():
            self._copied.result()  # raises what went wrong
        if copies:
            self._copied = self._executor.submit(self._copy, copies, self._copied)
            if self._copied.done():
                self._copied.result()

    @torch.inference_mode()
    def _copy(self, copies: Ordered[BlockCopy], before: "Future[None] | None") -> None:
        if before is not None:
            before.result()
        for direction, run in groupby(copies, key=attrgetter("direction")):
            assert self.host_kv is not None, "the policy has no host blocks to name"
            pairs = [(copy.source, copy.target) for copy in run]
            is_leaving = direction == "to_host"
            ends = (self.kv, self.host_kv) if is_leaving else (self.host_kv, self.kv)
            mark = self.device.copy_blocks(*ends, pairs)
            if mark is not None:
                blocks = np.array(pairs, np.int32)[:, 0 if is_leaving else 1]
                self._copying.append(CopyInFlight(mark, blocks))

    def launch(self, plan: StepPlan) -> StepHandle:
        self._pace.step()
        tables = build_batch(
            plan,
            self._block_size,
            self.adapters.slot_of,
            has_long_chunks=self.device.has_long_chunks,
            finds_companies=self._has_companies,
        )
        feed, items = self._feed(plan)
        drawn = self._executor.submit(self._compute, tables, items, feed, self._copied)
        self._last = StepHandle(plan, drawn)
        return self._last

    def _feed(self, plan: StepPlan) -> tuple[Feed | None, list[ScheduledTokens]]:
        """What the step in flight samples for this one, and the items that sample in this one."""
        ends = accumulate(item.num_tokens for item in plan.items)
        rows = {i.seq: end - 1 for i, end in zip(plan.items, ends, strict=True) if _is_ahead(i)}
        items = _sampling_items(plan)
        if not rows:
            return None, items
        assert self._last is not None, "a token that is not known is being sampled"
        sampled = {item.seq: row for row, item in enumerate(_sampling_items(self._last.plan))}
        feed = Feed(self._last.drawn, [sampled[seq] for seq in rows], list(rows.values()), [])
        for n, item in enumerate(items):
            if item.seq in rows and has_penalty(item.seq.sampling):
                copy = replace(item.seq, output_ids=list(item.seq.output_ids))
                items[n] = item._replace(seq=copy)
                feed.penalised.append((copy, sampled[item.seq]))
        return feed, items

    @torch.inference_mode()
    def _compute(
        self,
        tables: StepTables,
        items: list[ScheduledTokens],
        feed: Feed | None,
        copied: "Future[None] | None",
    ) -> Drawn | None:
        if copied is not None:
            copied.result()  # a copy that failed left KV that nobody can trust
        self._wait_for_copies(tables)
        adapters = self.adapters
        loaded = None if self._graphs is None else self._graphs.load(tables, adapters.extras)
        batch = loaded.batch if loaded else move(tables, self.device)
        if feed is not None and feed.drawn.exception() is None:  # else its sequences have ended
            _fill(batch.token_ids, feed)
        if loaded:
            logits: Logits | None = Logits(loaded.replay())
        else:
            logits = self.decoder.forward(batch, self.kv, adapters.slabs, adapters.extras)
        return None if logits is None else sample_all(self.sampler, logits, items)

    def _wait_for_copies(self, tables: StepTables) -> None:
        """Of the blocks that a step touches; others move beside it."""
        self._copying = [copy for copy in self._copying if not copy.mark.query()]
        for copy in self._copying:
            if np.isin(tables.block_tables, copy.blocks).any():
                self.device.wait_for(copy.mark)

    def collect(self, handle: StepHandle) -> list[SampledTokens]:
        drawn = handle.drawn.result()
        if drawn is None:
            return [SampledTokens()] * len(handle.plan.items)
        token_ids = drawn.token_ids.tolist()
        logprobs = drawn.row_logprobs(_sampling_items(handle.plan))
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


def _fill(token_ids: torch.Tensor, feed: Feed) -> None:
    drawn = feed.drawn.result()
    assert drawn is not None, "the step samples"
    sources, targets = (
        torch.tensor(rows, device=token_ids.device) for rows in (feed.sampled_rows, feed.token_rows)
    )
    token_ids[targets] = drawn.token_ids[sources]
    for seq, row in feed.penalised:
        seq.output_ids.append(int(drawn.token_ids[row]))


def _is_ahead(item: ScheduledTokens) -> bool:
    """Whether it computes a token that a step in flight has yet to sample."""
    return item.start + item.num_tokens > item.seq.num_known


def _sampling_items(plan: StepPlan) -> list[ScheduledTokens]:
    return [item for item in plan.items if item.samples]
