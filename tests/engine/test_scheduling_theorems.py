"""T1-T12 at length: as many examples as `make theorems` asks for, and in the slow suite what fits."""

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engine.test_scheduling_conservation import everyone_gets_on, survives
from tests.engine.test_scheduling_fairness import (
    bypass_is_bounded,
    floor_is_kept,
    gap_is_bounded,
    is_scale_invariant,
    light_is_dispatched_soon,
    returning_gets_no_credit,
)
from tests.engine.test_scheduling_safety import (
    batch_is_invisible,
    is_repeatable,
    no_stream_is_late,
    no_time_is_wasted,
)

pytestmark = pytest.mark.slow

# The two state machines get all their examples in the slow suite; the others take up to 0.15 s each.
THEOREMS: dict[str, tuple[Callable[[int], None], int]] = {
    "T1 service gap": (gap_is_bounded, 500),
    "T2 no credit": (returning_gets_no_credit, 100),
    "T3 dispatch latency": (light_is_dispatched_soon, 200),
    "T4 tier floor": (floor_is_kept, 200),
    "T5 bounded bypass": (bypass_is_bounded, 50),
    "T6 work conservation": (no_time_is_wasted, 10_000),
    "T7 no stream late": (no_stream_is_late, 200),
    "T8 batch invisible": (batch_is_invisible, 50),
    "T9 conservation": (survives, 10_000),
    "T10 progress": (everyone_gets_on, 200),
    "T11 scale invariance": (is_scale_invariant, 100),
    "T12 determinism": (is_repeatable, 100),
}


@pytest.mark.parametrize("name", THEOREMS)
def test_theorem_holds_at_length(name: str) -> None:
    check, usual = THEOREMS[name]
    examples = int(os.environ.get("LORAPLEX_TEST_EXAMPLES", usual))

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.generate],  # a smaller seed is no simpler case
    )
    @given(st.integers(0, 2**32))
    def holds(seed: int) -> None:
        check(seed)

    holds()
