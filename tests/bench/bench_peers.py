"""`make bench-peers`: Loraplex, vLLM, llama.cpp's server, and transformers with PEFT, in turns.

Each peer lives in an environment of its own (environments.py; the first run makes them, in half an hour),
each system in a process of its own, one after the other and backwards every other round, in bfloat16,
greedy. A round is all requests of w1, w0 and w3 at once, w3 also when the server knows the system prompts.
The first round also has the first 16 of w1 (all that PEFT is asked for), w1 at 0.5 and 2 requests a second
and the highest rate at which 90 % of requests are in time: TTFT at most 1 s, TPOT at most 50 ms. Before
that each server's greedy tokens are compared with those of transformers and PEFT in float32. vllm-base is
vLLM without LoRA, which it then compiles: it is asked for w0.

Every figure goes to out/bench_peers.jsonl at once; `--resume` keeps what is there and does the rest. Writes
out/bench_peers.{json,csv,md,png}. About an hour and a quarter on two cores; `--minutes` begins nothing later.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from environments import CACHE, llama_cpp, python_of, run, vllm_preloads, without_threads
from llama_system import converted
from peer_plan import PASSES, Entry, Visit, missing, plan
from peer_report import OUT, write_report
from random_adapters import make_adapters
from visit import PEFT_SYSTEMS, SYSTEMS, VisitFailed, visit

JOURNAL = OUT / "bench_peers.jsonl"


def prepare(args: argparse.Namespace) -> Path:
    """Make what is missing; returns the file of golden tokens."""
    CACHE.mkdir(parents=True, exist_ok=True)
    make_adapters(args.model, args.adapters)
    peft, golden = python_of("peft"), OUT / "bench_peers_golden.json"
    if not golden.exists():
        script = Path(__file__).with_name("golden_reference.py")
        patient = without_threads() | {"OMP_WAIT_POLICY": "passive"}  # whatever else runs here
        run([peft, script, args.model, args.adapters, golden], patient)
    if any(system.startswith("vllm") for system in args.systems):
        python_of("vllm")
        vllm_preloads()
    if "llama.cpp" in args.systems:
        llama_cpp()
        converted(args.model, args.adapters)
    return golden


def measure(args: argparse.Namespace, golden: Path, entries: list[Entry]) -> list[str]:
    """All visits, each figure noted at once; returns what failed."""
    until_s, failed = time.time() + args.minutes * 60, []
    for each in plan(args.systems, args.passes, args.rounds):
        passes = missing(each, entries)
        if not passes or time.time() > until_s:
            continue
        print(f"{time.strftime('%H:%M:%S')} round {each.round}: {each.system}", flush=True)
        python = python_of("peft") if each.system in PEFT_SYSTEMS else sys.executable
        where = {"model": args.model, "adapters": args.adapters, "golden": golden}
        try:
            for said in visit(
                python, each.system, passes, threads=args.threads, until_s=until_s, **where
            ):
                note(each, said, entries)
        except VisitFailed as failure:
            failed.append(f"{failure} in round {each.round}")
    return failed


def note(visit_: Visit, said: Entry, entries: list[Entry]) -> None:
    entry = {"round": visit_.round, "system": visit_.system, "turn": visit_.turn, **said}
    entries.append(entry)
    with JOURNAL.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    tell(said)


def tell(said: Entry) -> None:
    if "row" in said:
        row = said["row"]
        text = f"{row['workload']}: {row['tokens_per_s']} tokens/s in {row['seconds']} s"
        if row["ttft_p95_ms"] is not None:
            text += f", TTFT p95 {row['ttft_p95_ms']:.0f} ms, TPOT p50 {row['tpot_p50_ms']:.1f} ms"
        print(f"   {text}, other cores {row['other_cores']}", flush=True)
    elif "done" not in said:
        print("  ", json.dumps(said), flush=True)


def main() -> None:
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=cache / "models" / "smollm2-135m-instruct")
    parser.add_argument("--adapters", type=Path, default=OUT / "bench-adapters")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS),
                        help="in this order; one that is named twice is visited twice a round")  # fmt: skip
    parser.add_argument("--workloads", dest="passes", nargs="+", default=list(PASSES),
                        help=f"of {' '.join(PASSES)}, or others of that form")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each system")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--prepare", action="store_true", help="make the environments, no more")
    args = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    golden = prepare(args)
    if args.prepare:
        return
    if not args.resume:
        JOURNAL.unlink(missing_ok=True)
    lines = JOURNAL.read_text().splitlines() if JOURNAL.exists() else []
    entries = [json.loads(line) for line in lines]
    failed = []
    try:
        failed = measure(args, golden, entries)
    finally:  # what an hour saw is told even where it did not come to its end
        if any("row" in entry for entry in entries):
            print(write_report(entries, args.threads))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; --resume tries again")


if __name__ == "__main__":
    main()
