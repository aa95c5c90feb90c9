import hashlib
import itertools
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from tests.adapters.folders import (
    BASE,
    CONFIG,
    Q,
    V,
    float32_file,
    lora_tensors,
    projections,
    write_adapter,
)

from loraplex_adapters.errors import (
    AdapterError,
    CorruptVersion,
    RankTooLarge,
    UnknownVersion,
    UnmatchedTensors,
)
from loraplex_adapters.finite import is_finite
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.loader import TORCH_DTYPES, Loader
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore

LIMITS = Limits(max_rank=16)
LOADER = Loader(BASE, max_rank=16, dtype=torch.float32)


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


@pytest.fixture
def version(store: AdapterStore, tmp_path: Path) -> str:
    return store.put(write_adapter(tmp_path / "a"), base=BASE, limits=LIMITS).version


def canonical(store: AdapterStore, version: str) -> Path:
    return store.path(version) / "adapter.safetensors"


def test_version_is_the_sha256_of_its_canonical_file(store: AdapterStore, version: str) -> None:
    assert hashlib.sha256(canonical(store, version).read_bytes()).hexdigest() == version
    assert store.path(version) == store.root / version[:2] / version


def test_canonical_file_is_safetensors_with_the_same_tensors(
    store: AdapterStore, version: str
) -> None:
    found = load_file(canonical(store, version))
    expected = lora_tensors(prefix="")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], torch.from_numpy(t)) for n, t in expected.items())


def test_putting_twice_is_one_version(store: AdapterStore, version: str, tmp_path: Path) -> None:
    again = store.put(tmp_path / "a", base=BASE, limits=LIMITS)
    assert again.version == version
    assert list(store.versions()) == [version]
    assert store.report(version) == again.report


def test_one_changed_weight_is_another_version(
    store: AdapterStore, version: str, tmp_path: Path
) -> None:
    tensors = lora_tensors()
    tensors[f"base_model.model.{Q}.lora_B.weight"][0, 0] += 1
    changed = store.put(write_adapter(tmp_path / "b", tensors), base=BASE, limits=LIMITS)
    assert changed.version != version


def test_report_says_what_is_adapted_and_what_is_not(store: AdapterStore, version: str) -> None:
    report = store.report(version)
    assert [(m.module, m.rank, m.scale) for m in report.modules] == [(Q, 4, 2.0), (V, 4, 2.0)]
    assert set(report.unadapted) == BASE.modules.keys() - {Q, V}
    assert report.num_bytes == sum(t.nbytes for t in lora_tensors().values())
    assert report.base_model == CONFIG["base_model_name_or_path"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "f" * 64])
def test_what_is_no_version_of_ours_is_unknown(store: AdapterStore, name: str) -> None:
    with pytest.raises(UnknownVersion):
        store.path(name)


def test_flipped_bit_on_disk_is_found(store: AdapterStore, version: str) -> None:
    path = canonical(store, version)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(CorruptVersion):
        store.verify(version)
    with pytest.raises(CorruptVersion):
        LOADER.load(store.path(version), version)


def test_foreign_file_under_its_own_hash_is_no_version(store: AdapterStore) -> None:
    content = float32_file(lora_tensors(prefix=""))
    version = hashlib.sha256(content).hexdigest()
    folder = store.root / version[:2] / version
    folder.mkdir(parents=True)
    (folder / "adapter.safetensors").write_bytes(content)

    store.verify(version)
    with pytest.raises(CorruptVersion):
        LOADER.load(folder, version)


@pytest.mark.parametrize("length", [0, 7, 100, -4])
def test_shortened_file_never_loads(store: AdapterStore, version: str, length: int) -> None:
    path = canonical(store, version)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(AdapterError):
        LOADER.load(store.path(version), version)


def test_putting_again_heals_a_damaged_version(
    store: AdapterStore, version: str, tmp_path: Path
) -> None:
    canonical(store, version).unlink()
    with pytest.raises(CorruptVersion):
        store.verify(version)

    assert store.put(tmp_path / "a", base=BASE, limits=LIMITS).version == version

    store.verify(version)


def test_deleted_version_is_gone(store: AdapterStore, version: str) -> None:
    store.delete(version)
    assert not list(store.versions())
    with pytest.raises(UnknownVersion):
        store.report(version)
    with pytest.raises(UnknownVersion):
        LOADER.load(store.root / version[:2] / version, version)


def test_parallel_puts_of_one_adapter_are_one_version(store: AdapterStore, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    found: list[str] = []

    def put() -> None:
        found.append(store.put(folder, base=BASE, limits=LIMITS).version)

    threads = [threading.Thread(target=put) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 16
    assert list(store.versions()) == [*set(found)]
    assert not list((store.root / ".incoming").iterdir())


def test_store_survives_losing_the_clients_folder(
    store: AdapterStore, version: str, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "a")
    assert LOADER.load(store.path(version), version).modules.keys() == {Q, V}


def test_engine_with_another_base_or_limit_refuses(store: AdapterStore, version: str) -> None:
    attention_only = BaseModel.from_projections(None, projections()[:1])
    with pytest.raises(UnmatchedTensors):
        Loader(attention_only, 16, torch.float32).load(store.path(version), version)
    with pytest.raises(RankTooLarge):
        Loader(BASE, 3, torch.float32).load(store.path(version), version)


def test_value_beyond_the_slabs_dtype_is_refused(store: AdapterStore, tmp_path: Path) -> None:
    tensors = lora_tensors()
    tensors[f"base_model.model.{Q}.lora_A.weight"][0, 0] = 1e6
    stored = store.put(write_adapter(tmp_path / "b", tensors), base=BASE, limits=LIMITS)

    with pytest.raises(AdapterError) as caught:
        Loader(BASE, 16, torch.float16).load(store.path(stored.version), stored.version)

    assert caught.value.code == "non_finite_tensor"
    assert caught.value.data["tensor"] == f"{Q}.lora_A.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [{"F32"}, {"BF16"}, {"F16"}, {"F32", "BF16"}])
def test_factors_are_those_saved_in_the_engines_dtype(
    store: AdapterStore, tmp_path: Path, stored: set[str], dtype: torch.dtype
) -> None:
    dtypes = itertools.cycle(sorted(stored))
    saved = {
        name: torch.from_numpy(tensor).to(TORCH_DTYPES[next(dtypes)])
        for name, tensor in lora_tensors().items()
    }
    folder = write_adapter(tmp_path / "b", save(saved))
    version = store.put(folder, base=BASE, limits=LIMITS).version
    loaded = Loader(BASE, 16, dtype).load(store.path(version), version)
    assert len(loaded.modules) == 2
    for name, factors in loaded.modules.items():
        a, b = (saved[f"base_model.model.{name}.lora_{x}.weight"].to(dtype) for x in "AB")
        assert torch.equal(factors.a, a)
        assert torch.equal(factors.b, b.T)


@given(st.lists(st.integers(0, 2**16 - 1), max_size=9), st.sampled_from(["BF16", "F16", "F32"]))
def test_finite_is_what_torch_says(words: list[int], dtype: str) -> None:
    raw = np.array(words + [0] * (len(words) % 2), np.uint16).tobytes()
    found = torch.tensor(list(raw), dtype=torch.uint8).view(TORCH_DTYPES[dtype])
    assert is_finite(raw, dtype) == bool(found.isfinite().all())


def test_report_survives_json(store: AdapterStore, version: str) -> None:
    report = store.report(version)
    assert type(report).from_json(json.loads(json.dumps(report.to_json()))) == report
