"""The cache of what was just read is bounded in age and in number."""

from hypothesis import given
from hypothesis import strategies as st

from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.recent import Recent

STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "drop", "wait"]), st.integers(0, 5)), max_size=60
)


@given(STEPS)
def test_value_is_found_until_it_is_old_dropped_or_pushed_out(
    steps: list[tuple[str, int]],
) -> None:
    clock, max_age_s, max_size = ManualClock(), 3, 3
    recent: Recent[int, float] = Recent(clock, max_age_s, max_size)
    model: dict[int, float] = {}
    for what, key in steps:
        if what == "put":
            model.pop(key, None)
            model[key] = clock.monotonic()
            model = dict(list(model.items())[-max_size:])
            recent.put(key, clock.monotonic())
        elif what == "drop":
            model.pop(key, None)
            recent.drop(key)
        elif what == "wait":
            clock.advance(key)
        put_s = model.get(key)
        is_fresh = put_s is not None and clock.monotonic() - put_s < max_age_s
        assert recent.get(key) == (put_s if is_fresh else None)
