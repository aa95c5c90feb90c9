"""The limiter's gate: which limit is named, what is estimated, what the past says."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.platform.limit_stores import (
    NOON_MS,
    TENANT,
    concurrent,
    daily,
    monthly,
    requests,
    tokens,
)

from loraplex_platform.admission import memory_store
from loraplex_platform.admission.estimator import Estimator
from loraplex_platform.admission.gate import FIRST_OUTPUT_TOKENS, Gate
from loraplex_platform.admission.headers import go_duration, limit_headers
from loraplex_platform.admission.limits import DIMENSIONS, Claim, Limit, Need, Outcome, Rejection
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.store import StoreUnavailable
from loraplex_platform.admission.tenant_limiter import type_of


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else limits that are used up would have room again."""
    monkeypatch.setattr(memory_store, "wall_ms", lambda: NOON_MS)


def need(id: str, tokens: int = 10, estimate: int = 0, ttl_s: float = 60) -> Need:
    amounts = {"requests": 1, "running": 1, "tokens": tokens}
    return Need(id, TENANT, amounts, ttl_s, {"tokens": estimate})


async def admit(gate: Gate, id: str, *limits: Limit, tokens: int = 10) -> Claim:
    claim = await gate.admit(need(id, tokens), limits)
    assert isinstance(claim, Claim)
    return claim


async def reject(gate: Gate, id: str, *limits: Limit, tokens: int = 10) -> Rejection:
    rejection = await gate.admit(need(id, tokens), limits)
    assert isinstance(rejection, Rejection)
    return rejection


async def test_a_rejection_names_the_limit_that_takes_longest_to_make_room() -> None:
    gate = Gate(MemoryStore())
    limits = (requests(1), tokens(10))
    await admit(gate, "a", *limits, tokens=1)
    rejection = await reject(gate, "b", *limits, tokens=10)
    assert rejection.limit == limits[0]
    assert rejection.retry_after_s == pytest.approx(60, abs=1)
    assert (rejection.requested, rejection.used, rejection.reason) == (1, 1, "exceeded")


async def test_a_request_larger_than_a_limit_is_named_too_large() -> None:
    rejection = await reject(Gate(MemoryStore()), "a", requests(1), tokens(9))
    assert (rejection.limit, rejection.reason) == (tokens(9), "too_large")
    assert rejection.retry_after_s is None


async def test_a_request_without_limits_is_admitted() -> None:
    gate = Gate(MemoryStore())
    assert await gate.settle(await admit(gate, "a"), {"tokens": 3})


async def test_a_small_limit_is_not_pinned_by_a_large_estimate() -> None:
    gate, limit = Gate(MemoryStore()), tokens(100)
    claim = await gate.admit(need("a", tokens=1040, estimate=1000), [limit])
    assert isinstance(claim, Claim)
    assert claim.charges[0].amount == 100
    await gate.settle(claim, {"tokens": 60})
    assert (await gate.read(TENANT, [limit]))[0].used in (59, 60)


async def test_the_firm_part_of_a_demand_is_never_cut() -> None:
    rejection = await Gate(MemoryStore()).admit(need("a", 1000, estimate=10), [tokens(100)])
    assert isinstance(rejection, Rejection)
    assert rejection.requested == 990


async def test_output_is_estimated_by_what_the_same_tenant_and_adapter_wrote() -> None:
    gate = Gate(MemoryStore())
    assert gate.estimate_output(TENANT, "v1", 4000) == FIRST_OUTPUT_TOKENS
    assert gate.estimate_output(TENANT, "v1", 12) == 12
    for _ in range(60):
        gate.observe_output(TENANT, "v1", 40)
    assert 40 <= gate.estimate_output(TENANT, "v1", 4000) <= 42
    assert gate.estimate_output(TENANT, "v2", 4000) == FIRST_OUTPUT_TOKENS


def test_an_estimator_follows_and_covers_the_usual_spread() -> None:
    estimator = Estimator()
    for i in range(400):
        estimator.observe("k", 50 if i % 2 else 150)
    estimate = estimator.estimate("k")
    assert estimate is not None
    assert 150 <= estimate <= 260


