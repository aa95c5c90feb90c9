"""One system in a process of its own: started, warmed up, asked for its passes, stopped.

Run by `visit`, with the interpreter of the system's environment; each line of output is a JSON object.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from golden import compare
from measurement import Row, measure, tree
from passes import GOLDEN, Pass
from workload import Server, System, load

PEFT_SYSTEMS = ("peft-one-at-a-time", "peft-mixed-batch")
SYSTEMS = ("loraplex", "vllm", "vllm-base", "llama.cpp", *PEFT_SYSTEMS)
GOAL = 0.9  # of the requests are in time at the best rate
PROBE_REQUESTS = 32
FIRST_RATE, LOWEST_RATE, HIGHEST_RATE = 1.0, 0.25, 8.0  # requests a second
WARM_UP_SHIFT = 1
HALVINGS = 2  # of the ratio between the best rate and one that is too high


def visit(
    python: Path | str,
    system: str,
    passes: list[str],
    *,
    model: Path,
    adapters: Path,
    threads: int,
    golden: Path | None = None,
    until_s: float | None = None,
) -> Iterator[dict[str, Any]]:
    """What the system did, as soon as it is known; `until_s`, of Unix, no pass begins any more."""
    command = [str(python), __file__, "--system", system, "--passes", *passes]
    command += ["--model", str(model), "--adapters", str(adapters), "--threads", str(threads)]
    if golden is not None:
        command += ["--golden", str(golden)]
    if until_s is not None:
        command += ["--until-s", str(until_s)]
    counts = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
    with subprocess.Popen(
        command, env=os.environ | counts, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if child.returncode:
        raise VisitFailed(system)


def start(args: argparse.Namespace) -> System:
    """Its own libraries are loaded here and no others, so that memory is its own."""
    if args.system in PEFT_SYSTEMS:
        from peft_systems import PeftMixedBatch, PeftOneAtATime  # noqa: PLC0415 (its own)

        make = PeftOneAtATime if args.system == PeftOneAtATime.name else PeftMixedBatch
        return make(args.model, args.adapters)
    if args.system == "loraplex":
        from server_system import LoraplexServer  # noqa: PLC0415 (its own)

        return LoraplexServer(args.model, args.adapters)
    if args.system == "llama.cpp":
        from llama_system import LlamaServer  # noqa: PLC0415 (its own)

        return LlamaServer(args.model, args.adapters, args.threads)
    from vllm_system import VllmBaseServer, VllmServer  # noqa: PLC0415 (its own)

    serve = VllmServer if args.system == VllmServer.name else VllmBaseServer
    return serve(args.model, args.adapters, args.threads)


def best_rate(is_enough: Callable[[float], bool]) -> float | None:
    """The highest rate found that is not too much; None if the lowest is."""
    best: float | None = None
    too_much: float | None = None
    rate = FIRST_RATE
    while LOWEST_RATE <= rate <= HIGHEST_RATE and (best is None or too_much is None):
        if is_enough(rate):
            best, rate = rate, rate * 2
        else:
            too_much, rate = rate, rate / 2
    for _ in range(HALVINGS):
        if best is not None and too_much is not None:
            rate = (best * too_much) ** 0.5
            best, too_much = (rate, too_much) if is_enough(rate) else (best, rate)
    return best


class VisitFailed(Exception):
    """The system could not be started, died, or answered otherwise than asked; it said why."""


class Passes:
    """Tells of each as it ends; every pass but a warm one has prompts that nobody has seen."""

    def __init__(self, system: System, golden: Path | None) -> None:
        self.system = system
        self.golden = golden
        self.last_shift = WARM_UP_SHIFT
        self.shifts: dict[Pass, int] = {}

    def run(self, text: str) -> None:
        if text == GOLDEN:
            assert self.golden is not None
            assert isinstance(self.system, Server)
            _say(golden=asdict(compare(self.system, self.golden)))
        else:
            wanted = Pass.parse(text)
            if wanted.is_search:
                rate = best_rate(lambda rate: self._is_enough(wanted, rate))
                _say(best={"system": self.system.name, "rate": rate})
            else:
                _say(row=asdict(self._measure(wanted)))
        _say(done=text)

    def _measure(self, wanted: Pass) -> Row:
        if not wanted.is_warm:
            self.last_shift += 1
            self.shifts[wanted] = self.last_shift
        return measure(self.system, str(wanted), wanted.requests(self.shifts[wanted.cold]))

    def _is_enough(self, wanted: Pass, rate: float) -> bool:
        probe = Pass(wanted.workload, wanted.limit or PROBE_REQUESTS, round(rate, 3))
        row = self._measure(probe)
        _say(row=asdict(row))
        return row.in_time is not None and row.in_time >= GOAL


def _say(**said: object) -> None:
    print(json.dumps(said), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--passes", nargs="+", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--until-s", type=float, default=float("inf"))
    args = parser.parse_args()
    began_s = time.time()
    try:
        system = start(args)
        try:
            _say(ready_s=round(time.time() - began_s, 1))
            first = next(Pass.parse(text) for text in args.passes if text != GOLDEN)
            warm_up = load(first.workload, limit=4, shift=WARM_UP_SHIFT)
            system.serve([r._replace(max_tokens=4) for r in warm_up])
            passes = Passes(system, args.golden)
            for text in args.passes:
                if time.time() < args.until_s:
                    passes.run(text)
        finally:
            system.close()
    finally:
        for left in tree()[1:]:
            left.kill()


if __name__ == "__main__":
    main()
