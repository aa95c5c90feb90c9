"""Adapters of fused experts, as PEFT saves them on transformers 5, rewritten as adapters of single ones.

There a layer's experts are two parameters, `gate_up_proj` and `down_proj`, and their factors lie
together: A is [experts * rank, in_features], an expert's rows in one piece; B is
[out_features, rank * experts], an expert's columns `experts` apart.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loraplex_adapters.errors import ShapeMismatch, TruncatedFile
from loraplex_adapters.folder import AdapterFiles, open_regular
from loraplex_adapters.header import TensorInfo, read_header
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.peft_config import LoraRules, parse_config, parse_object

SINGLE = re.compile(r"(?P<block>.+)\.experts\.(?P<expert>\d+)\.(?P<part>\w+)")
FUSED = re.compile(
    r"(?P<path>.+)\.experts(?P<wrappers>(\.base_layer)*)\.(?P<factor>lora_[AB])(\.[^.]+)?\.weight"
)
PARTS = {  # of a parameter, by the checkpoint's names
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
BITS = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}
WEIGHTS = "single_experts.safetensors"


class Block(NamedTuple):
    """A layer's experts in the base model, and what they are called there and by PEFT."""

    name: str
    peft_name: str
    num_experts: int
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the rewritten file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@contextmanager
def with_single_experts(
    files: AdapterFiles, base: BaseModel, scratch: Path
) -> Iterator[AdapterFiles]:
    """The same adapter without `target_parameters`; one that has none, or others, is left as it is."""
    config = parse_object(files.config)
    blocks = _blocks(base)
    targets = config.get("target_parameters")
    if not isinstance(targets, list) or not all(_is_served(t, blocks) for t in targets):
        yield files
        return
    config["target_parameters"] = None
    rules = parse_config(json.dumps(config).encode())
    header = read_header(files.weights, files.weights_bytes)
    sources = [(tensor, _find(tensor, targets, blocks)) for tensor in header.tensors]
    _add_patterns(config, rules, [found for _, found in sources if found is not None])
    target = scratch / WEIGHTS
    _write(target, files, sources)
    with open_regular(target) as weights:
        yield replace(
            files,
            config=json.dumps(config).encode(),
            weights=weights,
            weights_bytes=target.stat().st_size,
        )
    target.unlink()


def _blocks(base: BaseModel) -> dict[str, Block]:
    """By PEFT's name of the layer's block."""
    experts: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for module in base.modules:
        if match := SINGLE.fullmatch(module):
            block = match["block"]
            experts[block] = max(experts.get(block, 0), int(match["expert"]) + 1)
            names.setdefault(block, set()).add(match["part"])
    blocks = {}
    for block, count in experts.items():
        peft_name = f"{block.rpartition('.')[0]}.mlp"
        parts = {
            parameter: next(option for option in options if set(option) <= names[block])
            for parameter, options in PARTS.items()
        }
        blocks[peft_name] = Block(block, peft_name, count, parts)
    return blocks


def _is_served(target: object, blocks: Mapping[str, Block]) -> bool:
    """Whether a target is experts or a router that this base model has."""
    return isinstance(target, str) and any(
        _is_meant(target, block, name)
        for block in blocks.values()
        for name in ("gate.weight", *(f"experts.{parameter}" for parameter in PARTS))
    )


def _is_meant(target: str, block: Block, name: str) -> bool:
    """PEFT's rule: a target is the end of a parameter's path."""
    return f".{block.peft_name}.{name}".endswith(f".{target}")


class Found(NamedTuple):
    """What a tensor of fused experts is a factor of."""

    block: Block
    parameter: str
    factor: str


def _find(tensor: TensorInfo, targets: list[str], blocks: Mapping[str, Block]) -> Found | None:
    """Wrappers lie around each other in the order of the parameters, the last one outside."""
    match = FUSED.fullmatch(tensor.name)
    block = next((b for b in blocks.values() if match and _ends(match["path"], b)), None)
    if match is None or block is None:
        return None
    wrapped = [
        parameter
        for parameter in PARTS
        if any(_is_meant(target, block, f"experts.{parameter}") for target in targets)
    ]
    place = len(wrapped) - 1 - match["wrappers"].count(".base_layer")
    if place < 0:
        return None
    return Found(block, wrapped[place], match["factor"])


