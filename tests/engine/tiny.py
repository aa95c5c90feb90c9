"""Tiny random models and random PEFT adapters, in folders, and an offline engine over them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.offline import Offline

ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    shard_bytes: int | None = None,
    **shape: Any,
) -> Any:
    """Save a random model in float32 and return transformers' own; `family` is its model_type."""
    torch.manual_seed(seed)
    defaults: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "eos_token_id": 7,
    }
    config = AutoConfig.for_model(family, **defaults | shape)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases start at one and zero, which hides faults
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard_bytes or "1GB")
    return model


def make_adapter(
    model: Any, folder: Path, *, rank: int, alpha: float, modules: list[str], seed: int
) -> None:
    """Save a random adapter, loud enough to change what the model says."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, lora_dropout=0.0)
    wrapped = peft.get_peft_model(model, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    wrapped.unload()


@contextmanager
def offline_engine(
    config: EngineConfig, adapters: Mapping[str, Path], store: Path
) -> Iterator[tuple[Offline, dict[str, str]]]:
    """An engine that records logits, and the versions of the named adapters."""
    model = load_model(config)
    versions = AdapterStore(store)
    limits = Limits(max_rank=config.max_lora_rank)
    base = BaseModel.from_checkpoint(None, config.model)
    names = {
        name: versions.put(folder, base=base, limits=limits).version
        for name, folder in adapters.items()
    }
    cache = adapter_cache(config, model, versions)
    try:
        yield Offline(config, model, cache, records_logits=True), names
    finally:
        cache.close()
