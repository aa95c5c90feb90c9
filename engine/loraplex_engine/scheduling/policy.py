"""The seam between the engine's loop and whoever decides what the next step computes.

A policy is pure Python, owns no clock and no tensor: `now` is a parameter, KV blocks and adapter
slots are reached through the two Protocols below, so a simulator can drive the same code.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from loraplex_engine.messages import TenantShare, WaitReason
from loraplex_engine.sequence import Sequence

# "abort": the policy has let go of the sequence as `finish` does; the loop ends the request.
PreemptionMode = Literal["recompute", "offload", "abort"]
AdapterState = Literal["resident", "loading", "absent"]


class ScheduledTokens(NamedTuple):
    """`num_tokens` more tokens of `seq` are computed; positions [start, start + num_tokens)."""

    seq: Sequence
    start: int
    num_tokens: int
    samples: bool  # whether the last of them yields a new token


class Preemption(NamedTuple):
    seq: Sequence
    mode: PreemptionMode


class BlockCopy(NamedTuple):
    """Copy one block between the device and the host tier; the policy hands out host blocks.

    Copies of a plan take effect in the order of its list, before its forward pass and after those
    of the plan before it, so a block may be given to somebody else in the plan that copies it away.
    """

    source: int
    target: int
    direction: Literal["to_host", "to_device"]


@dataclass(slots=True)
class StepPlan:
    """What one step does. Preemptions and copies happen before the forward pass."""

    items: list[ScheduledTokens] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    loads: list[str] = field(
        default_factory=list
    )  # adapter versions to start loading, never awaited
    predicted_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)


class Explanation(NamedTuple):
    """Why a sequence waits; reason None means it does not."""

    reason: WaitReason | None
    ahead: int
    expected_s: float | None
    detail: str = ""


class PolicyStats(NamedTuple):
    """Totals of a policy's turns, and how unevenly it serves those who wait."""

    bypasses: int = 0
    drains: int = 0
    lends: int = 0
    gap_ratio: float = 0.0  # of service by weight, over the bound that is guaranteed


def take(plan: StepPlan, seq: Sequence, num_tokens: int) -> None:
    """Put the next `num_tokens` tokens of a sequence into the plan."""
    assert 0 < num_tokens <= seq.num_todo
    start = seq.num_scheduled
    seq.num_scheduled += num_tokens
    samples = seq.num_todo == 0
    seq.num_pending += samples
    plan.items.append(ScheduledTokens(seq, start, num_tokens, samples))


class KvCache(Protocol):
    """Blocks as a policy sees them. Implemented by loraplex_engine.prefix_cache.PagedKv."""

    block_size: int
    num_blocks: int

    @property
    def num_free(self) -> int:
        """Blocks that can be had now: unused ones and cached ones nobody holds."""
        ...

    def match_prefix(self, seq: Sequence) -> int:
        """Cached tokens a waiting sequence would start with; changes nothing but recency."""
        ...

    def next_block_key(self, seq: Sequence) -> bytes | None:
        """Key of the first full known block that is not cached, so that two can be seen to want it."""
        ...

    def blocks_needed(self, seq: Sequence, num_tokens: int) -> int:
        """New blocks wanted so that the sequence holds `num_tokens` tokens in all."""
        ...

    def start(self, seq: Sequence) -> int:
        """Take the cached prefix: fills block_table, sets num_computed and num_scheduled; returns it."""
        ...

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Grow the block table to `num_tokens` tokens in all, or change nothing and say False."""
        ...

    def commit(self, seq: Sequence) -> None:
        """Publish the blocks that num_computed has filled since the last call."""
        ...

    def free(self, seq: Sequence) -> None:
        """Give all blocks back; published ones stay cached until evicted. Idempotent."""
        ...


class PrefixCache(KvCache, Protocol):
    """Blocks as the loop sees them, which also keeps registered prefixes."""

    def block_keys(self, seq: Sequence) -> list[bytes]:
        """Keys of the full blocks of its prompt, cached or not."""
        ...

    def num_cached_of(self, keys: list[bytes]) -> int:
        """How many blocks of a chain are cached, from its beginning."""
        ...

    def keep_warm(self, keys: list[bytes]) -> None:
        """Evict these last, cached as they are or as soon as they come; counted."""
        ...

    def let_cool(self, keys: list[bytes]) -> None:
        """The counterpart of keep_warm."""
        ...


class AdapterSlots(Protocol):
    """Device slots as a policy sees them. Implemented by loraplex_adapters.cache."""

    def state(self, adapter: str) -> AdapterState: ...

    def can_load(self, adapter: str) -> bool:
        """Whether a load could start now: a free slot, or an idle one to evict."""
        ...

    def blockers(self, adapter: str, remaining: Callable[[str], float]) -> Collection[str] | None:
        """The fewest adapters in use whose end would let this one load; None: not known yet.

        A wide adapter may wait for several. Among as few, those whose `remaining` work is least.
        """
        ...

    def acquire(self, adapter: str) -> None:
        """One more running sequence uses a resident adapter."""
        ...

    def release(self, adapter: str) -> None:
        """The counterpart of acquire."""
        ...


class Policy(Protocol):
    """Decides each step. The loop calls add and finish, schedule(now), then observe of the same plan.

    schedule advances num_scheduled and num_pending (see `take`); once the step's tokens are there,
    the loop advances num_computed, appends them to output_ids, lowers num_pending, calls finish for
    those that ended, and then observe. With asynchronous stepping schedule may be called once more
    before observe.
    """

    def add(self, seq: Sequence, now: float) -> None:
        """Queue a new sequence."""
        ...

    def finish(self, seq: Sequence, now: float, *, is_cut: bool = False) -> None:
        """A sequence ended (stop, length, abort, error), wherever it was: release what it holds.

        is_cut: not by itself, so its length tells nothing about others'. Idempotent. If a step in flight
        still computes it, its blocks are freed by that step's observe.
        """
        ...

    def set_share(self, share: TenantShare) -> None: ...

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step and charge for it at once; may be empty."""
        ...

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        """The plan's step took `seconds`. The loop has already appended the sampled tokens."""
        ...

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """A step that nobody scheduled, run to see how long it takes, took `seconds`."""
        ...

    def reason(self, seq: Sequence) -> WaitReason | None:
        """Why it waits, without the rest of an explanation; None if it does not."""
        ...

    def explain(self, seq: Sequence, now: float) -> Explanation: ...

    @property
    def running(self) -> list[Sequence]: ...

    @property
    def waiting(self) -> list[Sequence]: ...

    @property
    def stats(self) -> PolicyStats: ...
