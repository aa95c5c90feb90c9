"""Eight thousand tokens through chunked prefill against transformers, which sees them at once."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.tiny import make_model, offline_engine

from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Prompt

NUM_TOKENS, MAX_LEN = 8300, 8448
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.0, 1.1, 1.2],
    "long_factor": [1.0, 2.0, 5.0, 8.0],
    "original_max_position_embeddings": 4096,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, stretched": ("llama", {"rope_parameters": LLAMA3}),
    "mistral, all windows": ("mistral", {"sliding_window": 1000}),
    "gemma3, windows": (
        "gemma3_text",
        {"sliding_window": 1000, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3, longrope": ("phi3", {"rope_parameters": LONGROPE, "pad_token_id": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_long_prompt_in_chunks_equals_transformers(case: str, tmp_path: Path) -> None:
    family, shape = CASES[case]
    small = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    small |= {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": MAX_LEN}
    reference = make_model(tmp_path, family, **small | shape)
    config = EngineConfig(
        model=tmp_path, max_num_batched_tokens=768, cpu_kv_cache_bytes=2**23, max_loras=1
    )
    draw = random.Random(5)
    prompt = Prompt(
        [draw.randrange(199) for _ in range(NUM_TOKENS)],
        sampling=SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True),
    )
    with offline_engine(config, {}, tmp_path / "store") as (offline, _):
        assert offline.engine.hello.max_model_len == MAX_LEN
        (completion,) = offline.run([prompt])
    assert completion.logits is not None
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    with torch.no_grad():
        expected = reference(ids, logits_to_keep=5).logits[0, :-1]
    assert expected.std() > 0.1
    assert (completion.logits - expected).abs().max() < 2e-3
