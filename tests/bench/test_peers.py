"""How `make bench-peers` plans its visits, goes on after one that broke off, and finds a rate."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SYSTEMS = ["loraplex", "vllm", "vllm-base", "llama.cpp", "peft-mixed-batch"]
PASSES = ["golden", "w1", "w3+warm", "w0", "w1:16", "w1@0.5"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks are scripts: they import each other by their folder."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return import_module("peer_plan")


@pytest.fixture
def visit(bench: ModuleType) -> ModuleType:
    """Found beside it."""
    return import_module("visit")


def test_rounds_alternate_and_long_passes_are_in_the_first_alone(bench: ModuleType) -> None:
    visits = bench.plan(SYSTEMS, PASSES, 2)
    assert [(v.round, v.system, v.passes) for v in visits] == [
        (0, "loraplex", PASSES),
        (0, "vllm", PASSES),
        (0, "vllm-base", ["w0"]),
        (0, "llama.cpp", PASSES),
        (0, "peft-mixed-batch", ["w1:16"]),
        (1, "llama.cpp", ["w1", "w3+warm", "w0"]),
        (1, "vllm-base", ["w0"]),
        (1, "vllm", ["w1", "w3+warm", "w0"]),
        (1, "loraplex", ["w1", "w3+warm", "w0"]),
    ]


def test_a_system_named_twice_is_visited_twice(bench: ModuleType) -> None:
    visits = bench.plan(["loraplex", "vllm", "loraplex"], ["w1", "w1@0.5"], 1)
    assert [(v.system, v.turn, v.passes) for v in visits] == [
        ("loraplex", 0, ["w1", "w1@0.5"]),
        ("vllm", 0, ["w1", "w1@0.5"]),
        ("loraplex", 1, ["w1"]),
    ]


def test_what_was_done_is_not_done_again_but_for_what_warms_up(bench: ModuleType) -> None:
    [visit] = bench.plan(["vllm"], ["w1", "w3", "w3+warm"], 1)
    where: dict[str, Any] = {"round": 0, "system": "vllm", "turn": 0}
    entries = [where | {"done": "w1"}, where | {"row": {}}, where | {"done": "w3"}]
    assert bench.missing(visit, [where | {"done": "w1", "turn": 1}]) == ["w1", "w3", "w3+warm"]
    assert bench.missing(visit, entries) == ["w3", "w3+warm"]
    assert bench.missing(visit, [*entries, where | {"done": "w3+warm"}]) == []


@pytest.mark.parametrize("text", ["w1", "w1:16", "w1@0.5", "w1:32@0.71", "w1@best", "w3+warm"])
def test_a_pass_is_written_as_it_is_read(bench: ModuleType, text: str) -> None:
    assert str(bench.Pass.parse(text)) == text


@pytest.mark.parametrize("text", ["w1@", "w1:", "w1+hot", "1", "w1@0.5@2"])
def test_what_is_no_pass_is_refused(bench: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match="is no pass"):
        bench.Pass.parse(text)


@pytest.mark.parametrize("capacity", [0.3, 0.9, 1.0, 3.0])
def test_the_best_rate_is_just_below_what_is_too_much(visit: ModuleType, capacity: float) -> None:
    best = visit.best_rate(lambda rate: rate <= capacity)
    assert best is not None
    assert best <= capacity < best * 2**0.25


def test_a_search_ends_where_nothing_or_everything_is_enough(visit: ModuleType) -> None:
    assert visit.best_rate(lambda _: False) is None
    assert visit.best_rate(lambda _: True) == visit.HIGHEST_RATE
