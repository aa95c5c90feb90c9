"""What the engine does at this moment, as one caller may see it."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from loraplex_engine.messages import TIERS, EngineStats, SequenceStats
from loraplex_platform.kit.principal import Administrator

WAITING_PHASES = ("waiting", "loading", "parked")


class TierNow(NamedTuple):
    """Sequences of one tier."""

    tier: str
    running: int
    waiting: int
    longest_wait_s: float


class AdapterNow(NamedTuple):
    """Sequences of one tenant's adapter; those that run share the engine's steps."""

    tenant_id: str
    version: str | None  # None: the base model
    reading: int  # their prompts
    writing: int  # their answers
    waiting: int

    @property
    def running(self) -> int:
        return self.reading + self.writing


@dataclass(frozen=True, slots=True)
class Device:
    """The engine as a whole, which is the staff's business alone."""

    used_blocks: int
    num_blocks: int
    used_slots: int
    num_slots: int
    num_resident: int  # adapters that need no loading
    step_s: float
    spare: float
    preemptions: int
    is_draining: bool


@dataclass(frozen=True, slots=True)
class Live:
    tiers: tuple[TierNow, ...]
    adapters: tuple[AdapterNow, ...]
    reasons: tuple[tuple[str, int], ...]  # why those that wait do, most frequent first
    device: Device | None

    @property
    def running(self) -> int:
        return sum(tier.running for tier in self.tiers)

    @property
    def waiting(self) -> int:
        return sum(tier.waiting for tier in self.tiers)

    @property
    def adapters_in_step(self) -> int:
        return sum(1 for each in self.adapters if each.running and each.version is not None)


def live_of(stats: EngineStats, by: Administrator) -> Live:
    """Staff see all sequences, a tenant's people their own."""
    seen = [s for s in stats.sequences if by.sees(s.tenant)]
    waits = [s for s in seen if _waits(s)]
    reading = Counter((s.tenant, s.adapter) for s in seen if s.phase == "prefill")
    writing = Counter((s.tenant, s.adapter) for s in seen if s.phase == "decode")
    waiting = Counter((s.tenant, s.adapter) for s in waits)
    owners = sorted(
        reading + writing + waiting,
        key=lambda of: (-(reading + writing)[of], -waiting[of], str(of)),
    )
    return Live(
        tiers=tuple(_tier(tier, seen) for tier in TIERS),
        adapters=tuple(AdapterNow(*of, reading[of], writing[of], waiting[of]) for of in owners),
        reasons=tuple(Counter(str(s.reason or s.phase) for s in waits).most_common()),
        device=_device(stats) if by.tenant_id is None else None,
    )


def _waits(sequence: SequenceStats) -> bool:
    return sequence.phase in WAITING_PHASES


def _tier(tier: str, sequences: list[SequenceStats]) -> TierNow:
    own = [s for s in sequences if s.tier == tier]
    waits = [s.waited_s for s in own if _waits(s)]
    return TierNow(tier, len(own) - len(waits), len(waits), max(waits, default=0.0))


def _device(stats: EngineStats) -> Device:
    return Device(
        used_blocks=stats.num_blocks - stats.free_blocks,
        num_blocks=stats.num_blocks,
        used_slots=stats.num_slots - stats.free_slots,
        num_slots=stats.num_slots,
        num_resident=len(stats.resident_adapters),
        step_s=stats.step_s,
        spare=stats.spare,
        preemptions=stats.preemptions,
        is_draining=stats.draining,
    )
