"""What a policy is told once: the tiers' targets, limits and the constants of hierarchical fair-slack."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from loraplex_engine.messages import Tier


@dataclass(frozen=True, slots=True)
class TierTarget:
    """What a tier is promised. Infinite times: nothing."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    floor: float = 0.0  # share of all service it gets whatever the tiers above it want
    patience_s: float = 5.0  # a bypassed head waits this long, then comes first
    may_abort: bool = False  # a preempted request ends instead of waiting again

    @property
    def is_promise(self) -> bool:
        return self.ttft_s < math.inf or self.tpot_s < math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 0.3 or self.ttft_s <= 0 or self.tpot_s <= 0:
            raise ValueError(f"not a tier target: {self}")


def default_targets() -> dict[Tier, TierTarget]:
    return {
        "interactive": TierTarget(ttft_s=0.5, tpot_s=0.05, patience_s=1.5),
        "standard": TierTarget(ttft_s=3.0, tpot_s=0.1, floor=0.15),
        "batch": TierTarget(floor=0.01),
    }


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Costs are in prefill tokens, times in seconds."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    targets: Mapping[Tier, TierTarget] = field(default_factory=default_targets)

    prefill_cost: float = 1.0
    decode_cost: float = 2.0  # fairness is defined by this price, that of the usual price lists
    cached_cost: float = 0.05  # of a prompt token found in the prefix cache
    locality_window: float = (
        4096.0  # cost by which fair order may yield to a resident adapter or prefix
    )
    floor_quantum: float = 4096.0  # cost a tier may fall behind its floor

    step_cap_s: float = 0.06  # longest step while live requests prefill
    idle_step_s: float = 0.05  # longest step without live requests: what an arrival may wait
    fill_step_s: float = 0.03  # batch work fills a step with live requests up to here
    min_step_tokens: int = 64  # no step is cut below so many, whatever the targets
    batch_gate: tuple[float, float] = (
        0.45,
        0.65,
    )  # share of blocks live work needs: batch slows, stops
    decode_step_share: float = 0.8  # of the tightest TPOT: a late stream shrinks no step below it
    size_slack: float = (
        2.0  # a prompt's deadline is read as later by this many times its own duration
    )

    late_penalty: float = 4.0  # a head that missed its TTFT makes way by so many TTFTs, once

    watermark: float = 0.03  # of all blocks, kept from being promised
    headroom: float = 0.12  # of all blocks, which standard requests leave to interactive ones
    output_quantile: float = 0.7
    max_bypasses: int = 64
    max_preemptions: int = 3
    min_run_steps: int = 32  # a request taken up again is spared this long
    prefix_wait_s: float = 1.0
    lend_slack_s: float = 0.25  # a stream this far ahead of its deadline lends its slot
    max_pause_s: float = 1.25  # and asks for it back after this long
    lookahead: int = 16  # waiting requests of one flow among which a resident adapter is sought
    num_host_blocks: int = 0  # blocks in the host tier; 0: preempted work is recomputed
    copy_s_per_block: float = 4e-5  # 2 MiB of KV at 50 GB/s
    copy_overlap: float = 0.8  # share of a copy hidden behind the forward pass

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise ValueError("a step needs room for one sequence and one token")
        if not 0 <= self.watermark < 0.5 or not 0 < self.output_quantile < 1:
            raise ValueError("watermark must be in [0, 0.5), output_quantile in (0, 1)")
