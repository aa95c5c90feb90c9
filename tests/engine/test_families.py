"""Each architecture against transformers and PEFT: tiny random models in float32."""

import random
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model, offline_engine

from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.families import FAMILIES
from loraplex_engine.offline import Completion, Prompt

# PEFT asks transformers for a property that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TOLERANCE = 1e-3  # of logits whose spread is a few units
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
LENGTHS = (9, 33, 50)  # within and beyond the window, across chunks of 20
WINDOW = 12
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES = {  # by family, where they are not tiny's; test_experts has LoRA on experts
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "mixtral": ATTENTION,
    "qwen3_moe": ATTENTION,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 3.0, 5.0],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN3_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SLIDING = ["sliding_attention", "full_attention"]
# By model_type and what is special about the variant; the shape is tiny's own otherwise.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 6}),
    "llama 2, stretched evenly": ("llama", {"rope_parameters": LINEAR}),
    "llama 3.1, stretched": ("llama", {"rope_parameters": LLAMA3}),
    "smollm2": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen2, late layers slide": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen2.5, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 1.5,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": WINDOW, "layer_types": SLIDING}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 20}),
    "gemma2, caps that bite": (
        "gemma2",
        {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "sliding_window": WINDOW},
    ),
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "layer_types": SLIDING}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi4, longrope": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}),
    "qwen3-moe": ("qwen3_moe", QWEN3_MOE),
    "qwen3-moe, normed weights and a dense layer": (
        "qwen3_moe",
        QWEN3_MOE | {"norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
}


def logits_of(model: Any, prompt: Prompt, completion: Completion) -> torch.Tensor:
    """What transformers and PEFT say where the completion's tokens were drawn."""
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    with torch.no_grad():
        if prompt.adapter is None:
            with model.disable_adapter():
                logits = model(ids).logits
        else:
            logits = model(ids).logits
    wanted: torch.Tensor = logits[0, len(prompt.token_ids) - 1 : -1]
    return wanted


@pytest.mark.parametrize("case", CASES)
def test_a_family_equals_transformers_and_peft(case: str, tmp_path: Path) -> None:
    family, shape = CASES[case]
    shape = {"num_hidden_layers": 2, "pad_token_id": None} | shape
    model = make_model(tmp_path, family, **shape)
    modules = MODULES.get(family, ALL_MODULES)
    make_adapter(model, tmp_path / "lora", rank=4, alpha=6, modules=modules, seed=1)
    reference = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
    config = EngineConfig(
        model=tmp_path,
        max_model_len=64,  # the short factors of longrope
        max_num_batched_tokens=20,
        cpu_kv_cache_bytes=2**21,
        max_loras=1,
        max_lora_rank=4,
        threads=1,
    )
    draw = random.Random(3)
    with offline_engine(config, {"lora": tmp_path / "lora"}, tmp_path / "store") as (
        offline,
        versions,
    ):
        prompts = [
            Prompt([draw.randrange(199) for _ in range(length)], adapter, GREEDY)
            for length in LENGTHS
            for adapter in (None, versions["lora"])
        ]
        cold, warm = offline.run(prompts), offline.run(prompts)
    for prompt, first, again in zip(prompts, cold, warm, strict=True):
        assert again.finished is not None
        assert again.finished.cached_tokens == (len(prompt.token_ids) - 1) // 16 * 16
        for completion in (first, again):
            assert completion.logits is not None
            expected = logits_of(reference, prompt, completion)
            assert expected.std() > 0.1
            assert (completion.logits - expected).abs().max() < TOLERANCE


def test_every_architecture_has_a_case(tmp_path: Path) -> None:
    tested = {
        make_model(
            tmp_path / family, family, num_hidden_layers=1, pad_token_id=None
        ).config.architectures[0]
        for family in {family for family, _ in CASES.values()}
    }
    assert tested == set(FAMILIES)