def _ends(path: str, block: Block) -> bool:
    """Whether a path in the adapter's file is this block's, whatever wraps the model."""
    return path == block.peft_name or path.endswith(f".{block.peft_name}")


def _add_patterns(config: dict[str, object], rules: LoraRules, found: list[Found]) -> None:
    """Ranks and scales were said of the fused parameters, and are wanted of the single experts."""
    ranks: dict[str, float] = {}
    alphas: dict[str, float] = {}
    for block, parameter, _ in found:
        fused = f"{block.peft_name}.experts.{parameter}"
        single = rf"{re.escape(block.name)}\.experts\.\d+\.({'|'.join(block.parts[parameter])})"
        ranks[single], alphas[single] = rules.rank_of(fused), rules.alpha_of(fused)
    for key, added in (("rank_pattern", ranks), ("alpha_pattern", alphas)):
        given = config.get(key)
        config[key] = added | (given if isinstance(given, dict) else {})


def _write(
    target: Path, files: AdapterFiles, sources: list[tuple[TensorInfo, Found | None]]
) -> None:
    """Copy the tensors, a fused one cut into its experts."""
    content: dict[str, object] = {}
    end = 0
    for tensor, found in sources:
        for piece in _pieces(tensor, found):
            content[piece.name] = {
                "dtype": piece.dtype,
                "shape": list(piece.shape),
                "data_offsets": [end, end + piece.num_bytes],
            }
            end += piece.num_bytes
    header = json.dumps(content, separators=(",", ":")).encode()
    with target.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor, found in sources:
            files.weights.seek(tensor.start)
            raw = files.weights.read(tensor.num_bytes)
            if len(raw) < tensor.num_bytes:
                raise TruncatedFile("the file shrank while it was read", tensor=tensor.name)
            if found is None:
                file.write(raw)
                continue
            bits = np.frombuffer(raw, BITS[tensor.dtype]).reshape(tensor.shape)
            for values in _cut(bits, found):
                file.write(values.tobytes())


def _pieces(tensor: TensorInfo, found: Found | None) -> Iterator[Piece]:
    if found is None:
        yield Piece(tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes)
        return
    block, parameter, factor = found
    parts, count = block.parts[parameter], block.num_experts
    dim = 0 if factor == "lora_A" else 1
    is_even = len(tensor.shape) == 2 and tensor.shape[dim] % count == 0
    if not is_even or (dim == 1 and tensor.shape[0] % len(parts)):
        raise ShapeMismatch(
            f"{tensor.name} is {list(tensor.shape)}, which is not of {count} experts",
            tensor=tensor.name,
            found=list(tensor.shape),
        )
    rank = tensor.shape[dim] // count
    shape = (rank, tensor.shape[1]) if dim == 0 else (tensor.shape[0] // len(parts), rank)
    item = np.dtype(BITS[tensor.dtype]).itemsize
    for expert in range(count):
        for part in parts:
            name = f"{block.name}.experts.{expert}.{part}.{factor}.weight"
            yield Piece(name, tensor.dtype, shape, shape[0] * shape[1] * item)


def _cut(bits: npt.NDArray[np.uint], found: Found) -> Iterator[npt.NDArray[np.uint]]:
    """The values of the pieces, in their order."""
    count, parts = found.block.num_experts, len(found.block.parts[found.parameter])
    if found.factor == "lora_A":
        for rows in bits.reshape(count, -1, bits.shape[1]):
            for _ in range(parts):  # gate and up share A
                yield rows
        return
    for columns in bits.reshape(bits.shape[0], -1, count).transpose(2, 0, 1):
        yield from columns.reshape(parts, -1, columns.shape[1])
