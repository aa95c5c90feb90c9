"""From a stored version to tensors in the slab's layout, hashed while it is read, once."""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from loraplex_adapters.added_rows import first_columns, split_vocabulary
from loraplex_adapters.canonical import CANONICAL_NAME, CanonicalContent, read_canonical
from loraplex_adapters.checks import check_lora, check_parts
from loraplex_adapters.errors import (
    AdapterTooLarge,
    CorruptVersion,
    MissingFile,
    NonFiniteTensor,
    TruncatedFile,
    UnknownVersion,
    UnmatchedTensors,
    UnsupportedFeature,
)
from loraplex_adapters.extras import (
    BaseTensors,
    Extras,
    ExtrasReader,
    LoraFactors,
    ModuleTensors,
)
from loraplex_adapters.finite import is_finite
from loraplex_adapters.folder import open_regular
from loraplex_adapters.header import Header, TensorInfo, read_header
from loraplex_adapters.layout import HEAD, BaseModel
from loraplex_adapters.tensor_names import Part
from loraplex_adapters.vocabulary import check_vocabulary

VECTORS = (".lora_magnitude_vector", ".bias")  # applied in float32
TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A version in host memory, by the base model's module."""

    modules: Mapping[str, LoraFactors]  # linear ones
    extras: Extras = field(default_factory=Extras)

    @property
    def rank(self) -> int:
        """Rows it takes in the slabs: one at least, so that every version has a place."""
        return max((factors.rank for factors in self.modules.values()), default=1)

    @property
    def num_bytes(self) -> int:
        return sum(f.a.nbytes + f.b.nbytes for f in self.modules.values()) + self.extras.num_bytes


@dataclass(frozen=True, slots=True)
class Loader:
    """What every load of one engine has in common."""

    base: BaseModel
    max_rank: int
    dtype: torch.dtype
    pin_memory: bool = False  # page-locked, so that a copy to the device needs no staging
    base_tensors: BaseTensors | None = None  # without them DoRA and whole weights are refused
    max_extra_bytes: int = 0  # of what is not LoRA of a projection

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
            content = read_canonical(header, version)
            self._check(content)
            tensors = self._read(file, header, content, version)
        modules: dict[str, dict[Part, torch.Tensor]] = {
            name: {part: tensors[info.name] for part, info in parts.items()}
            for name, parts in content.modules.items()
        }
        return self._assemble(content, modules)

    def _check(self, content: CanonicalContent) -> None:
        """The engine's own judgement: what it serves may differ from what the upload was told."""
        unmatched = sorted(content.modules.keys() - self.base.modules.keys())
        if unmatched:
            raise UnmatchedTensors(f"this engine does not adapt {unmatched[0]}", modules=unmatched)
        base = self.base
        if content.added is not None:
            check_vocabulary(
                content.modules, content.token_ids, base, content.added, is_tied=content.is_tied
            )
            base = base.with_vocabulary(content.added.stop_id)
        for name, tensors in content.modules.items():
            check_parts(name, base.modules[name], tensors, content.token_ids.get(name, ()))
            if "lora_A.weight" in tensors:
                check_lora(name, tensors, tensors["lora_A.weight"].shape[0], self.max_rank)

    def _assemble(
        self, content: CanonicalContent, modules: Mapping[str, ModuleTensors]
    ) -> AdapterWeights:
        factors = {
            name: LoraFactors(parts["lora_A.weight"], parts["lora_B.weight"], content.scales[name])
            for name, parts in modules.items()
            if "lora_A.weight" in parts
        }
        linear = {n: f for n, f in factors.items() if self.base.modules[n].kind == "linear"}
        if linear.keys() == modules.keys() and not content.has_more_than_factors:
            return AdapterWeights(linear)
        if self.base_tensors is None:
            raise UnsupportedFeature("this engine serves LoRA of projections alone", key="use_dora")
        reader = ExtrasReader(self.base, self.base_tensors)
        extras = reader.read(modules, factors, content.token_ids, is_tied=content.is_tied)
        vocab_size = self.base.vocab_size
        if content.added is not None and content.added.stop_id > vocab_size:
            extras = split_vocabulary(
                extras, factors, modules, content.token_ids, vocab_size, is_tied=content.is_tied
            )
            if HEAD in linear:
                linear[HEAD] = first_columns(linear[HEAD], vocab_size)
        if extras.num_bytes > self.max_extra_bytes:
            raise AdapterTooLarge(
                f"{extras.num_bytes} bytes of it lie beside the slots, where "
                f"{self.max_extra_bytes} are allowed",
                num_bytes=extras.num_bytes,
                limit=self.max_extra_bytes,
            )
        return AdapterWeights(linear, extras)

    def _read(
        self, file: BufferedReader, header: Header, content: CanonicalContent, version: str
    ) -> dict[str, torch.Tensor]:
        digest = hashlib.sha256()
        file.seek(0)
        digest.update(file.read(header.data_start))
        num_bytes = sum(info.num_bytes for info in header.tensors)
        raw = torch.empty(num_bytes, dtype=torch.uint8).numpy()
        if file.readinto(raw.data) < num_bytes:
            raise TruncatedFile("the file shrank while it was read")
        digest.update(raw.data)
        if digest.hexdigest() != version:
            raise CorruptVersion(version=version, found=digest.hexdigest())
        if self._is_uniform(content):
            return self._views(raw, header)
        first = header.data_start
        return {
            info.name: self._convert(raw[info.start - first :][: info.num_bytes].copy(), info)
            for info in header.tensors
        }

    def _is_uniform(self, content: CanonicalContent) -> bool:
        """Nothing but factors of projections, of one dtype, for slots in this machine's memory."""
        kinds = {self.base.modules[name].kind for name in content.modules}
        stored = {info.dtype for parts in content.modules.values() for info in parts.values()}
        is_alone = not (self.pin_memory or content.has_more_than_factors or content.added)
        return is_alone and kinds == {"linear"} and len(stored) == 1

    def _views(self, raw: npt.NDArray[np.uint8], header: Header) -> dict[str, torch.Tensor]:
        """All tensors as they lie in one: a call for each would cost more than their bytes."""
        saved = torch.frombuffer(raw, dtype=TORCH_DTYPES[header.tensors[0].dtype])
        flat = saved.to(self.dtype)
        dtype = next(name for name, each in TORCH_DTYPES.items() if each == self.dtype)
        is_good = is_finite(flat.view(torch.uint8).numpy(), dtype)
        tensors = {}
        for info in header.tensors:
            at = (info.start - header.data_start) // saved.itemsize
            tensor = flat[at : at + math.prod(info.shape)].view(info.shape)
            if not is_good:
                self._check_finite(tensor, info)
            tensors[info.name] = tensor.T if info.name.endswith(".lora_B.weight") else tensor
        return tensors

    def _convert(self, raw: npt.NDArray[np.uint8], info: TensorInfo) -> torch.Tensor:
        saved = torch.frombuffer(raw, dtype=TORCH_DTYPES[info.dtype]).view(info.shape)
        rows = saved.T if info.name.endswith(".lora_B.weight") else saved
        tensor = rows.to(torch.float32 if info.name.endswith(VECTORS) else self.dtype).contiguous()
        self._check_finite(tensor, info)
        return tensor.pin_memory() if self.pin_memory else tensor

    def _check_finite(self, tensor: torch.Tensor, info: TensorInfo) -> None:
        if not bool(tensor.isfinite().all()):
            raise NonFiniteTensor(f"{info.name} is not finite as {self.dtype}", tensor=info.name)
