"""/metrics of any API process tells of all of them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import EngineStats, PromiseStats, SchedulerStats
from loraplex_platform.observability.metrics import Metrics

WORKER = """
import sys
from pathlib import Path
from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.observability.metrics import Metrics

limiter = LimiterMetrics(Metrics(FakeEngine(), Path(sys.argv[1])).registry)
for _ in range(int(sys.argv[2])):
    limiter.rejected("tokens_per_minute", "standard")
limiter.opened("standard")
limiter.degraded(sys.argv[3] == "degraded")
"""


def work(folder: Path, rejections: int, state: str) -> None:
    subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), str(rejections), state],
        env={"PYTHONPATH": ":".join(sys.path), "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        check=True,
    )


def test_metrics_are_summed_over_workers_but_the_engine_is_one(tmp_path: Path) -> None:
    work(tmp_path, 3, "degraded")
    work(tmp_path, 4, "recovered")
    text = Metrics(FakeEngine(), tmp_path).exposition().decode()
    assert 'rejections_total{reason="tokens_per_minute",tier="standard"} 7.0' in text
    assert "loraplex_limiter_degraded 0.0" in text
    assert "loraplex_inflight_requests{" not in text  # who had them in flight is gone
    assert text.count("\nloraplex_engine_up 1.0") == 1


class Busy(FakeEngine):
    """An engine with something to tell."""

    @property
    def stats(self) -> EngineStats | None:
        stats = super().stats
        assert stats is not None
        return replace(
            stats,
            scheduler=SchedulerStats(gap_ratio=0.25, bypasses=7, drains=2, lends=3),
            promises=(PromiseStats("standard", 10, 9, 8, 7, 70),),
            busy_s=(("batch", 1.5),),
        )


def test_what_the_engine_says_of_promises_and_turns_is_exposed() -> None:
    lines = Metrics(Busy()).exposition().decode().splitlines()
    assert {
        "loraplex_service_gap_ratio 0.25",
        "loraplex_bypasses_total 7.0",
        "loraplex_slot_drains_total 2.0",
        "loraplex_slot_lends_total 3.0",
        'loraplex_promised_requests_total{tier="standard"} 10.0',
        'loraplex_promises_kept_total{kept="ttft",tier="standard"} 9.0',
        'loraplex_promises_kept_total{kept="tpot",tier="standard"} 8.0',
        'loraplex_promises_kept_total{kept="both",tier="standard"} 7.0',
        'loraplex_good_tokens_total{tier="standard"} 70.0',
        'loraplex_busy_seconds_total{tier="batch"} 1.5',
    } <= set(lines)
