"""From a stored version to tensors in the slab's layout, hashed while it is read, once."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import torch

from loraplex_adapters.errors import (
    CorruptVersion,
    MissingFile,
    NonFiniteTensor,
    RankTooLarge,
    TruncatedFile,
    UnknownVersion,
    UnmatchedTensors,
)
from loraplex_adapters.folder import open_regular
from loraplex_adapters.header import Header, TensorInfo, read_header
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import check_shape
from loraplex_adapters.store import CANONICAL_NAME, SCALES_KEY

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class LoraFactors(NamedTuple):
    """One module's weights as rows: a is [rank, in_features], b is [rank, out_features]."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A version in host memory, by the base model's module."""

    modules: Mapping[str, LoraFactors]

    @property
    def rank(self) -> int:
        return max(factors.rank for factors in self.modules.values())

    @property
    def num_bytes(self) -> int:
        return sum(f.a.nbytes + f.b.nbytes for f in self.modules.values())


@dataclass(frozen=True, slots=True)
class Loader:
    """What every load of one engine has in common."""

    base: BaseModel
    max_rank: int
    dtype: torch.dtype
    pin_memory: bool = False  # page-locked, so that a copy to the device needs no staging

    def load(self, folder: Path, version: str) -> AdapterWeights:
        """Read a version's folder; wrong bytes, shapes and ranks are AdapterErrors."""
        try:
            file = open_regular(folder / CANONICAL_NAME)
        except MissingFile:
            raise UnknownVersion(
                f"version {version} is not in the store", version=version
            ) from None
        with file:
            header = read_header(file, os.fstat(file.fileno()).st_size)
            scales = _scales(header, version)
            self._check(header)
            tensors = self._read(file, header, version)
        return AdapterWeights(
            {
                module: LoraFactors(
                    tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"], scale
                )
                for module, scale in scales.items()
            }
        )

    def _check(self, header: Header) -> None:
        """The engine's own judgement: what it serves may differ from what the upload was told."""
        unmatched = []
        for tensor in header.tensors:
            module, is_a = tensor.name[: -len(".lora_A.weight")], ".lora_A." in tensor.name
            if module not in self.base.modules:
                unmatched.append(module)
                continue
            check_shape(tensor, module, self.base, is_a=is_a)
            rank = tensor.shape[0] if is_a else tensor.shape[1]
            if rank > self.max_rank:
                raise RankTooLarge(
                    f"rank {rank} of {module} exceeds {self.max_rank}",
                    module=module,
                    rank=rank,
                    limit=self.max_rank,
                )
        if unmatched:
            raise UnmatchedTensors(
                f"this engine does not adapt {unmatched[0]}", modules=sorted(set(unmatched))
            )

    def _read(self, file: BufferedReader, header: Header, version: str) -> dict[str, torch.Tensor]:
        digest = hashlib.sha256()
        file.seek(0)
        digest.update(file.read(header.data_start))
        tensors = {}
        for info in header.tensors:  # in the order of their bytes, so the digest is of the file
            raw = bytearray(info.num_bytes)
            if file.readinto(raw) < info.num_bytes:
                raise TruncatedFile("the file shrank while it was read", tensor=info.name)
            digest.update(raw)
            tensors[info.name] = self._convert(raw, info)
        if digest.hexdigest() != version:
            raise CorruptVersion(version=version, found=digest.hexdigest())
        return tensors

    def _convert(self, raw: bytearray, info: TensorInfo) -> torch.Tensor:
        saved = torch.frombuffer(raw, dtype=TORCH_DTYPES[info.dtype]).view(info.shape)
        rows = saved if ".lora_A." in info.name else saved.T
        tensor = rows.to(self.dtype).contiguous()
        if not bool(tensor.isfinite().all()):
            raise NonFiniteTensor(f"{info.name} is not finite as {self.dtype}", tensor=info.name)
        return tensor.pin_memory() if self.pin_memory else tensor


def _scales(header: Header, version: str) -> dict[str, float]:
    """Each module's scale; what names no scale for its tensors was not written by a store."""
    try:
        scales = json.loads(header.metadata.get(SCALES_KEY, "{}"))
    except ValueError:
        scales = {}
    named = {f"{module}.{factor}.weight" for module in scales for factor in ("lora_A", "lora_B")}
    if not named or named != {tensor.name for tensor in header.tensors}:
        raise CorruptVersion("the file is not in the canonical form", version=version)
    return {module: float(scale) for module, scale in scales.items()}
