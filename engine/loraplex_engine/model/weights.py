"""Weights from a folder of safetensors, read straight into their place: loading takes little more than
the model itself, and says how far it is."""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.header import LORA_DTYPES, TensorInfo, read_header
from loraplex_adapters.loader import TORCH_DTYPES
from loraplex_engine.errors import UnsupportedModel

log = logging.getLogger(__name__)

NOT_WEIGHTS = ("rotary_emb.inv_freq",)  # computed from the configuration, yet saved by old versions
FINGERPRINT_STRIDE_BYTES = 1 << 20
FINGERPRINT_PAGE_BYTES = 4096
CHUNK_BYTES = 16 << 20  # of a tensor that is converted on its way
PROGRESS_S = 2.0


class Place(NamedTuple):
    """Where a tensor lies."""

    shard: Path
    info: TensorInfo


class Checkpoint:
    """The tensors of a model folder by name, whichever shard holds them."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        says_progress: bool = True,
    ) -> None:
        self.folder = folder
        self._says_progress = says_progress
        self.dtype = dtype
        self.device = device
        self.shards = _shards(folder)
        self._places = {
            info.name: Place(shard, info) for shard in self.shards for info in _tensors(shard)
        }
        self._read: set[str] = set()
        self._num_bytes = sum(place.info.num_bytes for place in self._places.values())
        self._bytes_read = 0
        self._said_s = time.monotonic()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of its own memory, in the checkpoint's target dtype and device."""
        return self.fused([name])

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        """Tensors stacked along their first dimension; each is read straight into its place."""
        places = [self._place(name) for name in names]
        rows = [place.info.shape[0] for place in places]
        shape = (sum(rows), *places[0].info.shape[1:])
        fused = torch.empty(shape, dtype=self.dtype, device=self.device)
        for place, part in zip(places, torch.split(fused, rows), strict=True):
            _read_into(part.view(-1), place)
            self._bytes_read += place.info.num_bytes
        self._read.update(names)
        self._say_progress()
        return fused

    def _say_progress(self) -> None:
        if self._says_progress and time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            share = self._bytes_read / self._num_bytes
            log.info("loading weights: %.0f %% of %.1f GB", 100 * share, self._num_bytes / 1e9)

    def unread(self) -> list[str]:
        """Tensors that nobody asked for."""
        rest = self._places.keys() - self._read
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

    def _place(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            raise UnsupportedModel(f"{self.folder} has no tensor {name}", tensor=name)
        return place


def _read_into(target: torch.Tensor, place: Place) -> None:
    """Fill a flat tensor, a chunk at a time where type or device differ from the file's."""
    shard, info = place
    dtype = TORCH_DTYPES[info.dtype]
    is_direct = target.dtype == dtype and target.device.type == "cpu"
    size = len(target) if is_direct else CHUNK_BYTES // dtype.itemsize
    with shard.open("rb", buffering=0) as file:
        file.seek(info.start)
        for part in torch.split(target, size) if size else ():
            raw = part if is_direct else torch.empty(len(part), dtype=dtype)
            memory = raw.view(torch.uint8).numpy().data
            while memory:  # a raw read may give less than was asked for
                count = file.readinto(memory)
                if not count:
                    raise UnsupportedModel(f"{shard} ends inside {info.name}", tensor=info.name)
                memory = memory[count:]
            if not is_direct:
                part.copy_(raw)


def _tensors(shard: Path) -> tuple[TensorInfo, ...]:
    try:
        with shard.open("rb") as file:
            return read_header(file, shard.stat().st_size, LORA_DTYPES).tensors
    except AdapterError as error:
        raise UnsupportedModel(f"{shard}: {error}", **error.data) from error
    except OSError as error:
        raise UnsupportedModel(f"{shard} cannot be read: {error.strerror}") from error


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.exists():
        raise UnsupportedModel(f"{folder} holds no model.safetensors and no index of shards")
    return [single]
