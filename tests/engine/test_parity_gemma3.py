"""Gemma-3-270M, imported from GGUF, against transformers on the GGUF file itself, and PEFT."""

from pathlib import Path

import peft
import pytest
import torch
from tests.engine.cache import cache_folder
from tests.engine.gemma3 import gemma3_folder, gguf_file
from tests.engine.tiny import ALL_MODULES, make_adapter, offline_engine
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from loraplex_engine import model_check
from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.config import read_model_config
from loraplex_engine.offline import Prompt
from loraplex_engine.reference_model import ReferenceModel

pytestmark = [
    pytest.mark.slow,
    # PEFT asks transformers for a property that transformers is about to rename.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
WINDOW = 512


@pytest.fixture(scope="module")
def folder() -> Path:
    return gemma3_folder(cache_folder())


def test_the_folder_is_what_the_gguf_file_says(folder: Path) -> None:
    config = read_model_config(folder)
    assert (config.architecture, config.dtype) == ("Gemma3ForCausalLM", "bfloat16")
    assert (config.num_layers, config.hidden_size, config.rms_norm_eps) == (18, 640, 1e-6)
    assert [layer.window for layer in config.layers] == ([WINDOW] * 5 + [None]) * 3
    assert config.eos_token_ids == {1}
    assert config.ties_embeddings
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("The capital of France is").ids == [2, 818, 5279, 529, 7001, 563]


def test_it_equals_transformers_on_the_gguf_file(folder: Path) -> None:
    said: list[str] = []
    assert model_check.check(folder, None, gguf_file(cache_folder()), "float32", said.append), said


def test_adapters_and_the_window_equal_peft(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    make_adapter(model, tmp_path / "lora", rank=4, alpha=2, modules=ALL_MODULES, seed=0)
    config = EngineConfig(
        model=folder, dtype="float32", max_model_len=768, max_num_batched_tokens=256,
        max_loras=1, max_lora_rank=4,
    )  # fmt: skip
    text = "The sea was calm that morning, and the harbour master counted the boats. " * 40
    ids = AutoTokenizer.from_pretrained(folder)(text).input_ids[: WINDOW + 60]
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    with offline_engine(config, {"lora": tmp_path / "lora"}, tmp_path / "store") as (
        offline,
        versions,
    ):
        said = offline.run([Prompt(ids, None, sampling), Prompt(ids, versions["lora"], sampling)])
    wrapped = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
    reference = ReferenceModel(wrapped, has_adapter=True)
    for completion, with_adapter in zip(said, (False, True), strict=True):
        assert completion.logits is not None
        said_ids = [*ids, *completion.token_ids]
        expected = reference.logits(said_ids, 8, with_adapter=with_adapter)
        assert (completion.logits - expected).abs().max() < 2e-3 * expected.std()
