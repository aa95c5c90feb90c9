"""Several API processes before one engine and one Redis."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.e2e.stand import Served, serving
from tests.services import running_redis
from tests.until import wait_until

pytestmark = pytest.mark.slow

QUESTION = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6000, "stream": True}
CLAIM_TTL_S = 10.0


def workers_of(served: Served) -> list[psutil.Process]:
    children = psutil.Process(served.process.pid).children()
    return [child for child in children if "loraplex_platform.api" in child.cmdline()]


def post(served: Served, **changes: object) -> httpx2.Response:
    entry = served.demo["tenants"]["acme"]
    return httpx2.post(
        f"{served.base_url}/chat/completions",
        json=QUESTION | {"model": entry["model"]} | changes,
        headers={"authorization": f"Bearer {entry['api_key']}"},
        timeout=60,
    )


def ask(served: Served, **changes: object) -> int:
    return post(served, **changes).status_code


def test_two_workers_count_together_and_a_killed_ones_leases_expire(
    tmp_path: Path, model: Path
) -> None:
    with running_redis() as redis:
        more = {"WORKERS": 2, "REDIS_URL": redis.url, "CLAIM_TTL_S": CLAIM_TTL_S}
        with serving(tmp_path / "home", model, REDIS_TIMEOUT_S=60, **more) as served:
            served.cli("limits", "set", "concurrent_requests", "3", "--tenant", "acme")
            wait_until(lambda: len(workers_of(served)) == 2, what="two workers")
            with ThreadPoolExecutor(12) as pool:
                streams = [pool.submit(lambda: ask(served, ignore_eos=True)) for _ in range(12)]
                wait_until(lambda: sum(s.done() for s in streams) >= 9, what="rejections")
                for worker in workers_of(served):
                    worker.kill()
                answers = [s.result() if s.exception() is None else None for s in streams]
            assert Counter(answers)[429] == 9
            wait_until(lambda: served.readiness() == 200, what="new workers")
            wait_until(lambda: ask(served, max_tokens=1) == 200, what="expired leases")
            with httpx2.Client(timeout=60) as http:
                text = http.get(f"http://127.0.0.1:{served.port}/metrics").text
            assert 'reason="concurrent_requests",tier="standard"} ' in text
            assert served.rows("SELECT 1 FROM usage_event WHERE outcome = 'length'")
