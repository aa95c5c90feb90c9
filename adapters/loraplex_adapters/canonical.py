"""The store's own file: safetensors with parts named by module, scales and token ids in the metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.errors import CorruptVersion
from loraplex_adapters.header import MAX_HEADER_BYTES, Header, TensorInfo
from loraplex_adapters.manifest import Manifest
from loraplex_adapters.tensor_names import Part, split_canonical

CANONICAL_NAME = "adapter.safetensors"
SCALES_KEY = "loraplex.scales"  # of the modules that have LoRA
TOKENS_KEY = "loraplex.tokens"  # whose rows are replaced, by module
TIED_KEY = "loraplex.tied"  # the head follows what replaces the embedding
ADDED_KEY = "loraplex.added_tokens"  # which the base model's vocabulary does not have
HEADER_START = '{"__metadata__":'
DECODER = json.JSONDecoder()
FACTORS: tuple[Part, ...] = ("lora_A.weight", "lora_B.weight")


@dataclass(frozen=True, slots=True)
class CanonicalContent:
    """What a version's header says."""

    modules: Mapping[str, Mapping[Part, TensorInfo]]
    scales: Mapping[str, float]
    token_ids: Mapping[str, tuple[int, ...]]
    is_tied: bool
    added: AddedTokens | None

    @property
    def has_more_than_factors(self) -> bool:
        return any(part not in FACTORS for parts in self.modules.values() for part in parts)


def canonical_header(manifest: Manifest) -> bytes:
    """The head of the canonical file: equal for equal modules, tensors and scales."""
    scales = {module.name: module.scale for module in manifest.modules if module.rank}
    tokens = {module.name: module.token_ids for module in manifest.modules if module.token_ids}
    metadata = {"format": "pt", SCALES_KEY: json.dumps(scales, sort_keys=True)}
    if tokens:
        metadata[TOKENS_KEY] = json.dumps(tokens, sort_keys=True)
    if manifest.is_tied:
        metadata[TIED_KEY] = "true"
    if manifest.added is not None:
        metadata[ADDED_KEY] = manifest.added.to_json()
    content: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for module in manifest.modules:
        for part, tensor in module.tensors.items():
            content[f"{module.name}.{part}"] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [end, end + tensor.num_bytes],
            }
            end += tensor.num_bytes
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_canonical(header: Header, version: str) -> CanonicalContent:
    """What names no scale for its factors was not written by a store."""
    modules: dict[str, dict[Part, TensorInfo]] = {}
    for tensor in header.tensors:
        name = split_canonical(tensor.name)
        if name is None:
            raise _foreign(version)
        modules.setdefault(name.path, {})[name.part] = tensor
    scales, tokens = _json(header, SCALES_KEY), _json(header, TOKENS_KEY)
    scaled = {name for name, parts in modules.items() for part in parts if part in FACTORS}
    counted = {name for name, parts in modules.items() if "trainable_tokens" in parts}
    if not modules or SCALES_KEY not in header.metadata or scaled != scales.keys():
        raise _foreign(version)
    if counted != tokens.keys():
        raise _foreign(version)
    return CanonicalContent(
        modules,
        {module: float(scale) for module, scale in scales.items()},
        {module: tuple(ids) for module, ids in tokens.items()},
        header.metadata.get(TIED_KEY) == "true",
        read_added(header.metadata, version),
    )


def read_added(metadata: Mapping[str, str], version: str) -> AddedTokens | None:
    """None: its vocabulary is the base model's."""
    if ADDED_KEY not in metadata:
        return None
    try:
        return AddedTokens.from_json(metadata[ADDED_KEY])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _foreign(version) from None


def read_metadata(file: BufferedReader, version: str) -> dict[str, str]:
    """Of a store's own file, without a look at its tensors."""
    length = int.from_bytes(file.read(8), "little")
    try:
        head = file.read(min(length, MAX_HEADER_BYTES)).decode()
        found: object = DECODER.raw_decode(head, len(HEADER_START))[0]
    except (ValueError, RecursionError):
        raise _foreign(version) from None
    if not head.startswith(HEADER_START) or not isinstance(found, dict):
        raise _foreign(version)
    return found


def _json(header: Header, key: str) -> dict[str, Any]:
    try:
        found = json.loads(header.metadata.get(key, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _foreign(version: str) -> CorruptVersion:
    return CorruptVersion("the file is not in the canonical form", version=version)
