"""Whatever happens to a tenant's adapters, each answer comes from the version that was promised."""

import asyncio
import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.adapter_stand import AdapterClient
from tests.adapters.folders import CONFIG, float32_file, lora_tensors
from tests.platform_stand import BASE, home_like, seed
from tests.stepped_engine import SteppedEngine, tiny_base, tiny_config

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.messages import DropAdapter, Generate
from loraplex_engine.offline import Offline, Prompt
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.openai.served_model import ServedModel

NAMES = ("a", "b")
USERS = tuple(f"user-{i}" for i in range(6))
names, seeds, users = st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(USERS)
homes = itertools.count()
CONTENTS = [  # weights and config
    (float32_file(lora_tensors(rank=r, seed=r)), json.dumps({**CONFIG, "r": r}).encode())
    for r in (4, 1, 7, 12)
]
SHORT, LONG = 3, 150  # tokens of an answer
GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Promise:
    """What a name is said to do."""

    def __init__(self, first: str) -> None:
        self.versions: dict[int, str] = {1: first}
        self.last_number = 1
        self.current = 1
        self.previous: int | None = None
        self.canary: tuple[int, int] | None = None  # number, percent
        self.is_enabled = True
        self.seen: dict[str, str] = {}  # which version a user had under this canary

    def point_at(self, number: int) -> None:
        if number != self.current:
            self.previous, self.current, self.canary = self.current, number, None
            self.seen.clear()


class Running(NamedTuple):
    """A request that began when its name stood for this version."""

    answer: asyncio.Task[httpx2.Response]
    request: Generate
    version: str | None  # None: the base model


