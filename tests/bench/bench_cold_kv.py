"""Decode attention over cold pages against what memory gives, in turns.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 \\
    python tests/bench/bench_cold_kv.py

32 sequences of 384 tokens, heads of SmolLM2, pages of 16 tokens in random places. A round reads every
layer's pages once, and a plain sum reads as many bytes once; between two of its rounds each byte has been
pushed out by more than --cold-mb of others. Processor time on one thread (it waits for memory, too), else
the wall clock.
"""

import argparse
import os
import time
from statistics import median

import torch
from paired import alternate, ratio

from loraplex_kernels.attention import paged_attention
from loraplex_kernels.memory import dense_zeros
from loraplex_kernels.warm_up import warm_up

SEQS, CONTEXT, HEADS, KV_HEADS, DIM, PAGE = 32, 384, 9, 3, 64, 16
PAGES = SEQS * CONTEXT // PAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--cold-mb", type=int, default=1100, help="twice this machine's last cache")
    args = parser.parse_args()
    warm_up()
    shape = (args.layers, 2, PAGES, KV_HEADS, PAGE, DIM)
    caches = dense_zeros(shape, torch.bfloat16).normal_()  # in huge pages, as the engine's pool
    plain = dense_zeros((caches.nbytes // 4,), torch.float32).fill_(1)  # as many bytes
    others = torch.zeros(args.cold_mb * 2**20 // 4)
    tables = torch.randperm(PAGES).view(SEQS, -1).to(torch.int32)
    q = torch.randn(SEQS, HEADS, DIM).to(torch.bfloat16)
    starts = torch.arange(SEQS + 1, dtype=torch.int32)
    lengths = torch.full((SEQS,), CONTEXT, dtype=torch.int32)

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def attend() -> float:
        others.add_(1)
        started = clock()
        for k, v in caches:
            paged_attention(q, k, v, tables, starts, lengths, DIM**-0.5)
        return caches.nbytes / (clock() - started)

    def read() -> float:
        others.add_(1)
        started = clock()
        plain.sum()
        return plain.nbytes / (clock() - started)

    seen = alternate({"attention": attend, "read": read}, args.rounds)
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    for name, rates in seen.items():
        print(f"{name}: {median(rates) / 1e9:.1f} GB/s")
    print(f"attention / read: {ratio(seen['attention'], seen['read'])}")


if __name__ == "__main__":
    main()
