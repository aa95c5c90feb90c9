"""What a tensor's name says: which module it belongs to, and which part of an adapter it is."""

import re
from typing import Literal, NamedTuple

# As they are called in the canonical file, in its order.
Part = Literal[
    "lora_A.weight",
    "lora_B.weight",
    "lora_B.bias",
    "lora_magnitude_vector",
    "weight",
    "bias",
    "trainable_tokens",
]
PARTS: tuple[Part, ...] = (
    "lora_A.weight",
    "lora_B.weight",
    "lora_B.bias",
    "lora_magnitude_vector",
    "weight",
    "bias",
    "trainable_tokens",
)
WRAPPERS = {"module", "_orig_mod"}  # of DataParallel and torch.compile
PEFT_PREFIX = "base_model.model."
# PEFT drops the adapter's name when it saves; a state dict that was dumped by hand has it still.
NAME = r"(?:\.[^.]+)?"
Source = Literal["own", "base", "original", "copy"]
SPELLINGS: tuple[tuple[str, Part], ...] = (
    (rf"lora_A{NAME}\.weight", "lora_A.weight"),
    (rf"lora_B{NAME}\.weight", "lora_B.weight"),
    (rf"lora_embedding_A{NAME}", "lora_A.weight"),
    (rf"lora_embedding_B{NAME}", "lora_B.weight"),
    (rf"lora_B{NAME}\.bias", "lora_B.bias"),
    (rf"lora_magnitude_vector{NAME}(?:\.weight)?", "lora_magnitude_vector"),
    (rf"token_adapter\.trainable_tokens_delta{NAME}", "trainable_tokens"),
    (r"token_adapter\.base_layer\.bias", "bias"),
    (r"token_adapter\.base_layer\.weight", "weight"),
    (r"base_layer\.bias", "bias"),
    (r"base_layer\.weight", "weight"),
    (r"original_module\.weight", "weight"),
    (rf"modules_to_save{NAME}\.bias", "bias"),
    (rf"modules_to_save{NAME}\.weight", "weight"),
    (r"bias", "bias"),
    (r"weight", "weight"),
)
PATTERNS = tuple((re.compile(rf"(?P<path>.+)\.{spelling}"), part) for spelling, part in SPELLINGS)


class TensorName(NamedTuple):
    path: str  # the module as the adapter calls it, which is what its patterns match
    part: Part
    source: Source = "own"  # of a weight: 'base' and 'original' are the model's that was trained on


def read_name(name: str) -> TensorName | None:
    """None if no adapter of PEFT's has a tensor of this name."""
    for pattern, part in PATTERNS:
        match = pattern.fullmatch(name)
        if match is not None:
            return TensorName(_own_path(match["path"]), part, _source(name))
    return None


def _source(name: str) -> Source:
    if name.endswith(".base_layer.weight"):
        return "base"
    if name.endswith(".original_module.weight"):
        return "original"
    return "copy" if ".modules_to_save." in name else "own"


def split_canonical(name: str) -> TensorName | None:
    """The same for the store's own files."""
    for part in PARTS:
        if name.endswith(f".{part}"):
            return TensorName(name[: -len(part) - 1], part)
    return None


def _own_path(path: str) -> str:
    """The module's path without what wrappers put around the model."""
    path = ".".join(part for part in path.split(".") if part not in WRAPPERS)
    while path.startswith(PEFT_PREFIX):
        path = path.removeprefix(PEFT_PREFIX)
    return path
