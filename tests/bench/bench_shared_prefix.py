"""Decode attention of sequences that begin with the same system prompt, together and each alone, in turns.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 NUMBA_THREADING_LAYER=omp \\
    python tests/bench/bench_shared_prefix.py

32 sequences of 600 tokens, heads of SmolLM2, pages of 16 tokens in random places, 30 layers of them; so
many of the sequences at a time have their first 512 tokens in common. Milliseconds for all layers, and of
finding who shares what (once a step). With one thread processor time, else the wall clock.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch
from paired import alternate, ratio

from loraplex_kernels.attention import Companies, build_companies, paged_attention
from loraplex_kernels.warm_up import warm_up

SEQS, CONTEXT, SHARED, HEADS, KV_HEADS, DIM, PAGE = 32, 600, 512, 9, 3, 64, 16
PAGES = -(-CONTEXT // PAGE)


def tables_of(size: int) -> torch.Tensor:
    """Pages of sequences in companies of a size."""
    pages = torch.randperm(SEQS * PAGES).view(SEQS, PAGES).to(torch.int32)
    pages[:, : SHARED // PAGE] = pages[::size, : SHARED // PAGE].repeat_interleave(size, 0)
    return pages[torch.randperm(SEQS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 32])
    args = parser.parse_args()
    warm_up()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    caches = torch.randn(args.layers, 2, SEQS * PAGES, KV_HEADS, PAGE, DIM).to(torch.bfloat16)
    q = torch.randn(SEQS, HEADS, DIM).to(torch.bfloat16)
    starts = torch.arange(SEQS + 1, dtype=torch.int32)
    lengths = torch.full((SEQS,), CONTEXT, dtype=torch.int32)

    def timed(work: Callable[[], object]) -> float:
        started = clock()
        work()
        return 1e3 * (clock() - started)

    def attend(tables: torch.Tensor, companies: Companies | None) -> None:
        for k, v in caches:
            paged_attention(q, k, v, tables, starts, lengths, DIM**-0.5, companies=companies)

    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    print("| company of | alone, ms | together, ms | together / alone | finding, ms |")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        tables = tables_of(size)

        def find(tables: torch.Tensor = tables) -> Companies | None:
            return build_companies(tables.numpy(), starts.numpy(), lengths.numpy(), PAGE)

        works = {"alone": None, "together": find()}
        seen = alternate(
            {
                name: lambda t=tables, c=companies: timed(lambda: attend(t, c))  # type: ignore[misc]  # mypy knows no type of a lambda's defaults
                for name, companies in works.items()
            },
            args.rounds,
        )
        alone, together = (median(seen[name]) for name in works)
        finding = median(timed(find) for _ in range(100))
        told = ratio(seen["together"], seen["alone"])
        print(f"| {size} | {alone:.1f} | {together:.1f} | {told} | {finding:.3f} |")


if __name__ == "__main__":
    main()
