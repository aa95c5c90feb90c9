"""Fused experts become single ones: values by PEFT's definition, and what is refused."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from loraplex_adapters.errors import AdapterError, RankMismatch, ShapeMismatch, UnsupportedFeature
from loraplex_adapters.layout import BaseModel, ModuleShape
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import CANONICAL_NAME, AdapterStore

EXPERTS, HIDDEN, INNER, RANK = 5, 8, 6, 3
BLOCK = "model.layers.0.mlp"
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
PREFIX = f"base_model.model.{BLOCK}.experts"
Tensors = dict[str, npt.NDArray[np.float32]]


def base(num_experts: int = EXPERTS) -> BaseModel:
    modules = {f"{BLOCK}.gate": ModuleShape(HIDDEN, num_experts)}
    for e in range(num_experts):
        for part in ("gate_proj", "up_proj"):
            modules[f"{BLOCK}.experts.{e}.{part}"] = ModuleShape(HIDDEN, INNER)
        modules[f"{BLOCK}.experts.{e}.down_proj"] = ModuleShape(INNER, HIDDEN)
    return BaseModel("tiny", modules)


def factors(wide: int, tall: int, seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((EXPERTS * RANK, wide), np.float32)
    return a, draw.standard_normal((tall, RANK * EXPERTS), np.float32)


def fused() -> Tensors:
    gate_up, down = factors(HIDDEN, 2 * INNER, 0), factors(INNER, HIDDEN, 1)
    return {
        f"{PREFIX}.base_layer.lora_A.weight": gate_up[0],
        f"{PREFIX}.base_layer.lora_B.weight": gate_up[1],
        f"{PREFIX}.lora_A.weight": down[0],
        f"{PREFIX}.lora_B.weight": down[1],
    }


def put(folder: Path, tensors: Tensors, targets: list[str], base: BaseModel) -> Path:
    """The canonical file of an adapter with these tensors."""
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "target_parameters": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    store = AdapterStore(folder.parent / "store")
    version = store.put(folder, base=base, limits=Limits(max_rank=8)).version
    assert not list((folder.parent / "store" / ".incoming").iterdir())
    return store.path(version) / CANONICAL_NAME


def delta(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """ParamWrapper.get_delta_weight of PEFT, without its scale: [experts, out, in]."""
    a = a.reshape(EXPERTS, -1, a.shape[-1])
    b = b.reshape(b.shape[0], -1, EXPERTS)
    return np.einsum("ore,eri->eoi", b, a)


def test_each_expert_gets_what_peft_adds_to_it(tmp_path: Path) -> None:
    tensors = fused()
    saved = load_file(put(tmp_path / "lora", tensors, BOTH, base()))
    gate_up, down = (
        delta(
            tensors[f"{PREFIX}{wrapper}.lora_A.weight"], tensors[f"{PREFIX}{wrapper}.lora_B.weight"]
        )
        for wrapper in (".base_layer", "")
    )
    expected = {"gate_proj": gate_up[:, :INNER], "up_proj": gate_up[:, INNER:], "down_proj": down}
    for part, weights in expected.items():
        for e in range(EXPERTS):
            module = f"{BLOCK}.experts.{e}.{part}"
            own = saved[f"{module}.lora_B.weight"] @ saved[f"{module}.lora_A.weight"]
            np.testing.assert_allclose(own, weights[e], rtol=1e-5, atol=1e-5)


def test_down_alone_is_not_wrapped_in_gate_up(tmp_path: Path) -> None:
    tensors = {name: t for name, t in fused().items() if "base_layer" not in name}
    saved = load_file(put(tmp_path / "lora", tensors, ["experts.down_proj"], base()))
    assert {name.split(".")[-3] for name in saved} == {"down_proj"}


def refused(tmp_path: Path, tensors: Tensors, targets: list[str], base: BaseModel) -> AdapterError:
    with pytest.raises(AdapterError) as caught:
        put(tmp_path / "lora", tensors, targets, base)
    return caught.value


@pytest.mark.parametrize(
    ("targets", "experts"),
    [([*BOTH, "embed_tokens.weight"], EXPERTS), (BOTH, 0), (["proj"], EXPERTS), ([7], EXPERTS)],
)
def test_other_parameters_are_refused(tmp_path: Path, targets: list[str], experts: int) -> None:
    error = refused(tmp_path, fused(), targets, base(experts))
    assert isinstance(error, UnsupportedFeature)
    assert error.data["key"] == "target_parameters"


def test_a_wrapper_without_a_parameter_is_refused(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path, fused(), BOTH[1:], base()), UnsupportedFeature)


def test_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path, fused(), BOTH, base(4)), ShapeMismatch)
    assert isinstance(refused(tmp_path / "three", fused(), BOTH, base(3)), RankMismatch)
