"""Reading weights: every type to every type, progress, what is refused, and the memory it takes."""

import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loraplex_engine.config import Quantization
from loraplex_engine.errors import UnsupportedModel
from loraplex_engine.model import weights
from loraplex_engine.model.config import read_model_config
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.model.weights import Checkpoint

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CPU = torch.device("cpu")


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Each tensor in a shard of its own."""
    (folder / "config.json").write_text("{}")
    names = {name: f"model-{i}.safetensors" for i, name in enumerate(tensors)}
    for name, shard in names.items():
        save_file({name: tensors[name]}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("saved", DTYPES, ids=str)
@pytest.mark.parametrize("wanted", DTYPES, ids=str)
def test_tensors_of_two_shards_are_read_into_one(
    tmp_path: Path, saved: torch.dtype, wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 64)  # several for each tensor
    a, b = torch.randn(7, 13).to(saved), torch.randn(4, 13).to(saved)
    write(tmp_path, {"a": a, "b": b, "norm": torch.randn(5).to(saved)})
    checkpoint = Checkpoint(tmp_path, wanted, CPU)
    assert torch.equal(checkpoint.fused(["b", "a"]), torch.cat([b, a]).to(wanted))
    assert checkpoint.tensor("norm").shape == (5,)
    assert checkpoint.unread() == []


def test_loading_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PROGRESS_S", 0.0)
    write(tmp_path, {name: torch.zeros(10, 10) for name in "abcd"})
    checkpoint = Checkpoint(tmp_path, torch.float32, CPU)
    with caplog.at_level(logging.INFO, weights.__name__):
        for name in "abcd":
            checkpoint.tensor(name)
    said = [record.getMessage().split(" of ")[0] for record in caplog.records]
    assert said == [f"loading weights: {share} %" for share in (25, 50, 75, 100)]


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.zeros(4, 4, dtype=torch.int8)})
    with pytest.raises(UnsupportedModel, match="a is I8"):
        Checkpoint(tmp_path, torch.float32, CPU)


def test_a_shard_that_is_cut_off_or_missing_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.zeros(40, 40), "b": torch.zeros(3)})
    shard = tmp_path / "model-0.safetensors"
    os.truncate(shard, shard.stat().st_size - 4)
    with pytest.raises(UnsupportedModel, match="bytes are missing"):
        Checkpoint(tmp_path, torch.float32, CPU)
    shard.unlink()
    with pytest.raises(UnsupportedModel, match="No such file"):
        Checkpoint(tmp_path, torch.float32, CPU)


class Watched(Checkpoint):
    """Knows which of the tensors that it gave are alive."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, torch.bfloat16, CPU)
        self.given: dict[str, weakref.ref[torch.UntypedStorage]] = {}

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        tensor = super().fused(names)
        self.given[names[0]] = weakref.ref(tensor.untyped_storage())
        return tensor


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_of_weights_that_are_packed_no_copy_stays(
    tmp_path: Path, quantization: Quantization
) -> None:
    write_llama(tmp_path, hidden=128, inner=256, layers=2)
    checkpoint = Watched(tmp_path)
    decoder = Decoder(read_model_config(tmp_path), checkpoint, 512, quantization)
    alive = {name for name, storage in checkpoint.given.items() if storage() is not None}
    assert len(checkpoint.given) == 2 * 6 + 2
    assert len(decoder.layers) == 2
    assert {name for name in alive if "norm" not in name} == {"model.embed_tokens.weight"}


MEASURE = """
import sys
from pathlib import Path
from loraplex_engine.build import load_model
from loraplex_engine.config import EngineConfig
from loraplex_kernels.warm_up import warm_up

def kib(field):
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0])

warm_up()
Path("/proc/self/clear_refs").write_text("5")  # forget the peak
before = kib("VmRSS")
model = load_model(EngineConfig(model=Path(sys.argv[1]), quantization=sys.argv[2], device="cpu"))
print(kib("VmRSS") - before, kib("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts it")
@pytest.mark.parametrize(("quantization", "share"), [("none", 1.0), ("int8", 0.5)])
def test_loading_takes_little_more_than_the_model(
    tmp_path: Path, quantization: str, share: float
) -> None:
    write_llama(tmp_path, hidden=1024, inner=3072, layers=6)  # 170 MB
    size = sum(shard.stat().st_size for shard in tmp_path.glob("*.safetensors"))
    assert size > 150e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), quantization],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    held, peak = (1024 * int(number) for number in done.stdout.split())
    assert held < (share + 0.12) * size
    assert peak < held + 0.35 * size  # packing has a tensor twice, quantising in float32


def write_llama(folder: Path, *, hidden: int, inner: int, layers: int) -> None:
    """In bfloat16, a shard for each layer."""
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": hidden,
        "intermediate_size": inner, "num_attention_heads": 8, "num_hidden_layers": layers,
        "max_position_embeddings": 512, "dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, hidden)}
    shapes |= {"self_attn.v_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden)}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    shapes |= {"mlp.down_proj": (hidden, inner)}
    outside = {"model.embed_tokens.weight": (512, hidden), "model.norm.weight": (hidden,)}
    weight_map = dict.fromkeys(outside, "outside.safetensors")
    save_file(
        {name: rough(*shape) for name, shape in outside.items()}, folder / "outside.safetensors"
    )
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors = {f"{prefix}.{name}.weight": rough(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = rough(hidden)
        save_file(tensors, folder / f"layer-{layer}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"layer-{layer}.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def rough(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16).uniform_(-1, 1)
