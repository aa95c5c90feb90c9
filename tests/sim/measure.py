"""What a run says: latencies, attainment, service, fairness."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.sim.simulator import Outcome, Simulation

from loraplex_engine.messages import Tier
from loraplex_engine.scheduling.config import TierTarget


def percentile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def is_met(outcome: Outcome, target: TierTarget) -> bool:
    """Both targets kept; a request that did not end is a miss."""
    if outcome.ttft_s is None or outcome.last_s is None:
        return False
    return outcome.ttft_s <= target.ttft_s and outcome.tpot_s <= target.tpot_s


def attainment(outcomes: list[Outcome], targets: Mapping[Tier, TierTarget]) -> float:
    met = sum(is_met(outcome, targets[outcome.tier]) for outcome in outcomes)
    return met / max(1, len(outcomes))


@dataclass(frozen=True)
class Measured:
    """One run, in numbers; times in seconds, service in prefill tokens' worth per second."""

    finished: int
    unfinished: int
    attainment: float
    attainment_interactive: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    tpot_p99: float
    live_service: float
    batch_service: float
    recomputed_share: float
    preemptions: int
    step_s: float
    model_error: float


def measure(run: Simulation) -> Measured:
    """TTFT and TPOT are of the interactive tier; attainment is of all live requests."""
    interactive = [o for o in run.outcomes if o.tier == "interactive"]
    targets = run.config.targets
    never = 10 * targets["interactive"].ttft_s + run.now
    ttfts = [never if o.ttft_s is None else o.ttft_s for o in interactive] or [0.0]
    tpots = [never if o.last_s is None else o.tpot_s for o in interactive] or [0.0]
    totals = run.totals
    computed = (
        totals.prefill_tokens.total() + totals.decode_tokens.total() + totals.recomputed_tokens
    )
    finished = sum(o.last_s is not None for o in run.outcomes)
    return Measured(
        finished=finished,
        unfinished=len(run.outcomes) - finished,
        attainment=attainment(run.outcomes, targets),
        attainment_interactive=attainment(interactive, targets),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p95=percentile(ttfts, 0.95),
        ttft_p99=percentile(ttfts, 0.99),
        tpot_p99=percentile(tpots, 0.99),
        live_service=(totals.service("interactive") + totals.service("standard")) / run.now,
        batch_service=totals.service("batch") / run.now,
        recomputed_share=totals.recomputed_tokens / max(1, computed),
        preemptions=totals.preemptions,
        step_s=totals.busy_s / max(1, totals.steps),
        model_error=totals.model_error / max(1, totals.steps),
    )


def jain(values: list[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values)) if any(values) else 1.0
