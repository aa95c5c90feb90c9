"""/metrics of any API process tells of all of them."""

import subprocess
import sys
from pathlib import Path

from loraplex_engine.fake import FakeEngine
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
