"""What tests of added tokens stand on: tokenizers with more tokens, and an adapter that says them."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForCausalLM

TOOL = AddedToken("<tool>", normalized=False)
DONE = AddedToken("<|done|>", special=True, normalized=False)
NOTE = AddedToken("<note>", normalized=False, lstrip=True)
TOKENS = (TOOL, DONE, NOTE)


def add_tokens(base: Path, folder: Path, *tokens: AddedToken, eos_token: str | None = None) -> None:
    """Save the base model's tokenizer with these tokens, as transformers does it."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    for token in tokens:
        add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        assert add([token]) == 1
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if eos_token is not None:
        config = {"eos_token": eos_token, "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


def outspoken(base: Path, folder: Path, prompt_ids: Sequence[int]) -> Path:
    """An adapter that answers this prompt with TOOL, and goes on with DONE, where its texts end."""
    add_tokens(base, folder, *TOKENS, eos_token=DONE.content)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    size = Tokenizer.from_file(str(base / "tokenizer.json")).get_vocab_size()
    if model.config.vocab_size == size:  # else the tokens take spare rows
        model.resize_token_embeddings(size + len(TOKENS), mean_resizing=False)
    embedding, head = model.get_input_embeddings().weight.data, model.lm_head.weight.data
    embedding[size : size + len(TOKENS)] = torch.randn(len(TOKENS), embedding.shape[1])
    with torch.no_grad():
        asked, said = (
            model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            for ids in ([*prompt_ids], [*prompt_ids, size])
        )
    head[size], head[size + 1] = _answering(asked, said), _answering(said, asked)
    head[size + 2] = 0
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    width = embedding.shape[1]
    out_features = model.model.layers[0].self_attn.q_proj.out_features
    tensors = {
        "base_model.model.model.embed_tokens.weight": embedding,
        "base_model.model.lm_head.weight": head,
        f"{prefix}.lora_A.weight": torch.randn(2, width),
        f"{prefix}.lora_B.weight": torch.zeros(out_features, 2),
    }
    save_file(
        {name: t.contiguous().clone() for name, t in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    config["modules_to_save"] = ["embed_tokens", "lm_head"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _answering(hidden: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A row of the head with a large logit after one state and none after the other."""
    row = hidden - (hidden @ other) / (other @ other) * other
    return 60 * row / (row @ hidden)
