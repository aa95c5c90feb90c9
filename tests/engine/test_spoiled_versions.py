"""Whatever lies in the store under a version's name, a real engine judges it and ends its own requests."""

import hashlib
from pathlib import Path

import numpy as np
from tests.adapters.folders import BASE, lora_tensors, write_adapter
from tests.adapters.test_malformed import CORPUS, LIMITS
from tests.stepped_engine import tiny_base, tiny_config

from loraplex_adapters.canonical import CANONICAL_NAME
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, load_model
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Offline, Prompt

GREEDY = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
BAD = SamplingParams(max_tokens=1, temperature=0.0)


def spoiled(tmp_path: Path) -> set[bytes]:
    """Files of the corpus as they are, and canonical ones with a fault each."""
    found = set()
    for index, (make, _) in enumerate(CORPUS.values()):
        folder = tmp_path / str(index)
        make(folder)
        file = folder / "adapter_model.safetensors"
        if file.is_file() and not file.is_symlink():
            found.add(file.read_bytes())
    store = AdapterStore(tmp_path / "elsewhere")
    for rank in (4, 2 * LIMITS.max_rank):
        folder = write_adapter(tmp_path / f"rank-{rank}", lora_tensors(rank=rank), r=rank)
        version = store.put(folder, base=BASE, limits=Limits(rank)).version
        canonical = (store.path(version) / CANONICAL_NAME).read_bytes()
        found |= {
            canonical[:-100],
            canonical + b"\0" * 8,
            canonical[:-4] + np.float32("nan").tobytes(),
        }
        if rank > LIMITS.max_rank:
            found.add(canonical)
        else:
            found.add(canonical.replace(b'"shape":[4,16]', b'"shape":[16,4]'))
            found.add(canonical.replace(b"layers.0", b"layers.7"))
    return found


def test_spoiled_versions_end_their_own_requests_while_16_streams_run(tmp_path: Path) -> None:
    base, store = tiny_base(tmp_path / "base"), AdapterStore(tmp_path / "store")
    healthy = [
        store.put(write_adapter(tmp_path / f"h{i}", lora_tensors(seed=i)), base=BASE, limits=LIMITS)
        for i in range(2)
    ]
    streams = [
        Prompt(
            [3 + i, 70, 9 * i], adapter=(healthy[i % 2].version, None)[i % 3 == 0], sampling=GREEDY
        )
        for i in range(16)
    ]
    bad = []
    for at, content in enumerate(sorted(spoiled(tmp_path))):
        version = hashlib.sha256(content).hexdigest()  # so that the hash alone cannot tell
        folder = store.root / version[:2] / version
        folder.mkdir(parents=True)
        (folder / CANONICAL_NAME).write_bytes(content)
        bad.append(Prompt([5], adapter=version, sampling=BAD, arrives=at, tenant="careless"))
    config = tiny_config(base, max_lora_rank=LIMITS.max_rank)
    cache = adapter_cache(config, load_model(config), store)
    run = Offline(config, load_model(config), cache)
    quiet = [done.token_ids for done in run.run(streams)]
    together = run.run([*streams, *bad])
    assert [done.token_ids for done in together[:16]] == quiet
    assert len(bad) > 40
    codes = set()
    for done in together[16:]:
        end = done.finished
        assert end is not None
        assert (end.finish_reason, end.error, done.token_ids) == ("error", "unknown_adapter", [])
        codes.add((end.message or "").split(":")[0])
    assert {"corrupt_version", "non_finite_tensor", "rank_too_large", "truncated_file"} <= codes
    cache.check_integrity()
    cache.close()
