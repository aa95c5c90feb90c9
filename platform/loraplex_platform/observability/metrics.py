"""Prometheus metrics, all named loraplex_*; labels come from closed sets, never from clients."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import TIERS, EngineStats, Tier

SHORT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the metrics want to know of a request that ended."""

    tier: Tier
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    sequences: int
    queue_s: float | None
    ttft_s: float | None
    total_s: float

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first of each sequence."""
        later = self.completion_tokens - self.sequences
        if self.ttft_s is None or later <= 0:
            return None
        return (self.total_s - self.ttft_s) * self.sequences / later


class Metrics:
    """An API process's metrics, in a registry of its own; with a folder, all processes' sums."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, engine: EngineClient, shared_folder: Path | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._engine = EngineCollector(engine)
        self._shared_folder = shared_folder
        if shared_folder is not None:
            _forget_the_dead(shared_folder)
        by = ("tier", "outcome")
        self._requests = Counter("loraplex_requests", "Requests that ended.", by, registry=registry)
        self._tokens = Counter(
            "loraplex_tokens", "Tokens by kind.", ("tier", "kind"), registry=registry
        )
        self._ttft = Histogram(
            "loraplex_ttft_seconds", "Time to first token.", by, registry=registry, buckets=SHORT_S
        )
        self._tpot = Histogram(
            "loraplex_tpot_seconds",
            "Time per output token after the first.",
            by,
            registry=registry,
            buckets=PER_TOKEN_S,
        )
        self._queue = Histogram(
            "loraplex_queue_wait_seconds",
            "Time in the engine's queue.",
            by,
            registry=registry,
            buckets=SHORT_S,
        )

    def observe(self, seen: Observation) -> None:
        self._requests.labels(seen.tier, seen.outcome).inc()
        self._tokens.labels(seen.tier, "prompt").inc(seen.prompt_tokens)
        self._tokens.labels(seen.tier, "cached").inc(seen.cached_tokens)
        self._tokens.labels(seen.tier, "completion").inc(seen.completion_tokens)
        timings = (
            (self._ttft, seen.ttft_s),
            (self._tpot, seen.tpot_s),
            (self._queue, seen.queue_s),
        )
        for histogram, seconds in timings:
            if seconds is not None:
                histogram.labels(seen.tier, seen.outcome).observe(seconds)

    def exposition(self) -> bytes:
        """All processes see the same engine, so that its gauges are not added up."""
        whole = CollectorRegistry()
        whole.register(self._engine)
        if self._shared_folder is None:
            whole.register(self.registry)
        else:
            MultiProcessCollector(whole, str(self._shared_folder))  # type: ignore[no-untyped-call]
        return generate_latest(whole)


def _forget_the_dead(folder: Path) -> None:
    """What a killed process had in flight ended with it; what it counted stays."""
    for path in folder.glob("gauge_live*_*.db"):
        pid = int(path.stem.rpartition("_")[2])
        if not _is_alive(pid):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


