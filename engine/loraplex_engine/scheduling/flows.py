"""Who is owed service: requests queue in flows (a tenant within a tier), flows compete in lanes (a tier).

A flow's counter is the service it got divided by its weight. The flow with the lowest counter is
next, give or take the locality window; a flow that comes back from idleness is lifted to the lane's
virtual time, so nobody saves up credit. A lane falls at most its floor's quantum behind its floor.
"""

import math
from bisect import insort
from dataclasses import dataclass, field

from loraplex_engine.messages import TenantShare, Tier, WaitReason
from loraplex_engine.scheduling.config import TierTarget
from loraplex_engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Request:
    """A sequence as the policy sees it."""

    seq: Sequence
    flow: "Flow"
    number: int  # in order of arrival
    due_s: float  # when its next token is due
    urgency: tuple[float, int]  # order within its flow
    tpot_s: float
    estimate: int = 0  # forecast of all output tokens
    capacity: int = 0  # tokens its blocks can hold
    decode_price: float = 0.0  # what a generated token adds to its flow's counter
    replay: int = 0  # tokens to compute again after a preemption of ours; not charged
    is_admitted: bool = False
    is_late: bool = False  # missed its first token's deadline and made way once
    has_slot: bool = False  # counts among the users of its adapter
    slot_since_s: float = 0.0
    admitted_step: int = 0
    reason: WaitReason | None = None
    denied_s: float | None = None  # since when others may have passed it
    denied_at: int = 0  # admissions of its lane until then
    refused_at: int = -1  # version of the running set that left it no memory
    prefix_since_s: float | None = None  # since when it waits for somebody's next block
    prefix_key: bytes | None = None  # that block's
    prefix_hint: tuple[int, int] = (0, 0)  # the step that looked, cached tokens
    host_blocks: list[int] = field(default_factory=list)
    num_checkpointed: int = 0  # leading blocks whose copy on the host is complete
    parked_tokens: int = 0  # whose KV lies on the host only

    @property
    def is_live(self) -> bool:
        return self.flow.lane.is_live

    @property
    def footprint(self) -> int:
        """Tokens it is expected to hold when it ends."""
        return len(self.seq.prompt_ids) + self.estimate


def is_busy(request: Request) -> bool:
    """Whether a step in flight, or the one being planned, computes it."""
    return request.seq.num_scheduled > request.seq.num_computed


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's standing and what it holds, over all tiers."""

    share: TenantShare
    num_running: int = 0
    num_blocks: int = 0

    def is_over_cap(self, num_blocks: int) -> bool:
        share = self.share
        return (share.max_running is not None and self.num_running >= share.max_running) or (
            share.kv_share is not None and self.num_blocks >= share.kv_share * num_blocks
        )


@dataclass(slots=True, eq=False)
class Flow:
    """A tenant's queue within a tier, and the service it had."""

    tenant: Tenant
    lane: "Lane"
    counter: float = 0.0
    blocked_step: int = 0  # step in which nobody of it could start
    waiting: list[Request] = field(default_factory=list)  # by urgency

    def charge(self, cost: float) -> None:
        self.counter += cost / self.tenant.share.weight
        self.lane.served += cost

    def push(self, request: Request) -> None:
        if not self.waiting:
            self.lift()
            self.lane.backlog[self] = None
        self.insert(request)

    def insert(self, request: Request) -> None:
        insort(self.waiting, request, key=_urgency)

    def lift(self) -> None:
        """Nobody comes back with credit for the time it was away."""
        self.counter = max(self.counter, self.lane.virtual)

    def remove(self, request: Request) -> None:
        """It no longer waits: it runs, or it ended."""
        self.waiting.remove(request)
        if not self.waiting:
            del self.lane.backlog[self]

    def is_capped(self, num_blocks: int) -> bool:
        """Whether a soft cap holds it back; caps bind only while another tenant waits."""
        return self.tenant.is_over_cap(num_blocks) and self.lane.has_rival(self.tenant)


def _urgency(request: Request) -> tuple[float, int]:
    return request.urgency


class Lane:
    """One tier: its flows, its virtual time, and how far it is behind its floor."""

    def __init__(self, tier: Tier, index: int, target: TierTarget, above: "Lane | None") -> None:
        self.tier = tier
        self.index = index
        self.target = target
        self.above = above
        self.is_live = tier != "batch"
        self.flows: dict[str, Flow] = {}
        self.backlog: dict[Flow, None] = {}  # flows with somebody waiting
        self.prefills: dict[Request, None] = {}  # running, prompt not yet computed
        self.decodes: dict[Request, None] = {}  # running, one token a step; oldest first
        self.footprint = 0  # tokens the running ones are expected to hold at their ends
        self.version = (
            0  # of its running requests' demand for memory; grows when it may have shrunk
        )
        self.virtual = 0.0
        self.lag = 0.0
        self.served = 0.0  # in this step
        self.num_admissions = 0
        self.num_bypasses = 0  # admissions past somebody who was denied
        self.denied: dict[Request, None] = {}  # waiting ones that could not start in their turn

    @property
    def num_running(self) -> int:
        return len(self.prefills) + len(self.decodes)

    def flow(self, tenant: Tenant) -> Flow:
        flow = self.flows.get(tenant.share.tenant)
        if flow is None:
            flow = self.flows[tenant.share.tenant] = Flow(tenant, self)
        return flow

    def has_rival(self, tenant: Tenant) -> bool:
        """Whether another tenant waits in this tier or one above it."""
        if any(flow.tenant is not tenant for flow in self.backlog):
            return True
        return self.above is not None and self.above.has_rival(tenant)

    def enter(self, request: Request) -> None:
        """A request starts to run."""
        (self.decodes if request.seq.is_decode else self.prefills)[request] = None
        self.footprint += request.footprint
        self.version += 1
        request.flow.tenant.num_running += 1

    def leave(self, request: Request) -> None:
        """A running request ends, or goes back to wait."""
        del (self.decodes if request in self.decodes else self.prefills)[request]
        self.footprint -= request.footprint
        self.version += 1
        request.flow.tenant.num_running -= 1

    def revise(self, request: Request, estimate: int) -> None:
        """Think again about how long a running request's output gets."""
        self.footprint += estimate - request.estimate
        self.version += estimate < request.estimate
        request.estimate = estimate

    def deny(self, request: Request, reason: WaitReason, now: float) -> None:
        """It was its turn and it could not start: from here on others may pass, but not for ever."""
        request.reason = reason
        if request.denied_s is None:
            request.denied_s = now
            request.denied_at = self.num_admissions
            self.denied[request] = None

    def admit(self, request: Request) -> None:
        """A waiting request takes up running."""
        request.flow.remove(request)
        self.forgive(request)
        self.num_admissions += 1
        self.num_bypasses += bool(self.denied)
        self.enter(request)

    def forgive(self, request: Request) -> None:
        """It waits no more. Idempotent."""
        self.denied.pop(request, None)
        request.denied_s = request.reason = request.prefix_since_s = None

    def advance(self) -> float:
        """The lowest counter of those who wait; virtual time follows it and never goes back."""
        if not self.backlog:
            return math.inf
        lowest = min([flow.counter for flow in self.backlog])
        if lowest > self.virtual:
            self.virtual = lowest
        return lowest

    def settle(self, served_by_all: float, quantum: float) -> None:
        """Close a step: how much of its floor the lane still has to get."""
        self.advance()
        if self.backlog or self.prefills:
            owed = self.lag + self.target.floor * served_by_all - self.served
            self.lag = min(max(owed, -quantum), 4 * quantum)
        else:
            self.lag = 0.0
        self.served = 0.0
