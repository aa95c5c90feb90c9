"""The table of GPU configurations is whole, and what is computed from it by hand is right."""

from itertools import product
from pathlib import Path

import pytest

from loraplex_kernels.gpu_configs import (
    ARCHITECTURES,
    CHUNK_ROWS,
    DECODE,
    HEAD_DIMS,
    LORA,
    PREFILL,
    RANK_CLASSES,
    AttentionKey,
    LoraKey,
    rank_class,
    token_bucket,
)
from loraplex_kernels.gpu_table import page
from loraplex_kernels.occupancy import occupancy
from loraplex_kernels.work import (
    Run,
    attention_work,
    keep_work,
    lora_work,
    most_likely_work,
    norm_work,
)

PAGE = Path(__file__).parents[2] / "deploy/docs/gpu-kernels.md"


def test_every_key_has_a_configuration() -> None:
    assert set(LORA) == {LoraKey(*k) for k in product(ARCHITECTURES, RANK_CLASSES, CHUNK_ROWS)}
    heads = {AttentionKey(*key) for key in product(ARCHITECTURES, HEAD_DIMS)}
    assert set(DECODE) == set(PREFILL) == heads
    assert [rank_class(rank) for rank in (1, 16, 17, 256)] == [16, 16, 32, 256]
    assert [token_bucket(n) for n in (1, 256, 257)] == ["few", "few", "many"]
    with pytest.raises(ValueError, match="rank 257"):
        rank_class(257)


def test_sums_are_taken_in_one_order_however_many_tokens_there_are() -> None:
    for (architecture, ranks, _), config in LORA.items():
        other = LORA[LoraKey(architecture, ranks, "few")]
        assert (config.block_k, config.split_k) == (other.block_k, other.split_k)


def test_tiles_are_what_the_kernels_and_their_compilers_can_do() -> None:
    for key, config in LORA.items():
        assert config.block_m == CHUNK_ROWS[key.tokens]
        assert min(config.block_k, config.block_n, key.rank_class) >= 16, "tl.dot needs as many"
        assert config.expand_stages == 1, "ptxas before 13.3 miscompiles a pipelined expand"


def test_occupancy_is_bound_by_what_runs_out_first() -> None:
    assert occupancy(90, 4, registers=128, shared_bytes=1024).warps == 16
    assert occupancy(90, 4, registers=32, shared_bytes=48 * 1024).blocks == 4
    assert occupancy(80, 4, registers=32, shared_bytes=48 * 1024).blocks == 3
    assert occupancy(90, 8, registers=32, shared_bytes=0).share == 1.0
    assert occupancy(90, 1, registers=32, shared_bytes=0).blocks == 32
    assert occupancy(80, 4, registers=32, shared_bytes=164 * 1024).blocks == 0
    assert occupancy(100, 4, registers=32, shared_bytes=0, tensor_columns=256).blocks == 2
    assert occupancy(100, 4, registers=32, shared_bytes=0, tensor_columns=1024).blocks == 0


def test_work_is_what_a_hand_counts() -> None:
    """Two adapters of ranks 2 and 3, three tokens; then a decode, a prompt, and a window."""
    flops, num_bytes = lora_work([Run(2, 2), Run(1, 3)], 10, (4, 6))
    sums = 2 * 2 + 1 * 3
    assert flops == 2 * sums * 10 * 2 + 2 * sums * 10
    weights, moved = 2 * 5 * 10 + 5 * 10, 3 * 10 + 2 * 3 * 10
    assert num_bytes == 2 * (weights + moved)
    assert attention_work([(1, 100)], 4, 2, 8) == (4 * 100 * 4 * 8, 2 * 2 * (100 * 2 + 4) * 8)
    assert attention_work([(3, 3)], 1, 1, 1).flops == 4 * 6
    assert most_likely_work(2, 5) == (10, 20)
    assert [norm_work(2, 5, has_residual=r).num_bytes for r in (True, False)] == [80, 40]
    assert keep_work(2, 5) == (2 * 32 * 10, 80)
    assert attention_work([(1, 100)], 1, 1, 1, window=10) == (4 * 10, 2 * 2 * (10 + 1))


def test_the_page_begins_with_the_work_of_each_projection() -> None:
    """The rest of it is compiled, and read by the slow tests."""
    assert PAGE.read_text().startswith(page([]))