class EngineCollector(Collector):
    """Gauges read from the engine's latest statistics when Prometheus asks."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        yield GaugeMetricFamily(
            "loraplex_engine_up", "Whether the engine speaks.", float(stats is not None)
        )
        if stats is None:
            return
        yield _by_tier(stats, "loraplex_running", "Sequences in steps.", is_waiting=False)
        yield _by_tier(stats, "loraplex_waiting", "Sequences that wait.", is_waiting=True)
        used = 1.0 - stats.free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield GaugeMetricFamily("loraplex_kv_usage_ratio", "Blocks in use, 0 to 1.", used)
        yield from _of_scheduler(stats)
        yield from _of_promises(stats)
        yield from _of_adapter_tiers(stats)


def _of_scheduler(stats: EngineStats) -> Iterator[Metric]:
    seen = stats.scheduler
    gauges = (
        ("loraplex_schedule_seconds", "Time to plan a step, smoothed.", seen.schedule_s),
        ("loraplex_step_seconds", "Time of a step, smoothed.", stats.step_s),
        ("loraplex_forecast_error_ratio", "|step / forecast - 1|, smoothed.", seen.forecast_error),
        ("loraplex_fairness_jain", "Of weighted service among waiting tenants.", seen.jain),
        ("loraplex_service_gap_ratio", "Of waiting tenants, over its bound.", seen.gap_ratio),
        ("loraplex_spare_ratio", "Part of a step that live traffic leaves.", stats.spare),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(name, text, value)
    counters = (
        ("loraplex_slow_steps", "That took over five times their forecast.", seen.slow_steps),
        ("loraplex_bypasses", "Starts past one that could not start.", seen.bypasses),
        ("loraplex_slot_drains", "Adapters let run out for another one.", seen.drains),
        ("loraplex_slot_lends", "Adapters paused for another one.", seen.lends),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value)
    preempted = CounterMetricFamily("loraplex_preemptions", "By what became of KV.", labels=("kv",))
    preempted.add_metric(("offloaded",), seen.offloads)
    preempted.add_metric(("dropped",), stats.preemptions - seen.offloads)
    yield preempted
    waste = "Tokens computed again after a preemption."
    yield CounterMetricFamily("loraplex_recomputed_tokens", waste, stats.tokens.recomputed)


def _of_promises(stats: EngineStats) -> Iterator[Metric]:
    """Attainment is a promise's counter over the requests'; goodput is the rate of kept="both"."""
    requests = CounterMetricFamily(
        "loraplex_promised_requests", "That ended, of tiers with targets.", labels=("tier",)
    )
    kept = CounterMetricFamily(
        "loraplex_promises_kept", "Of these, within a target.", labels=("tier", "kept")
    )
    tokens = CounterMetricFamily(
        "loraplex_good_tokens", "Generated by those within both.", labels=("tier",)
    )
    for seen in stats.promises:
        requests.add_metric((seen.tier,), seen.requests)
        for name, value in (
            ("ttft", seen.ttft_kept),
            ("tpot", seen.tpot_kept),
            ("both", seen.kept),
        ):
            kept.add_metric((seen.tier, name), value)
        tokens.add_metric((seen.tier,), seen.good_tokens)
    busy = CounterMetricFamily("loraplex_busy_seconds", "Step time by tier.", labels=("tier",))
    for tier, seconds in stats.busy_s:
        busy.add_metric((tier,), seconds)
    yield from (requests, kept, tokens, busy)


def _of_adapter_tiers(stats: EngineStats) -> Iterator[Metric]:
    labels = ("store",)
    counters = (
        ("loraplex_adapter_hits", "Versions found in a tier.", "hits"),
        ("loraplex_adapter_loads", "Versions brought to a tier.", "loads"),
        ("loraplex_adapter_load_seconds", "Time of these loads together.", "load_s"),
        ("loraplex_adapter_load_failures", "Loads that ended with an error.", "failures"),
        ("loraplex_adapter_evictions", "Versions that left a tier.", "evictions"),
    )
    gauges = (
        ("loraplex_adapter_bytes", "Of the versions in a tier.", "num_bytes"),
        ("loraplex_adapter_budget_bytes", "Of a tier; 0: it has none.", "budget_bytes"),
        ("loraplex_adapter_versions", "In a tier.", "versions"),
    )
    for kind, entries in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, text, field in entries:
            family = kind(name, text, labels=labels)
            for tier in stats.adapter_tiers:
                family.add_metric((tier.tier,), getattr(tier, field))
            yield family


def _by_tier(stats: EngineStats, name: str, text: str, *, is_waiting: bool) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=("tier",))
    waiting_phases = ("waiting", "loading", "parked")
    for tier in TIERS:
        count = sum(
            s.tier == tier and (s.phase in waiting_phases) == is_waiting for s in stats.sequences
        )
        gauge.add_metric((tier,), count)
    return gauge