class AdapterLife(RuleBasedStateMachine):
    """One tenant's calls against a model of what they promise; another tenant looks on.

    The engine is real, with few slots, and every answer is compared with what the version says alone.
    """

    folder: Path
    template: Settings
    keys: Any
    model: LoadedModel
    alone: dict[str | None, list[int]]  # by version

    @initialize(max_loras=st.integers(1, 3), host_bytes=st.sampled_from([0, 4_000, 2**21]))
    def start(self, max_loras: int, host_bytes: int) -> None:
        self.promises: dict[str, Promise] = {}
        self.running: list[Running] = []
        self.doomed: set[str] = set()  # requests whose version was deleted at once
        self.user = USERS[0]
        self.loop = asyncio.new_event_loop()
        home = self.folder / f"home-{next(homes)}"
        home.mkdir()
        there = home_like(self.template.home, home)
        base = self.folder / "base"
        settings = Settings(home=there.home, engine_wait_s=1.0, model=str(base))
        self.store = AdapterStore(settings.adapter_store)
        config = tiny_config(base, max_loras=max_loras, max_cpu_lora_bytes=host_bytes)
        self.engine = SteppedEngine(config, self.model, self.store)
        model = ServedModel.load(base, BASE)
        # Its clock stands still: nothing is forgotten because time has passed.
        self.app = create_app(settings, self.engine, model, clock=ManualClock())
        transport = httpx2.ASGITransport(self.app)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://test")
        self.acme = AdapterClient(self.http, self.keys.acme)
        self.globex = AdapterClient(self.http, self.keys.globex)

    def call(self, *args: Any, **kwargs: Any) -> httpx2.Response:
        return self.loop.run_until_complete(self.acme.call(*args, **kwargs))

    @rule(name=names, seed=seeds, activate=st.booleans())
    def upload(self, name: str, seed: int, activate: bool) -> None:
        made = self.loop.run_until_complete(
            self.acme.upload(name, *CONTENTS[seed], activate=str(activate).lower())
        ).json()
        version = made["versions"][0]
        promise = self.promises.get(name)
        if promise is None:
            assert version["number"] == 1
            self.promises[name] = Promise(version["sha256"])
            return
        number = version["number"]
        if version["sha256"] not in promise.versions.values():
            promise.last_number += 1
            assert number == promise.last_number
            promise.versions[number] = version["sha256"]
        assert promise.versions[number] == version["sha256"]
        if activate:
            promise.point_at(number)

    @rule(name=names, number=st.integers(1, 4))
    def point(self, name: str, number: int) -> None:
        status = self.call("PATCH", f"/{name}", {"current": number}).status_code
        promise = self.promises.get(name)
        assert status == (200 if promise and number in promise.versions else 404)
        if promise and status == 200:
            promise.point_at(number)

    @rule(name=names, number=st.integers(1, 4), percent=st.integers(0, 100))
    def canary(self, name: str, number: int, percent: int) -> None:
        body = {"canary": {"version": number, "percent": percent}}
        status = self.call("PATCH", f"/{name}", body).status_code
        promise = self.promises.get(name)
        assert status == (200 if promise and number in promise.versions else 404)
        if promise and status == 200:
            promise.canary = (number, percent)
            promise.seen.clear()

    @precondition(lambda self: self.promises)
    @rule(name=names)
    def roll_back(self, name: str) -> None:
        status = self.call("POST", f"/{name}/rollback").status_code
        promise = self.promises.get(name)
        if promise is None:
            assert status == 404
        elif promise.canary is not None:
            assert status == 200
            promise.canary = None
        elif promise.previous is not None:
            assert status == 200
            promise.point_at(promise.previous)
        else:
            assert status == 409

    @precondition(lambda self: self.promises)
    @rule(name=names, enabled=st.booleans())
    def enable(self, name: str, enabled: bool) -> None:
        self.call("PATCH", f"/{name}", {"enabled": enabled})
        if name in self.promises:
            self.promises[name].is_enabled = enabled

    @precondition(lambda self: self.promises)
    @rule(name=names, at_once=st.booleans())
    def delete(self, name: str, at_once: bool) -> None:
        known = self.promises.pop(name, None)
        query = "?drain_s=0" if at_once else ""
        assert self.call("DELETE", f"/{name}{query}").status_code == (200 if known else 404)
        if known and at_once:
            kept = {v for promise in self.promises.values() for v in promise.versions.values()}
            gone = {*known.versions.values()} - kept
            self.doomed |= {
                each.request.request_id
                for each in self.running
                if each.version in gone and each.request.request_id in self.engine.live_ids
            }

    @precondition(lambda self: self.promises)
    @rule(name=names, number=st.integers(1, 4))
    def delete_version(self, name: str, number: int) -> None:
        status = self.call("DELETE", f"/{name}@{number}").status_code
        promise = self.promises.get(name)
        if promise is None or number not in promise.versions:
            assert status == 404
        elif number == promise.current or (promise.canary and number == promise.canary[0]):
            assert status == 409
        else:
            assert status == 200
            del promise.versions[number]
            promise.previous = None if promise.previous == number else promise.previous

    @rule(user=users)
    def somebody_else_asks(self, user: str) -> None:
        self.user = user

    @invariant()
    def answers_are_as_promised(self) -> None:
        for name in NAMES:
            self.check_answer(name, self.user)

    def check_answer(self, name: str, user: str) -> None:
        status, version = self.answer(name, user=user)
        promise = self.promises.get(name)
        if promise is None:
            assert status == 404
        elif not promise.is_enabled:
            assert status == 403
        elif promise.canary is None or promise.canary[1] == 0:
            assert version == promise.versions[promise.current]
        elif promise.canary[1] == 100:
            assert version == promise.versions[promise.canary[0]]
        else:
            known = {promise.versions[n] for n in (promise.current, promise.canary[0])}
            assert version in known
            assert promise.seen.setdefault(user, version) == version

    @rule(name=names, number=st.integers(1, 4))
    def ask_for_a_version(self, name: str, number: int) -> None:
        status, version = self.answer(f"{name}@{number}")
        promise = self.promises.get(name)
        if promise is None or number not in promise.versions:
            assert status == 404
        elif promise.is_enabled:
            assert version == promise.versions[number]
        else:
            assert status == 403

    def answer(self, model: str, **body: object) -> tuple[int, str]:
        """The status, and the version that said what was answered."""
        before = len(self.engine.requests)
        response = self.loop.run_until_complete(
            self.acme.ask(model, **GREEDY | {"max_tokens": SHORT} | body)
        )
        status = response.status_code
        assert len(self.engine.requests) - before == (status == 200), response.text
        if status != 200:
            return status, ""
        request = self.engine.requests[-1]
        self.check_said(response, request)
        return status, request.adapter or ""

    def check_said(self, response: httpx2.Response, request: Generate) -> None:
        said = response.json()["choices"][0]["token_ids"]
        assert said == self.says_alone(request)[: request.sampling.max_tokens]

    def says_alone(self, request: Generate) -> list[int]:
        version = request.adapter
        if version not in self.alone:
            config = tiny_config(self.folder / "base")
            cache = adapter_cache(config, self.model, self.store)
            sampling = replace(request.sampling, max_tokens=LONG)
            prompt = Prompt(request.prompt_ids, adapter=version, sampling=sampling)
            self.alone[version] = Offline(config, self.model, cache).run([prompt])[0].token_ids
            cache.close()
        return self.alone[version]

    @rule(name=st.sampled_from((*NAMES, BASE)), user=users)
    def begin(self, name: str, user: str) -> None:
        """A request that runs while whatever comes next happens."""
        self.loop.run_until_complete(self.until_begun(name, user))

    async def until_begun(self, name: str, user: str) -> None:
        before = len(self.engine.requests)
        self.engine.holding = True
        body = GREEDY | {"max_tokens": LONG, "user": user}
        answer = asyncio.create_task(self.acme.ask(name, **body))
        while len(self.engine.requests) == before and not answer.done():  # noqa: ASYNC110 (known by asking)
            await asyncio.sleep(0)  # the answer itself says when nothing will come
        self.engine.holding = False
        if len(self.engine.requests) > before:
            request = self.engine.requests[-1]
            self.running.append(Running(answer, request, self.promised(name, request)))

    def promised(self, name: str, request: Generate) -> str | None:
        """What the name stands for as it begins; within a canary, what the engine was asked for."""
        promise = self.promises.get(name)
        if promise is None:
            return None
        if promise.canary is None:
            return promise.versions[promise.current]
        assert request.adapter in {
            promise.versions[n] for n in (promise.current, promise.canary[0])
        }
        return request.adapter

    @precondition(lambda self: self.running)
    @rule()
    def end(self) -> None:
        """What ran has ended on the version that it began with."""
        self.engine.release()
        for running in self.running:
            response = self.loop.run_until_complete(running.answer)
            assert running.version == running.request.adapter
            if running.request.request_id in self.doomed:
                assert response.status_code == 404
            else:
                self.check_said(response, running.request)
        self.running.clear()

    @precondition(lambda self: self.running)
    @rule()
    def hang_up(self) -> None:
        gone = self.running.pop()
        gone.answer.cancel()
        self.loop.run_until_complete(asyncio.wait([gone.answer]))
        assert gone.request.request_id not in self.engine.live_ids

    @precondition(lambda self: self.promises)
    @rule(name=names)
    def load(self, name: str) -> None:
        status = self.call("POST", f"/{name}/preload").status_code
        assert status == (202 if name in self.promises else 404)

    @precondition(lambda self: self.promises)
    @rule(name=names, number=st.integers(1, 4))
    def evict(self, name: str, number: int) -> None:
        """From every tier, as when its place is needed; it is read again when somebody asks."""
        promise = self.promises.get(name)
        if promise is not None and number in promise.versions:
            self.engine.core.submit(DropAdapter(promise.versions[number]))

    @invariant()
    def nothing_of_it_is_anothers(self) -> None:
        response = self.loop.run_until_complete(self.globex.call("GET"))
        assert [each["id"] for each in response.json()["data"]] == ["support"]

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        self.engine.cache.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "http"):
            return
        self.end()

        async def close() -> None:
            await self.app.state.inference.tasks.drain()
            await self.http.aclose()
            await self.app.state.database.close()
            await self.engine.close()

        self.loop.run_until_complete(close())
        self.loop.close()


@pytest.mark.parametrize(
    ("num_lives", "num_steps"), [(5, 12), pytest.param(20, 25, marks=pytest.mark.slow)]
)
def test_each_answer_comes_from_the_version_that_was_promised(
    num_lives: int, num_steps: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "seeded").mkdir()
        upgrade(f"sqlite:///{folder / 'seeded' / 'loraplex.sqlite3'}")
        AdapterLife.folder = folder
        AdapterLife.template = Settings(home=folder / "seeded")
        AdapterLife.keys = asyncio.run(seed(AdapterLife.template))
        AdapterLife.model = load_model(tiny_config(tiny_base(folder / "base")))
        AdapterLife.alone = {}
        machine = AdapterLife.TestCase
        machine.settings = settings(
            max_examples=num_lives,
            stateful_step_count=num_steps,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate,),  # a failing life is short as it is
            suppress_health_check=list(HealthCheck),
        )
        machine("runTest").runTest()
