"""The time to a first token tells a tenant what itself has asked before, and nothing of others."""

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import NormalDist

import pytest
from tests.engine.tiny import make_model
from tests.until import until

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, build_engine, load_model
from loraplex_engine.client import RemoteEngine
from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import Finished, Generate, SamplingParams
from loraplex_engine.offline import NoText
from loraplex_engine.server import EngineServer

PAIRS = 200
PROMPT_TOKENS = 256  # four steps when nothing is cached, one when the prompt is
FIRST_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def mann_whitney_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided, by the normal approximation with ties and continuity corrected."""
    n, m = len(one), len(other)
    ranks, below = {}, 0
    ties = sorted(Counter([*one, *other]).items())
    for value, times in ties:
        ranks[value] = below + (times + 1) / 2
        below += times
    wins = sum(ranks[value] for value in one) - n * (n + 1) / 2
    tied = sum(times**3 - times for _, times in ties) / ((n + m) * (n + m - 1))
    deviation = math.sqrt(n * m / 12 * (n + m + 1 - tied))
    if deviation == 0:
        return 1.0
    z = max(0.0, abs(wins - n * m / 2) - 0.5) / deviation
    return 2 * NormalDist().cdf(-z)


def test_the_statistic_is_that_of_the_textbook() -> None:
    """By hand: U = 0 of 9 and z = 4 / sqrt(5.25); U = 2.5 of 16 and, with ties, z = 5 / sqrt(11.143)."""
    assert mann_whitney_p([1, 2, 3], [4, 5, 6]) == pytest.approx(0.08086, abs=1e-5)
    assert mann_whitney_p([1, 2, 2, 3], [2, 3, 4, 4]) == pytest.approx(0.13417, abs=1e-5)
    assert mann_whitney_p([1.0] * 9, [1.0] * 9) == 1.0


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[EngineConfig, LoadedModel]:
    folder = tmp_path_factory.mktemp("timing")
    make_model(folder, max_position_embeddings=512)
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_num_batched_tokens=64,
        cpu_kv_cache_bytes=2**24,
        threads=1,
    )
    return config, load_model(config)


@pytest.fixture
def address(
    loaded: tuple[EngineConfig, LoadedModel], tmp_path: Path, patience: None
) -> Iterator[str]:
    """Of a served engine that has computed nothing."""
    config, model = loaded
    cache = adapter_cache(config, model, AdapterStore(tmp_path / "store"))
    server = EngineServer(build_engine(config, model, cache, NoText()), f"ipc://{tmp_path}/e")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"ipc://{tmp_path}/e"
    server.drain(0.0)
    thread.join(60)
    assert not thread.is_alive()
    cache.close()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[RemoteEngine]:
    client = RemoteEngine(address)
    await client.start()
    try:
        await until(lambda: client.stats is not None)
        yield client
    finally:
        await client.close()


class Tenants:
    """A client that asks for many, one request after the other, each for one token."""

    def __init__(self, client: RemoteEngine, seed: int) -> None:
        self._client = client
        self._numbers = count()
        self._draw = random.Random(seed)

    def prompt(self) -> tuple[int, ...]:
        """One that nobody has ever asked."""
        return tuple(self._draw.randrange(199) for _ in range(PROMPT_TOKENS))

    async def ask(self, tenant: str, prompt: tuple[int, ...]) -> Finished:
        name = f"{id(self)}-{next(self._numbers)}"
        asked = Generate(name, prompt, FIRST_TOKEN, tenant, "p", f"scope of {tenant}")
        async with asyncio.timeout(60):
            *_, end = [event async for event in self._client.generate(asked)]
        assert isinstance(end, Finished)
        return end

    async def pairs(self, repeats: str) -> tuple[list[float], list[float]]:
        """TTFT of what acme has asked just before, and of what nobody has, in random order."""
        known: list[float] = []
        unknown: list[float] = []
        for _ in range(PAIRS):
            said = self.prompt()
            await self.ask("acme", said)
            turns = [(said, known), (self.prompt(), unknown)]
            self._draw.shuffle(turns)
            for prompt, times in turns:
                end = await self.ask(repeats, prompt)
                is_own = prompt is said and repeats == "acme"
                assert end.cached_tokens == (PROMPT_TOKENS - 16 if is_own else 0)
                assert end.ttft_s is not None
                times.append(end.ttft_s)
        return known, unknown


@pytest.mark.slow
async def test_a_foreign_prompt_takes_as_long_as_a_random_one(address: str) -> None:
    """One honest run in a hundred has p < 0.01, so a second one may speak for the first."""
    async with connected(address) as client:
        first = mann_whitney_p(*await Tenants(client, seed=1).pairs("globex"))
        assert first > 0.01 or mann_whitney_p(*await Tenants(client, seed=2).pairs("globex")) > 0.01


@pytest.mark.slow
async def test_ones_own_prompt_is_seen_to_be_cached(address: str) -> None:
    async with connected(address) as client:
        known, unknown = await Tenants(client, seed=3).pairs("acme")
    assert mann_whitney_p(known, unknown) < 1e-6
    assert sorted(known)[PAIRS // 2] < sorted(unknown)[PAIRS // 2]