def test_an_estimator_forgets_the_idlest_keys() -> None:
    estimator = Estimator(max_keys=2)
    for key in ("a", "b", "a", "c"):
        estimator.observe(key, 1)
    assert [estimator.estimate(key) is None for key in ("a", "b", "c")] == [False, True, False]


async def test_a_lease_promises_the_usual_time_and_never_more_than_its_expiry() -> None:
    now = 1000.0
    gate = Gate(MemoryStore(), wall_clock=lambda: now)
    for i in range(40):  # requests of this tenant take 7 s
        claim = await admit(gate, f"r{i}", concurrent(1))
        now += 7
        await gate.settle(claim, {})
    await admit(gate, "running", concurrent(1))
    rejection = await reject(gate, "late", concurrent(1))
    assert rejection.retry_after_s == pytest.approx(7, abs=0.6)
    brief = await gate.admit(need("x", ttl_s=0.001), [concurrent(1)])
    assert isinstance(brief, Rejection)
    assert brief.retry_after_s is not None
    assert brief.retry_after_s <= 60


async def test_a_lost_period_is_rebuilt_from_the_records_before_anybody_passes() -> None:
    asked = []

    async def history(tenant: str, limit: Limit) -> int:
        asked.append((tenant, limit.dimension.name))
        return 95

    gate = Gate(MemoryStore(), history)
    limits = (daily(100), monthly(1000), requests(5))
    rejection = await reject(gate, "a", *limits, tokens=10)
    assert (rejection.limit, rejection.used) == (limits[0], 95)
    claim = await admit(gate, "b", *limits, tokens=5)
    assert [reading.used for reading in claim.readings] == [100, 100, 1]
    assert asked == [(TENANT, "tokens_per_day"), (TENANT, "tokens_per_month")]


async def test_without_a_store_a_strict_limit_is_named() -> None:
    class Gone(MemoryStore):
        async def reserve(
            self, claim: Claim, ttl_s: float, *, now_ms: int | None = None
        ) -> Outcome:
            raise StoreUnavailable("gone")

    strict = Limit(daily(9).dimension, "tenant", TENANT, 9, strict=True)
    rejection = await reject(Gate(Gone()), "a", requests(5), strict)
    assert (rejection.limit, rejection.reason) == (strict, "store_unavailable")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (12, "12ms"),
        (999, "999ms"),
        (1000, "1s"),
        (8640, "8.64s"),
        (59_999, "59.999s"),
        (90_000, "1m30s"),
        (360_000, "6m0s"),
        (3_600_250, "1h0m0.25s"),
        (86_400_000, "24h0m0s"),
    ],
)
def test_durations_are_written_as_go_does(milliseconds: int, text: str) -> None:
    assert go_duration(milliseconds) == text


async def test_headers_tell_of_the_tightest_rate_of_each_unit() -> None:
    gate = Gate(MemoryStore())
    key, project = requests(60), Limit(requests(1).dimension, "project", "proj_1", 10)
    claim = await admit(gate, "a", key, project, tokens(6000), daily(20), tokens=10)
    assert limit_headers(claim.charges, claim.readings) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5990",
        "x-ratelimit-reset-tokens": "100ms",
    }


def test_the_page_on_limits_names_every_dimension_with_its_error() -> None:
    page = (Path(__file__).parents[2] / "deploy" / "docs" / "limits.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| `(\w+)` \| `(\w+)` \|$", page, re.MULTILINE)
    quota = "insufficient_quota"
    assert rows == [
        (name, quota if d.code == quota else type_of(d.unit, name), d.code)
        for name, d in DIMENSIONS.items()
    ]


def test_the_page_on_limits_names_every_metric_of_the_limiter() -> None:
    page = (Path(__file__).parents[2] / "deploy" / "docs" / "limits.md").read_text()
    registry = CollectorRegistry()
    LimiterMetrics(registry)
    named = set(re.findall(r"^\| `(loraplex_\w+?)(?:_total)?[`{]", page, re.MULTILINE))
    assert named == {metric.name for metric in registry.collect()}
