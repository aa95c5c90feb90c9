"""`make bench-gpu`: what the GPU path does on a GPU, in at most five minutes; fails where a target is missed.

From a bare checkout, offline: `PYTHONPATH=.:kernels:adapters:engine python tests/bench/bench_gpu.py`, with
torch, triton, transformers, peft, safetensors and numba; all weights are random. `--rehearse` runs every
section on the CPU with tiny shapes: it shows that the script works, its figures say nothing about a GPU.
Writes out/bench_gpu.csv and out/bench_gpu.svg as it goes; the table comes last.
"""

import argparse
import faulthandler
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from tests.bench.gpu_checks import check_kernels
from tests.bench.gpu_kernels import time_kernels
from tests.bench.gpu_machine import REHEARSAL, Machine, Sizes
from tests.bench.gpu_report import Measure, table, write_csv, write_plot

OUT = Path(__file__).parents[2] / "out"
LONGEST_S = 300.0
LAST_S = 15.0  # of them are for the figure in hand and the table; then the process ends
NO_GPU = """bench-gpu: there is no GPU here (torch {torch} sees no CUDA device). Nothing was measured.
On a machine with one, run `make bench-gpu` again. `--rehearse` runs every section on the CPU with tiny
shapes, to see that the script works; what it prints then says nothing about a GPU."""
MISSED, NO_DEVICE = 1, 2  # exit statuses


class Section(NamedTuple):
    name: str
    usual_s: float  # left out if less of the five minutes is left
    run: Callable[[], Iterator[Measure]]


def sections(machine: Machine, folder: Path, is_rehearsal: bool) -> list[Section]:
    """What decides most comes first: the times of a wrong kernel are worth nothing."""
    # transformers and peft: seconds that nobody without a GPU should wait for
    from tests.bench.gpu_engine import REHEARSED, Load, check_parity, measure_model  # noqa: PLC0415
    from tests.bench.gpu_models import LLAMA, QWEN, TINY  # noqa: PLC0415

    load, models = (REHEARSED, (TINY,)) if is_rehearsal else (Load(), (LLAMA, QWEN))
    return [
        Section("correctness of every configuration", 60, partial(check_kernels, machine)),
        Section("greedy parity", 25, partial(check_parity, machine, folder)),
        Section("kernel times", 30, partial(time_kernels, machine)),
        *(
            Section(s.name, 50, partial(measure_model, machine, s, load, folder / s.name))
            for s in models
        ),
    ]


def run_all(
    todo: Sequence[Section],
    out: Path,
    title: str,
    deadline_s: float,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Every section for which there is time; the exit status. One that fails does not stop the others.

    A section that is still running at the deadline ends with the figure that it was at.
    """
    out.mkdir(exist_ok=True)
    measures: list[Measure] = []
    troubles: list[str] = []
    keep(measures, title, out)
    for section in todo:
        started_s = now()
        if started_s + section.usual_s > deadline_s:
            troubles.append(f"{section.name}: left out, the five minutes are nearly over")
            continue
        print(f"{section.name} …", flush=True)
        try:
            for measure in section.run():
                measures.append(measure)
                keep(measures, title, out)
                print("  ", table([measure]).splitlines()[1], flush=True)
                if now() > deadline_s:
                    troubles.append(f"{section.name}: cut short, the five minutes are over")
                    break
        except Exception as fault:  # a GPU is at hand for minutes only: the rest is still wanted
            traceback.print_exc()
            troubles.append(f"{section.name}: {type(fault).__name__}: {fault}")
        print(f"   {now() - started_s:.0f} s", flush=True)
    say(measures, troubles, title, out)
    return MISSED if troubles or any(m.is_met is False for m in measures) else 0


def keep(measures: Sequence[Measure], title: str, out: Path) -> None:
    write_csv(measures, out / "bench_gpu.csv")
    write_plot(measures, out / "bench_gpu.svg", title)


def say(measures: Sequence[Measure], troubles: Sequence[str], title: str, out: Path) -> None:
    """What went wrong and where the figures are; the table last, where a cut log still has it."""
    checks = [m for m in measures if m.section == "correctness"]
    wrong = [f"wrong: {m.case}: {m.value:.2e} {m.unit}" for m in checks if not m.is_met]
    print(f"\nwrote {out / 'bench_gpu.csv'} and bench_gpu.svg")
    print(f"correctness: {len(checks) - len(wrong)} of {len(checks)} cases within their tolerance")
    for trouble in [*troubles, *wrong]:
        print(trouble)
    print(f"\n{title}\n\n{table(m for m in measures if m.section != 'correctness')}")


def main(arguments: Sequence[str]) -> int:
    started_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="bench_gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny shapes")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=LONGEST_S)
    args = parser.parse_args(arguments)
    if not args.rehearse and not torch.cuda.is_available():
        print(NO_GPU.format(torch=torch.__version__), file=sys.stderr)
        return NO_DEVICE
    torch.manual_seed(0)
    if args.rehearse:
        machine, title = Machine(torch.device("cpu"), REHEARSAL), "rehearsal on the CPU: no figures"
    else:
        machine = Machine(torch.device("cuda"), Sizes())
        title = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16"
    faulthandler.dump_traceback_later(args.seconds, exit=True)  # whatever hangs, a kernel too
    try:
        with tempfile.TemporaryDirectory() as folder:
            todo = sections(machine, Path(folder), args.rehearse)
            return run_all(todo, args.out, title, started_s + args.seconds - LAST_S)
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
