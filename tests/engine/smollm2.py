"""SmolLM2 and the demo adapters, in the offline engine and in transformers + PEFT."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import peft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import load_model
from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.offline import Offline

DEMO = Path(__file__).parents[2] / "deploy" / "demo"
ADAPTERS = {
    entry["tenant"]: DEMO / entry["folder"]
    for entry in json.loads((DEMO / "demo.json").read_text())["tenants"]
}
TARGETS = (None, *ADAPTERS)
END_OF_TEXT = 2  # also what fills a row


class Question(NamedTuple):
    target: str | None  # a demo tenant's adapter, or the base model
    prompt_ids: tuple[int, ...]


class Engine(NamedTuple):
    """An offline engine and the versions of the demo adapters in its store."""

    offline: Offline
    adapters: AdapterCache
    versions: dict[str | None, str | None]


def make_engine(
    model_folder: Path, store_folder: Path, dtype: Dtype, *, max_loras: int, records_logits: bool
) -> Engine:
    """Chunks of 48 tokens, so that prompts are cut and decodes share their steps."""
    config = EngineConfig(
        model=model_folder,
        dtype=dtype,
        device="cpu",
        max_model_len=512,
        max_num_batched_tokens=48,
        max_loras=max_loras,
        max_lora_rank=16,
        cpu_kv_cache_bytes=256 * 2**20,
    )
    model = load_model(config)
    layout = projection_layout(model.config)
    store = AdapterStore(store_folder)
    base, limits = BaseModel.from_projections(None, layout), Limits(max_rank=16)
    versions: dict[str | None, str | None] = {None: None}
    for name, folder in ADAPTERS.items():
        versions[name] = store.put(folder, base=base, limits=limits).version
    adapters = AdapterCache(
        store,
        layout,
        max_loras=max_loras,
        max_lora_rank=16,
        dtype=model.dtype,
        device=torch.device("cpu"),
        host_bytes=config.max_cpu_lora_bytes,
    )
    return Engine(
        Offline(config, model, adapters, records_logits=records_logits), adapters, versions
    )


class Peft:
    """transformers + PEFT with the demo adapters; its logits are of one sequence alone, unpadded."""

    def __init__(self, model_folder: Path, dtype: torch.dtype) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
        for name, folder in ADAPTERS.items():
            if isinstance(self.model, peft.PeftModel):
                self.model.load_adapter(str(folder), adapter_name=name)
            else:
                self.model = peft.PeftModel.from_pretrained(self.model, folder, adapter_name=name)
        self.model.to(dtype).eval()

    @torch.inference_mode()
    def logits(self, question: Question, answer_ids: Sequence[int]) -> torch.Tensor:
        """float32 [num answer tokens, vocab_size]: what it thinks before each token of the answer."""
        ids = torch.tensor([[*question.prompt_ids, *answer_ids]])
        first = len(question.prompt_ids) - 1
        with self.speaking_as(question.target):
            logits: torch.Tensor = self.model(ids).logits[0, first:-1]
        return logits.float().clone()

    @torch.inference_mode()
    def answers(self, questions: Sequence[Question], num_tokens: int) -> list[list[int]]:
        """Greedy, each to its own end of text, or so many tokens; all of one target, in one batch."""
        length = max(len(question.prompt_ids) for question in questions)
        padding = [length - len(question.prompt_ids) for question in questions]
        rows = [
            [END_OF_TEXT] * n + [*q.prompt_ids] for n, q in zip(padding, questions, strict=True)
        ]
        with self.speaking_as(questions[0].target):
            out = self.model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor([[0] * n + [1] * (length - n) for n in padding]),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=END_OF_TEXT,
                eos_token_id=END_OF_TEXT,
            )
        return [_until_end_of_text(ids) for ids in out[:, length:].tolist()]

    @contextmanager
    def speaking_as(self, target: str | None) -> Iterator[None]:
        if target is None:
            with self.model.disable_adapter():
                yield
        else:
            self.model.set_adapter(target)
            yield


def _until_end_of_text(ids: list[int]) -> list[int]:
    return ids[: ids.index(END_OF_TEXT) + 1] if END_OF_TEXT in ids else ids


class Chat:
    """The model's own template and tokenizer."""

    def __init__(self, model_folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)

    def encode(self, prompt: str) -> tuple[int, ...]:
        message = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)
