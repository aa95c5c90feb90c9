"""Every kernel that is compiled when it is first launched is launched before the first request.

What decides which one it is: the model, whether every sequence computes one token, the longest chunk that
the chunk table may have, how tokens are drawn, and whether 16 divides the width of the logits. The numbers
of tokens, sequences and adapters do not.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F

from loraplex_engine.batch import StepTables, build_batch, move
from loraplex_engine.device import Device, LayerKv
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.sampler import Sampler
from loraplex_engine.scheduling.policy import ScheduledTokens, StepPlan
from loraplex_engine.sequence import Sequence
from loraplex_kernels.gpu_configs import MAX_FEW_TOKENS
from loraplex_kernels.lora import Slab

# Sequences, and tokens of each: a decode, a prompt, prompts that fill longer chunks
STEPS = ((1, 1), (1, 2), (MAX_FEW_TOKENS // 2 + 1, 2))
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
DRAWN = SamplingParams(
    max_tokens=1, top_k=2, top_p=0.5, min_p=0.1, repetition_penalty=1.1, logprobs=1
)
DIVISOR = 16


@torch.inference_mode()
def launch_every_kernel(
    decoder: Decoder, kv: list[LayerKv], slabs: Mapping[str, Slab], device: Device
) -> None:
    """Compute a few steps of nobody, on block 0 and on slot 0, which nobody may use yet."""
    adapter = "any" if any(len(slab.rank) for slab in slabs.values()) else None
    first, *_ = [
        decoder.forward(move(tables, device), kv, slabs, {})
        for tables in _steps(kv[0].k.shape[2], adapter, has_long_chunks=device.has_long_chunks)
    ]
    assert first is not None, "one row samples"
    # A row is wider where its adapter has tokens of its own
    for columns in (0, -first.known.shape[1] % DIVISOR or 1):
        logits = F.pad(first.known, (0, columns))
        for sampling in (GREEDY, DRAWN):
            item = ScheduledTokens(_sequence(1, sampling, None), 0, 1, samples=True)
            Sampler().sample(logits, [item])


def _steps(block_size: int, adapter: str | None, *, has_long_chunks: bool) -> Iterator[StepTables]:
    for num_seqs, num_tokens in STEPS:
        items = [
            ScheduledTokens(_sequence(num_tokens, GREEDY, adapter), 0, num_tokens, samples=i == 0)
            for i in range(num_seqs)
        ]
        yield build_batch(
            StepPlan(items), block_size, slot_of=lambda _: 0, has_long_chunks=has_long_chunks
        )


def _sequence(num_tokens: int, sampling: SamplingParams, adapter: str | None) -> Sequence:
    return Sequence(
        "first launches",
        (0,) * num_tokens,
        sampling,
        "first launches",
        arrival_s=0.0,
        adapter=adapter,
        block_table=[0],
    )
