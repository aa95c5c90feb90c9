"""The demo's committed adapters: complete, small, and free of any machine's paths."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

DEMO = Path(__file__).parents[2] / "deploy" / "demo"
MAX_BYTES = 2_000_000
SEEDS = json.loads((DEMO / "demo.json").read_text())
FOLDERS = [DEMO / entry["folder"] for entry in SEEDS["tenants"]]


def test_three_tenants_have_an_adapter_each() -> None:
    assert [entry["tenant"] for entry in SEEDS["tenants"]] == ["acme", "globex", "initech"]
    assert sorted(p.name for p in (DEMO / "adapters").iterdir()) == ["acme", "globex", "initech"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_adapter_is_small_and_holds_what_its_configuration_says(folder: Path) -> None:
    assert sum(p.stat().st_size for p in folder.iterdir()) <= MAX_BYTES
    config = json.loads((folder / "adapter_config.json").read_text())
    layers = config["layers_to_transform"] or range(30)
    expected = len(layers) * len(config["target_modules"])
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        slices = {key: file.get_slice(key) for key in file.offset_keys()}
        shapes = {key: piece.get_shape() for key, piece in slices.items()}
        dtypes = {piece.get_dtype() for piece in slices.values()}
    assert dtypes == {"BF16"}
    for factor, rank_axis in (("lora_A", 0), ("lora_B", 1)):
        ranks = [shape[rank_axis] for key, shape in shapes.items() if factor in key]
        assert ranks == [config["r"]] * expected


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_adapter_names_its_base_model_by_its_hub_id(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == SEEDS["base_model"]


def test_adapters_differ_in_rank_and_in_target_modules() -> None:
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in FOLDERS]
    assert len({config["r"] for config in configs}) == 3
    assert len({tuple(sorted(config["target_modules"])) for config in configs}) == 3
