"""Requests that arrive together with the same beginning: it is computed once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.scripted import Scripted, request

WORKLOAD = Path(__file__).parents[1] / "bench" / "workloads" / "w3.jsonl"
PERFECT_REUSE = 11_597
ALLOWED = 12_177  # five per cent more


@pytest.mark.parametrize(
    ("num_blocks", "num_slots"),
    [(4096, 16), (1024, 16), (1024, 8)],
    ids=["ample", "tight", "slots"],
)
@pytest.mark.parametrize("step_s", [0.01, 3.0], ids=["fast", "slow"])
def test_system_prompts_of_a_burst_are_computed_once_each(
    num_blocks: int, num_slots: int, step_s: float
) -> None:
    """64 requests over 17 distinct system prompts of 512 tokens, all at once."""
    rows = [json.loads(line) for line in WORKLOAD.read_text().splitlines()]
    names = sorted({row["adapter"] for row in rows} - {""})
    world = Scripted(
        lambda seq: 1,
        adapters=MemoryAdapters(names, num_slots=num_slots),
        policy="hfs",
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        vocab_size=49_152,
    )
    for row in rows:
        sent = request(str(row["id"]), adapter=row["adapter"] or None, max_tokens=row["max_tokens"])
        world.engine.submit(replace(sent, prompt_ids=tuple(row["prompt_ids"])))
    while world.engine.has_work:
        world.clock.now += step_s
        world.step()
    computed = sum(
        item.num_tokens
        for plan in world.runner.plans
        for item in plan.items
        if item.start < len(item.seq.prompt_ids)
    )
    tokens = world.engine.stats().tokens
    assert PERFECT_REUSE <= computed <= ALLOWED
    assert tokens.prompt - tokens.cached + tokens.recomputed == computed
    assert tokens.completion == sum(row["max_tokens"] for row in rows)
