"""Weights from a folder of safetensors, one tensor at a time: loading takes little more than the model."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from loraplex_engine.errors import UnsupportedModel

NOT_WEIGHTS = ("rotary_emb.inv_freq",)  # computed from the configuration, yet saved by old versions
FINGERPRINT_STRIDE_BYTES = 1 << 20
FINGERPRINT_PAGE_BYTES = 4096


class Checkpoint:
    """The tensors of a model folder by name, whichever shard holds them."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self.shards = _shards(folder)
        self._shard_of: dict[str, Path] = {}
        self._read: set[str] = set()
        for shard in self.shards:
            with safe_open(shard, framework="pt") as file:
                self._shard_of |= dict.fromkeys(file.keys(), shard)

    def __contains__(self, name: str) -> bool:
        return name in self._shard_of

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of its own memory, in the checkpoint's target dtype and device."""
        return self.fused([name])

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        """Tensors stacked along their first dimension; each is read straight into its place."""
        shapes = [self._shape(name) for name in names]
        fused = torch.empty(
            sum(shape[0] for shape in shapes), *shapes[0][1:], dtype=self.dtype, device=self.device
        )
        row = 0
        for name, shape in zip(names, shapes, strict=True):
            with safe_open(self._shard(name), framework="pt") as file:
                fused[row : row + shape[0]].copy_(file.get_tensor(name))
            row += shape[0]
        self._read.update(names)
        return fused

    def unread(self) -> list[str]:
        """Tensors that nobody asked for."""
        rest = self._shard_of.keys() - self._read
        return sorted(name for name in rest if not name.endswith(NOT_WEIGHTS))

    def fingerprint(self) -> str:
        """A hash of configuration, tensor headers and a page of every MiB of weights."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        for shard in self.shards:
            size = shard.stat().st_size
            digest.update(f"{shard.name}:{size};".encode())
            with shard.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                digest.update(file.read(header_bytes))
                for offset in range(8 + header_bytes, size, FINGERPRINT_STRIDE_BYTES):
                    file.seek(offset)
                    digest.update(file.read(FINGERPRINT_PAGE_BYTES))
        return digest.hexdigest()

    def _shape(self, name: str) -> list[int]:
        with safe_open(self._shard(name), framework="pt") as file:
            shape: list[int] = file.get_slice(name).get_shape()
        return shape

    def _shard(self, name: str) -> Path:
        shard = self._shard_of.get(name)
        if shard is None:
            raise UnsupportedModel(f"{self.folder} has no tensor {name}", tensor=name)
        return shard


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.exists():
        raise UnsupportedModel(f"{folder} holds no model.safetensors and no index of shards")
    return [single]
