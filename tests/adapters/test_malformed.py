"""Each way an adapter can be wrong is refused with its own code, and leaves nothing in the store."""

import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adapters.folders import (
    BASE,
    DOWN,
    Q,
    float32_file,
    lora_tensors,
    safetensors_bytes,
    with_header,
    write_adapter,
    zeros_file,
)
from tests.adapters.test_added_tokens import TOKENIZERS

from loraplex_adapters import errors
from loraplex_adapters.errors import AdapterError
from loraplex_adapters.folder import open_adapter
from loraplex_adapters.layout import EMBEDDING, FINAL_NORM, HEAD, BaseModel, ModuleShape
from loraplex_adapters.manifest import Limits, judge
from loraplex_adapters.store import AdapterStore

LIMITS = Limits(max_rank=16, max_bytes=1 << 20)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n"
A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"
GOOD = {A: (4, 16), B: (16, 4)}


class Bomb:
    """A pickle of this touches a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (str(self.marker),)


def only_bin(folder: Path) -> None:
    write_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(folder / "marker")))


def config_text(text: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_adapter(folder)
        (folder / "adapter_config.json").write_bytes(text)

    return make


def weights(content: bytes | dict[str, np.ndarray]) -> Callable[[Path], None]:
    return lambda folder: void(write_adapter(folder, content))


def config(**values: object) -> Callable[[Path], None]:
    return lambda folder: void(write_adapter(folder, **values))


def void(_: object) -> None:
    return None


def missing(name: str) -> Callable[[Path], None]:
    return lambda folder: (write_adapter(folder) / name).unlink()


def linked_weights(folder: Path) -> None:
    target = write_adapter(folder / "elsewhere") / "adapter_model.safetensors"
    missing("adapter_model.safetensors")(folder)
    (folder / "adapter_model.safetensors").symlink_to(target)


def linked_extra(folder: Path) -> None:
    (write_adapter(folder) / "README.md").symlink_to("/etc/hostname")


def fifo(folder: Path) -> None:
    missing("adapter_model.safetensors")(folder)
    os.mkfifo(folder / "adapter_model.safetensors")


def entry(offsets: list[object], shape: list[object], dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def spoiled(value: float) -> dict[str, np.ndarray]:
    tensors = lora_tensors()
    tensors[B][3, 1] = value
    return tensors


def bf16_infinity() -> bytes:
    b = np.zeros((16, 4), np.uint16)
    b[0, 0] = 0x7F80
    return safetensors_bytes({A: ("BF16", (4, 16), bytes(128)), B: ("BF16", (16, 4), b.tobytes())})


FLOAT32 = float32_file(lora_tensors())
CORPUS: dict[str, tuple[Callable[[Path], None], type[AdapterError]]] = {
    "bin only": (only_bin, errors.PickleRefused),
    "pickle renamed": (weights(pickle.dumps(list(range(99)))), errors.PickleRefused),
    "torch zip renamed": (weights(b"PK\x03\x04" + bytes(200)), errors.PickleRefused),
    "lfs weights": (weights(LFS), errors.LfsPointer),
    "lfs config": (config_text(LFS), errors.LfsPointer),
    "text weights": (weights(b"DUMMY_WEIGHTS_FOR_DEMONSTRATION"), errors.NotSafetensors),
    "binary noise": (weights(b"\x01" * 64), errors.NotSafetensors),
    "header is a list": (weights(with_header([1], b"")), errors.NotSafetensors),
    "empty file": (weights(b""), errors.TruncatedFile),
    "last 100 bytes gone": (weights(FLOAT32[:-100]), errors.TruncatedFile),
    "cut inside header": (weights(FLOAT32[:40]), errors.TruncatedFile),
    "2^63 header": (weights(struct.pack("<Q", 1 << 63) + b"{}" * 40), errors.HeaderTooLong),
    "header beyond cap": (weights(struct.pack("<Q", 1 << 30) + b"{}" * 40), errors.HeaderTooLong),
    "header is no json": (weights(with_header(b"{not json", b"")), errors.BadHeader),
    "deep header": (weights(with_header(b'{"a":' + b"[" * 100_000, b"")), errors.BadHeader),
    "name twice": (weights(with_header(b'{"a":1,"a":2}', b"")), errors.BadHeader),
    "negative offset": (weights(with_header({A: entry([-4, 0], [1])}, b"")), errors.BadHeader),
    "boolean shape": (weights(with_header({A: entry([0, 4], [True])}, b"1234")), errors.BadHeader),
    "bytes and shape differ": (
        weights(with_header({A: entry([0, 8], [4, 16])}, bytes(8))),
        errors.BadHeader,
    ),
    "metadata of numbers": (weights(with_header({"__metadata__": {"a": 1}}, b"")), errors.BadHeader),
    "trailing bytes": (weights(FLOAT32 + b"PK\x03\x04"), errors.BadHeader),
    "overlapping offsets": (
        weights(
            with_header({A: entry([0, 256], [4, 16]), B: entry([128, 384], [16, 4])}, bytes(384))
        ),
        errors.OverlappingTensors,
    ),
    "hole between tensors": (
        weights(
            with_header({A: entry([0, 256], [4, 16]), B: entry([264, 520], [16, 4])}, bytes(520))
        ),
        errors.OverlappingTensors,
    ),
    "int8 tensors": (weights(zeros_file(GOOD, "I8")), errors.BadTensorDtype),
    "float64 tensors": (weights(zeros_file(GOOD, "F64")), errors.BadTensorDtype),
    "traversal in a name": (weights(zeros_file({"../../etc/x": (4,)})), errors.UnsafePath),
    "weights are a link": (linked_weights, errors.UnsafePath),
    "a link beside them": (linked_extra, errors.UnsafePath),
    "weights are a fifo": (fifo, errors.UnsafePath),
    "no weights": (missing("adapter_model.safetensors"), errors.MissingFile),
    "no config": (missing("adapter_config.json"), errors.MissingFile),
    "no folder": (lambda folder: None, errors.MissingFile),
    "nan": (weights(spoiled(float("nan"))), errors.NonFiniteTensor),
    "infinity": (weights(spoiled(float("inf"))), errors.NonFiniteTensor),
    "bfloat16 infinity": (weights(bf16_infinity()), errors.NonFiniteTensor),
    "same factor twice": (
        weights({**lora_tensors(), **lora_tensors(prefix="")}),
        errors.DuplicateTensor,
    ),
    "A without B": (weights(zeros_file({A: (4, 16)})), errors.IncompletePair),
    "config is a list": (config_text(b"[]"), errors.ConfigNotObject),
    "config is no json": (config_text(b"{'r': 8}"), errors.ConfigNotJson),
    "config is binary": (config_text(b"\xff\xfe\x00"), errors.ConfigNotJson),
    "lerobot's config": (config_text(b'{"base_model": "x", "steps": 3}'), errors.NotPeft),
    "a fork's fused projection": (
        config(enable_lora=[True, False, True], merge_weights=True), errors.UnsupportedFeature,
    ),
    "huge config": (config_text(b" " * (2 << 20)), errors.AdapterTooLarge),
    "rank null": (config(r=None), errors.BadConfigValue),
    "rank zero": (config(r=0), errors.BadConfigValue),
    "alpha is text": (config(lora_alpha="8"), errors.BadConfigValue),
    "alpha is infinite": (config(lora_alpha=float("inf")), errors.BadConfigValue),
    "broken pattern": (config(rank_pattern={"(q_proj": 4}), errors.BadConfigValue),
    "explosive pattern": (config(alpha_pattern={"((a+)+)+$": 4}), errors.BadConfigValue),
    "explosive options": (config(alpha_pattern={".?" * 100 + "X": 4}), errors.BadConfigValue),
    "explosive choices": (config(alpha_pattern={"(.|.)" * 40 + "X": 4}), errors.BadConfigValue),
    "rank over the limit": (config(r=17), errors.RankTooLarge),
    "too many bytes": (weights(bytes(2 << 20)), errors.AdapterTooLarge),
    "renamed keys": (
        weights(zeros_file({n.replace("layers", "foo.layers"): s for n, s in GOOD.items()})),
        errors.NoModuleMatched,
    ),
    "no tensors": (weights(with_header({}, b"")), errors.NoModuleMatched),
    "one module unknown": (
        weights(zeros_file({**GOOD, "model.layers.9.self_attn.q_proj.lora_A.weight": (4, 16)})),
        errors.UnmatchedTensors,
    ),
    "nothing but originals": (
        weights(zeros_file({"base_model.model.lm_head.original_module.weight": (4, 4)})),
        errors.NoModuleMatched,
    ),
    "original of a projection": (
        weights(zeros_file({**GOOD, A.replace("lora_A", "original_module"): (16, 16)})),
        errors.UnmatchedTensors,
    ),
    "foreign tensor": (weights(zeros_file({**GOOD, "step": (1,)})), errors.UnmatchedTensors),
    "other hidden size": (weights(zeros_file({A: (4, 32), B: (32, 4)})), errors.ShapeMismatch),
    "transposed": (weights(zeros_file({A: (16, 4), B: (4, 16)})), errors.ShapeMismatch),
    "one dimension": (weights(zeros_file({A: (64,), B: (16, 4)})), errors.ShapeMismatch),
    "rank zero tensors": (weights(zeros_file({A: (0, 16), B: (16, 0)})), errors.ShapeMismatch),
    "config says another rank": (config(lora_alpha=8, r=8, rank_pattern={Q: 2}), errors.RankMismatch),
    "A and B disagree": (weights(zeros_file({A: (4, 16), B: (16, 3)})), errors.RankMismatch),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_malformed_adapter_is_refused_with_its_own_code(name: str, tmp_path: Path) -> None:
    make, expected = CORPUS[name]
    store = AdapterStore(tmp_path / "store")
    make(tmp_path / "adapter")

    with pytest.raises(AdapterError) as caught:
        store.put(tmp_path / "adapter", base=BASE, limits=LIMITS)

    assert (type(caught.value), caught.value.code) == (expected, expected.code)
    assert not list(store.versions())
    assert not list((tmp_path / "store" / ".incoming").iterdir())
    assert not (tmp_path / "adapter" / "marker").exists()


WHOLE = BaseModel(
    "tiny",
    {
        **BASE.modules,
        Q: ModuleShape(16, 16, has_bias=True),
        EMBEDDING: ModuleShape(40, 16, "embedding"),
        HEAD: ModuleShape(16, 40),
        FINAL_NORM: ModuleShape(16, 16, "norm"),
    },
)
DOWN_BIAS = f"base_model.model.{DOWN}.bias"
DELTA = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
WRONG_PARTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], type[AdapterError]]] = {
    "magnitude of no pair": ({}, {f"{DOWN}.lora_magnitude_vector": (16,)}, errors.IncompletePair),
    "no magnitude": ({"use_dora": True}, {}, errors.IncompletePair),
    "magnitude of another width": (
        {}, {f"{Q}.lora_magnitude_vector": (17,)}, errors.ShapeMismatch,
    ),
    "bias of no pair": ({}, {f"{DOWN}.lora_B.bias": (16,)}, errors.IncompletePair),
    "bias where the base has none": ({}, {DOWN_BIAS: (16,)}, errors.UnmatchedTensors),
    "bias of another width": ({}, {f"{Q}.base_layer.bias": (17,)}, errors.ShapeMismatch),
    "head of another width": ({}, {"lm_head.weight": (40, 17)}, errors.ShapeMismatch),
    "norm of another width": ({}, {"model.norm.weight": (17,)}, errors.ShapeMismatch),
    "fewer tokens than rows": ({"trainable_token_indices": [3]}, {DELTA: (2, 16)}, errors.ShapeMismatch),
    "one token twice": ({"trainable_token_indices": [3, 3]}, {DELTA: (2, 16)}, errors.ShapeMismatch),
    "rows of unnamed tokens": ({}, {DELTA: (2, 16)}, errors.ShapeMismatch),
    "negative token": ({"trainable_token_indices": [-1]}, {}, errors.BadConfigValue),
    "tokens are text": ({"trainable_token_indices": {"embed_tokens": "3"}}, {}, errors.BadConfigValue),
    "modules_to_save is text": ({"modules_to_save": "lm_head"}, {}, errors.BadConfigValue),
    "classifier": ({"modules_to_save": ["score"]}, {"score.weight": (2, 16)}, errors.UnmatchedTensors),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_part_that_does_not_fit_its_module_is_refused(name: str, tmp_path: Path) -> None:
    config, shapes, expected = WRONG_PARTS[name]
    folder = write_adapter(tmp_path / "a", zeros_file({**GOOD, **shapes}), **config)
    with pytest.raises(AdapterError) as caught:
        AdapterStore(tmp_path / "s").put(folder, base=WHOLE, limits=LIMITS)
    assert type(caught.value) is expected


UNSERVED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "experts": ({}, {"model.layers.0.mlp.experts.base_layer.lora_A.weight": (4, 16)}, "target_parameters"),
    "larger head": ({}, {"lm_head.weight": (48, 16)}, "added_tokens"),
    "larger embedding": ({}, {"model.embed_tokens.weight": (48, 16)}, "added_tokens"),
    "LoRA of a larger head": (
        {}, {"lm_head.lora_A.weight": (4, 16), "lm_head.lora_B.weight": (48, 4)}, "added_tokens",
    ),
    "LoRA of a larger embedding": (
        {},
        {"model.embed_tokens.lora_embedding_A": (4, 48), "model.embed_tokens.lora_embedding_B": (16, 4)},
        "added_tokens",
    ),
    "token beyond the vocabulary": ({"trainable_token_indices": [40]}, {DELTA: (1, 16)}, "added_tokens"),
    "tokens of a projection": (
        {"trainable_token_indices": {"q_proj": [1]}},
        {f"{Q}.token_adapter.trainable_tokens_delta": (1, 16)},
        "target_modules",
    ),
    "LoRA of a norm": ({}, {"model.norm.lora_A.weight": (4, 16)}, "target_modules"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED)
def test_what_is_not_served_is_refused_by_its_key(name: str, tmp_path: Path) -> None:
    config, shapes, key = UNSERVED[name]
    folder = write_adapter(tmp_path / "a", zeros_file({**GOOD, **shapes}), **config)
    with pytest.raises(errors.UnsupportedFeature) as caught:
        AdapterStore(tmp_path / "s").put(folder, base=WHOLE, limits=LIMITS)
    assert caught.value.data["key"] == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "LOHA"),
        ("target_parameters", ["mlp.experts.down_proj"]),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("alora_invocation_tokens", [5]),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("arrow_config", {"top_k": 3}),
        ("kasa_config", {"beta": 1}),
        ("monteclora_config", {"x": 1}),
        ("enable_lora", [True, False]),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "loftq"),
    ],
)
def test_unserved_config_key_is_named(key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedFeature) as caught:
        AdapterStore(tmp_path / "s").put(
            write_adapter(tmp_path / "a", **{key: value}), base=BASE, limits=LIMITS
        )
    assert caught.value.data["key"] == key


def test_codes_are_unique_and_drawn_in_the_tree() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    leaves = [c for c in classes if issubclass(c, AdapterError) and not c.__subclasses__()]
    assert len({c.code for c in leaves}) == len(leaves)
    assert all(f"{c.__name__} " in (errors.__doc__ or "") for c in leaves)
    assert all(c.code in (errors.__doc__ or "") for c in leaves)


def test_every_code_is_documented_and_every_documented_code_exists() -> None:
    page = Path(__file__).parents[2] / "deploy" / "docs" / "adapters.md"
    documented = set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE))
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    assert documented == {c.code for c in classes if not c.__subclasses__()}


def test_every_leaf_of_the_weights_is_in_the_corpus() -> None:
    tested = {expected for _, expected in CORPUS.values()} | {errors.UnsupportedFeature}
    tested |= {errors.BadArchive}  # the corpus is of folders; bad archives come over HTTP
    tested |= {expected for _, _, expected in TOKENIZERS.values()}
    leaves = {
        *errors.MalformedAdapter.__subclasses__(),
        *errors.IncompatibleAdapter.__subclasses__(),
    }
    assert leaves == tested


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_spoiled_files_are_judged_without_surprise(data: st.DataObject, tmp_path: Path) -> None:
    """Whatever a few changed bytes make of an adapter, it is served or refused, never a crash."""
    folder = write_adapter(tmp_path / "adapter")
    for name, head in (("adapter_model.safetensors", 700), ("adapter_config.json", 100)):
        content = bytearray((folder / name).read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            position = data.draw(st.integers(0, min(head, len(content)) - 1))
            content[position] = data.draw(st.integers(0, 255))
        (folder / name).write_bytes(content[: data.draw(st.sampled_from([None, None, -1, 300]))])
    with open_adapter(folder, LIMITS.max_bytes) as files:
        try:
            manifest = judge(files, BASE, LIMITS)
        except AdapterError:
            return
    assert manifest.report.rank <= LIMITS.max_rank
    assert manifest.modules


def test_pickle_beside_safetensors_is_ignored_unread(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", {**lora_tensors((Q, DOWN))})
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "marker")))

    stored = AdapterStore(tmp_path / "s").put(folder, base=BASE, limits=LIMITS)

    assert "adapter_model.bin is ignored" in stored.report.warnings
    assert not (tmp_path / "marker").exists()
    assert json.loads(json.dumps(stored.report.to_json()))["rank"] == 4
