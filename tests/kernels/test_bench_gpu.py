"""The GPU benchmark where there is no GPU: it says so, and a rehearsal goes through all of it."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.bench.bench_gpu import NO_DEVICE, Section, main, run_all
from tests.bench.gpu_report import Measure, at_least, at_most, table, write_plot

ROOT = Path(__file__).parents[2]
SECTIONS = ("correctness", "parity", "kernels", "rehearsal")
REHEARSE = """
import sys
from tests.bench.bench_gpu import main
main(sys.argv[1:])
others = {"fastapi", "matplotlib", "msgspec", "pydantic", "sqlalchemy", "zmq"}
print("loaded:", sorted(others & sys.modules.keys()))
"""


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


@pytest.mark.slow
def test_a_rehearsal_runs_every_section_from_a_bare_checkout(tmp_path: Path) -> None:
    """In a process that has nothing but PYTHONPATH and no network, and loads little."""
    folders = os.pathsep.join(str(ROOT / name) for name in (".", "kernels", "adapters", "engine"))
    environment = os.environ | {"PYTHONPATH": folders, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", REHEARSE, "--rehearse", "--out", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    with (tmp_path / "bench_gpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["section"] for row in rows} == set(SECTIONS)
    wrong = [row for row in rows if row["section"] in SECTIONS[:2] and row["is_met"] != "True"]
    assert wrong == [], "what does not depend on speed"
    assert "16 adapters, share of no LoRA" in done.stdout
    assert (tmp_path / "bench_gpu.svg").exists()
    assert "loaded: []" in done.stdout
