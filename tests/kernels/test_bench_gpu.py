"""The GPU benchmark where there is no GPU: it says so, and a rehearsal goes through all of it."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.bench.bench_gpu import NO_DEVICE, Section, main, run_all
from tests.bench.gpu_report import Measure, at_least, at_most, table, write_plot

ROOT = Path(__file__).parents[2]
FOLDERS = [str(ROOT / name) for name in (".", "kernels", "adapters", "engine")]
SECTIONS = ("correctness", "parity", "kernels", "rehearsal")
HANG = """
import faulthandler, sys, time
from tests.bench import bench_gpu
from tests.bench.gpu_report import Measure

end_later, armed = faulthandler.dump_traceback_later, []
faulthandler.dump_traceback_later = lambda seconds, exit: armed.append((seconds, exit))

def hanging():
    yield Measure("kernels", "copy", 3.0, "GB/s")
    [(seconds, exit)] = armed
    assert seconds == 200
    end_later(0.01, exit=exit)
    time.sleep(1e6)

bench_gpu.sections = lambda *_: [bench_gpu.Section("hanging", 1.0, hanging)]
sys.exit(bench_gpu.main(["--rehearse", "--seconds", "200", "--out", sys.argv[1]]))
"""
# What the benchmark may find beside Python, by the issue of a bare checkout; and what these ask for
BARE = ("torch", "triton", "transformers", "peft", "safetensors", "numba")


def test_it_says_that_there_is_no_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == NO_DEVICE
    said = capsys.readouterr()
    assert "there is no GPU here" in said.err
    assert "Nothing was measured" in said.err
    assert not (tmp_path / "out").exists()


def test_targets_stand_beside_the_figures(tmp_path: Path) -> None:
    measures = [
        at_least("a", "share", 69.9, "%", 70.0),
        at_most("a", "load", 20.0, "ms", 25.0),
        Measure("b", "speed & more", 1234.5, "tokens/s"),
    ]
    lines = table(measures).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["MISSED", "met", "tokens/s"]
    assert ">= 70 %" in lines[1]
    write_plot(measures, tmp_path / "plot.svg", "a title")
    plot = (tmp_path / "plot.svg").read_text()
    assert "speed &amp; more" in plot
    assert "(target &gt;= 70 %)" in plot


def test_a_section_that_fails_does_not_take_the_others_along(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def failing() -> list[Measure]:
        raise RuntimeError("no such kernel")

    done = [Measure("kernels", "copy", 3.0, "GB/s")]
    todo = [
        Section("first", 1, failing),  # type: ignore[arg-type]  # any iterable will do
        Section("second", 1, lambda: iter(done)),
        Section("third", 1e9, lambda: iter(done)),
    ]
    assert run_all(todo, tmp_path, "title", time.monotonic() + 60) == 1
    said = capsys.readouterr().out
    assert "first: RuntimeError: no such kernel" in said
    assert "third: left out" in said
    with (tmp_path / "bench_gpu.csv").open() as file:
        assert [row["case"] for row in csv.DictReader(file)] == ["copy"]


def test_a_section_is_cut_short_at_the_deadline_and_the_table_is_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clock_s, is_closed = 0.0, False

    def long() -> Iterator[Measure]:
        nonlocal clock_s, is_closed
        try:
            for i in range(5):
                clock_s += 40
                yield Measure("kernels", f"figure {i}", 3.0, "GB/s")
        finally:
            is_closed = True  # and what it held is free

    todo = [Section("first", 90, long), Section("second", 1, lambda: iter(()))]
    assert run_all(todo, tmp_path, "a title", 100.0, now=lambda: clock_s) == 1
    assert is_closed
    said, _, last = capsys.readouterr().out.partition("\na title\n\n")
    assert "first: cut short, the five minutes are over" in said
    assert "second: left out, the five minutes are nearly over" in said
    assert [line.split()[2] for line in last.splitlines()[1:]] == ["0", "1", "2"]


def run_bench(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(FOLDERS)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_what_hangs_is_ended_and_its_figures_are_kept(tmp_path: Path) -> None:
    done = run_bench("-c", HANG, tmp_path)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in hanging" in done.stderr
    assert "copy,3.0,GB/s" in (tmp_path / "bench_gpu.csv").read_text()


def needed(names: Iterable[str]) -> set[str]:
    """Packages and all that they need, as installed here."""
    found: set[str] = set()
    todo = [*names]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in found:
            continue
        found.add(name)
        requirements = map(Requirement, metadata.requires(name) or ())
        todo += [
            r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})
        ]
    return found


def link_packages(names: Iterable[str], folder: Path) -> None:
    """A folder from which only these packages can be imported."""
    for name in names:
        site = Path(str(metadata.distribution(name).locate_file("")))
        for entry in {file.parts[0] for file in metadata.files(name) or ()} - {"..", "__pycache__"}:
            if not (folder / entry).exists():
                (folder / entry).symlink_to(site / entry)


@pytest.mark.slow
def test_a_rehearsal_runs_every_section_from_a_bare_checkout(tmp_path: Path) -> None:
    """In a process that has PYTHONPATH and the packages of a bare machine, and no network."""
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    link_packages(needed(BARE), site)
    assert not (site / "msgspec").exists()
    path = os.pathsep.join([*FOLDERS, str(site)])
    script = ROOT / "tests/bench/bench_gpu.py"
    # -S: not what is installed; seconds: the first one on a machine compiles for the CPU, beside other tests
    arguments = ("-S", script, "--rehearse", "--out", out, "--seconds", "3000")
    done = run_bench(*arguments, PYTHONPATH=path, HF_HUB_OFFLINE="1")
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    with (out / "bench_gpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == set(SECTIONS)
    wrong = [row for row in rows if row["section"] in SECTIONS[:2] and row["is_met"] != "True"]
    assert wrong == [], "what does not depend on speed"
    assert "16 adapters, share of no LoRA" in done.stdout
    assert (out / "bench_gpu.svg").exists()
