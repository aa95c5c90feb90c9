"""Work in the background has a fifth of the time while steps run, and all of it while none do."""

import pytest

from loraplex_engine.pace import LONGEST_PAUSE_S, RECENT_S, SHARE, Pace


class Time:
    """A clock that moves when it is told to, and by what is slept."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def pace(time: Time) -> Pace:
    return Pace(lambda: time.now_s, time.sleep)


@pytest.mark.parametrize("piece_s", [0.001, 0.01, 0.1])
def test_beside_steps_a_fifth_of_the_time_is_worked(time: Time, pace: Pace, piece_s: float) -> None:
    began_s = time.now_s
    for _ in range(50):
        pace.step()
        time.now_s += piece_s
        pace.pause()
    assert 50 * piece_s / (time.now_s - began_s) == pytest.approx(SHARE)


def test_without_steps_nothing_waits(time: Time, pace: Pace) -> None:
    for _ in range(50):
        time.now_s += 0.1
        pace.pause()
    pace.step()
    time.now_s += RECENT_S
    pace.pause()
    assert time.slept_s == 0


def test_a_long_time_without_work_is_not_made_up_for(time: Time, pace: Pace) -> None:
    time.now_s += 3600
    pace.step()
    pace.pause()
    assert time.slept_s == LONGEST_PAUSE_S
