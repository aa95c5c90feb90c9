"""A real engine behind the API in a test's own loop: it computes when somebody waits for its answer.

Sequences that are asked for while it is `holding` wait for nobody: they advance with the others' steps,
and to their end once they are released. So a test decides what happens while they run.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import torch
from tests.adapters.folders import HIDDEN, INTERMEDIATE, NUM_LAYERS
from tests.platform_stand import tiny_model
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, build_engine
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    Command,
    EngineStats,
    Explanation,
    Finished,
    Generate,
    Hello,
    TokenEvent,
)
from loraplex_engine.text import ModelText


def tiny_base(folder: Path, num_rows: int = 259) -> Path:
    """The base model that `tests.adapters.folders` makes adapters for, with weights, over bytes.

    Rows of its vocabulary beyond 259 have no text.
    """
    tiny_model(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=num_rows,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def tiny_config(folder: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(
        model=folder,
        dtype="bfloat16",
        **{
            "max_num_seqs": 32,
            "max_num_batched_tokens": 256,
            "cpu_kv_cache_bytes": 2**22,
            "max_loras": 4,
            "max_lora_rank": 16,
            "max_cpu_lora_bytes": 2**21,
            "threads": 1,
            **settings,
        },
    )


class SteppedEngine:
    """An `EngineClient` of an engine in the same thread."""

    def __init__(self, config: EngineConfig, model: LoadedModel, store: AdapterStore) -> None:
        self.cache: AdapterCache = adapter_cache(config, model, store)
        tokenizer = Tokenizer.from_file(str(config.model / "tokenizer.json"))
        self.core: Engine = build_engine(config, model, self.cache, ModelText(tokenizer))
        self.requests: list[Generate] = []
        self.holding = False
        self._held: set[str] = set()
        self._queues: dict[str, asyncio.Queue[TokenEvent | Finished]] = {}

    async def start(self) -> None:
        """It is there."""

    async def close(self) -> None:
        self.cache.check_integrity()
        self.cache.close()

    @property
    def hello(self) -> Hello:
        return self.core.hello

    @property
    def stats(self) -> EngineStats:
        return self.core.stats()

    @property
    def live_ids(self) -> set[str]:
        return {seq.request_id for seq in (*self.core.policy.running, *self.core.policy.waiting)}

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        events = self._queues[request.request_id] = asyncio.Queue()
        if self.holding:
            self._held.add(request.request_id)
        self.requests.append(request)
        self.core.submit(request)
        event: TokenEvent | Finished | None = None
        try:
            while not isinstance(event, Finished):
                event = await self._next(request.request_id, events)
                yield event
        finally:
            del self._queues[request.request_id]
            self._held.discard(request.request_id)
            if not isinstance(event, Finished):
                self.core.submit(Abort(request.request_id))

    async def _next(
        self, request_id: str, events: asyncio.Queue[TokenEvent | Finished]
    ) -> TokenEvent | Finished:
        while events.empty() and request_id not in self._held:
            self.step()
            await asyncio.sleep(0.001 if self.core.is_stalled else 0)
        return await events.get()

    def step(self) -> None:
        for event in self.core.step():
            if isinstance(event, TokenEvent | Finished) and event.request_id in self._queues:
                self._queues[event.request_id].put_nowait(event)

    def release(self) -> None:
        """Compute what was held to its end."""
        self._held.clear()
        while self.core.has_work:
            self.step()
            if self.core.is_stalled:
                time.sleep(0.001)

    async def send(self, command: Command) -> None:
        self.core.submit(command)

    async def explain(self, request_id: str) -> Explanation:
        raise NotImplementedError("no test of it asks")

    async def failures(self) -> AsyncIterator[AdapterFailed]:
        raise NotImplementedError("no test of it asks")
        yield
