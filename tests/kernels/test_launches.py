"""What is compiled ahead of time is what is launched: for every projection, step and way to draw."""

from itertools import product

import numpy as np
import pytest
import torch
from tests.kernels.launches import KERNELS, Launch, recorded_launches

from loraplex_kernels.activation import _triton as activation
from loraplex_kernels.attention import _triton as attention
from loraplex_kernels.gpu_configs import ARCHITECTURES, CHUNK_ROWS, RANK_CLASSES
from loraplex_kernels.gpu_variants import HEADS, VOCABULARY, variants
from loraplex_kernels.kv_store import _triton as kv_store
from loraplex_kernels.lora import LoraSlab, build_segments
from loraplex_kernels.lora import _triton as lora
from loraplex_kernels.norm import _triton as norm
from loraplex_kernels.sampling import _triton as sampling
from loraplex_kernels.work import LAYER_8B

META = torch.device("meta")  # shapes and strides without memory
PROJECTIONS = [*LAYER_8B.values(), (4096, (VOCABULARY,))]
NUM_TOKENS = (1, 16, 63)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def launch_lora() -> None:
    for rank, rows, (in_features, widths) in product(
        RANK_CLASSES, CHUNK_ROWS.values(), PROJECTIONS
    ):
        starts = torch.zeros(3, dtype=torch.int32, device=META)
        slab = LoraSlab.empty(in_features, widths, 3 * rank + 1, starts, torch.bfloat16, rank)
        for num_tokens in NUM_TOKENS:
            segments = build_segments(np.arange(num_tokens, dtype=np.int32) % 3, rows)
            assert segments is not None
            x, y = empty(num_tokens, in_features), empty(num_tokens, sum(widths))
            lora.apply_lora(y, x, slab, segments)


def launch_attention() -> None:
    """Decodes and prompts, with block tables of any width."""
    for heads, kv_heads, dim, window in HEADS:
        cache = empty(50, kv_heads, 16, dim)
        for num_seqs, num_tokens, num_blocks in product((1, 16, 17), NUM_TOKENS, (1, 7, 32)):
            q = empty(num_seqs * num_tokens, heads, dim)
            tables = empty(num_seqs, num_blocks, dtype=torch.int32)
            starts, lengths = (empty(n, dtype=torch.int32) for n in (num_seqs + 1, num_seqs))
            last = (0.1, window or None, 5.0 if window else None)
            attention.paged_attention(q, cache, cache, tables, starts, lengths, *last)


def launch_the_rest() -> None:
    for num_tokens in NUM_TOKENS:
        for shape, has_residual in (((4096,), True), ((4096,), False), ((32, 128), False)):
            x, width = empty(num_tokens, *shape).view(-1, shape[-1]), shape[-1]
            norm.rms_norm(x, empty(width), 1e-5, x if has_residual else None, 0.0)
        activation.silu_and_multiply(empty(num_tokens, 2 * 14336))
        activation.gelu_tanh_and_multiply(empty(num_tokens, 2 * 14336))
        q, k, v = empty(num_tokens, 48, 128).split([32, 8, 8], 1)
        cos, cache = empty(1000, 64, dtype=torch.float32), empty(50, 8, 16, 128)
        places = empty(num_tokens, dtype=torch.int64)
        kv_store.rotary_write_kv(q, k, v, cos, cos, places, cache, cache, places)
        logits = empty(num_tokens, VOCABULARY)
        scores, shares = logits.float(), empty(num_tokens, dtype=torch.float64)
        sampling.most_likely(logits)
        sampling.most_likely(scores)
        sampling.keep_top_k(scores, places)
        sampling.keep_top_p(scores, shares)
        sampling.pick(scores, shares)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (lora, attention):
        monkeypatch.setattr(module, "architecture_of", lambda _: request.param)
    return int(request.param)


def test_what_is_launched_is_what_is_compiled(architecture: int) -> None:
    compiled = {Launch.of(variant) for variant in variants(architecture)}
    with recorded_launches() as launches:
        launch_lora()
        launch_attention()
        launch_the_rest()
    assert {launch.kernel for launch in launches} == set(KERNELS)
    assert launches == compiled
