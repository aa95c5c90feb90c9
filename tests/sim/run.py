"""`make sim`: runs the experiments, prints the table, writes it as JSON, draws the timeline.

Results are kept run by run: what a stopped call has finished is not run again.
"""

import argparse
import json
import multiprocessing
from pathlib import Path

from tests.sim.experiments import CHECKS, Job, jobs
from tests.sim.report import summarise, summarise_checks, to_table
from tests.sim.timeline import draw_timeline


def key_of(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in Job.__dataclass_fields__)


def run_job(job: Job) -> dict[str, object]:
    return job.run()


def run_missing(wanted: list[Job], log: Path, processes: int) -> list[dict[str, object]]:
    """Rows of all wanted jobs, those already in the log included."""
    done = {}
    if log.exists():
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        done = {key_of(row): row for row in rows}
    keys = [tuple(vars(job).values()) for job in wanted]
    missing = [job for job, key in zip(wanted, keys, strict=True) if key not in done]
    with multiprocessing.Pool(processes) as pool, log.open("a") as file:
        for number, row in enumerate(pool.imap_unordered(run_job, missing), start=1):
            done[key_of(row)] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(
                f"{number}/{len(missing)} {row['experiment']} {row['variant']} {row['policy']}",
                flush=True,
            )
    return [done[key] for key in keys if key in done]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few requests")
    parser.add_argument("--only", default="", help="experiments to run, comma-separated")
    parser.add_argument("--out", type=Path, default=Path("build/sim"))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [
        job
        for job in jobs(is_quick=options.quick)
        if not options.only or job.experiment in options.only.split(",")
    ]
    rows = run_missing(wanted, options.out / "runs.jsonl", options.processes)
    summary = summarise([row for row in rows if row["experiment"] not in CHECKS])
    checks = summarise_checks([row for row in rows if row["experiment"] in CHECKS])
    (options.out / "summary.json").write_text(json.dumps(summary + checks, indent=1) + "\n")
    print(to_table(summary))
    for line in checks:
        print(", ".join(f"{name} {value}" for name, value in line.items()))
    print(draw_timeline(options.out / "timeline.png"))


if __name__ == "__main__":
    main()
