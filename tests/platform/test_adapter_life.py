"""Whatever happens to a tenant's adapters, each answer comes from the version that was promised."""

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.adapter_stand import AdapterClient, base_folder, weights_of
from tests.platform_stand import BASE, home_like, letter_engine, seed, tiny_model

from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.openai.served_model import ServedModel

NAMES = ("a", "b")
USERS = tuple(f"user-{i}" for i in range(6))
names, seeds, users = st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(USERS)
homes = itertools.count()


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


class AdapterLife(RuleBasedStateMachine):
    """One tenant's calls against a model of what they promise; another tenant looks on."""

    folder: Path
    template: Settings
    keys: Any

    def __init__(self) -> None:
        super().__init__()
        self.promises: dict[str, Promise] = {}
        self.user = USERS[0]
        self.loop = asyncio.new_event_loop()
        home = self.folder / f"home-{next(homes)}"
        home.mkdir()
        there = home_like(self.template.home, home)
        self.engine = letter_engine()
        model = ServedModel.load(self.folder / "tiny", BASE)
        self.app = create_app(
            Settings(home=there.home, engine_wait_s=1.0, model=str(self.folder / "base")),
            self.engine,
            model,
            clock=ManualClock(),  # stands still: nothing is forgotten because time has passed
        )
        transport = httpx2.ASGITransport(self.app)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://test")
        self.acme = AdapterClient(self.http, self.keys.acme)
        self.globex = AdapterClient(self.http, self.keys.globex)

    def call(self, *args: Any, **kwargs: Any) -> httpx2.Response:
        return self.loop.run_until_complete(self.acme.call(*args, **kwargs))

    @rule(name=names, seed=seeds, activate=st.booleans())
    def upload(self, name: str, seed: int, activate: bool) -> None:
        made = self.loop.run_until_complete(
            self.acme.upload(name, weights_of(seed), activate=str(activate).lower())
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
    @rule(name=names)
    def delete(self, name: str) -> None:
        known = self.promises.pop(name, None)
        assert self.call("DELETE", f"/{name}").status_code == (200 if known else 404)

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
        """The status, and the version of the last request that the engine got."""
        before = len(self.engine.requests)
        status = self.loop.run_until_complete(self.acme.ask(model, **body)).status_code
        assert len(self.engine.requests) - before == (status == 200)
        return status, self.engine.requests[-1].adapter or "" if status == 200 else ""

    @invariant()
    def nothing_of_it_is_anothers(self) -> None:
        response = self.loop.run_until_complete(self.globex.call("GET"))
        assert [each["id"] for each in response.json()["data"]] == ["support"]

    def teardown(self) -> None:
        async def close() -> None:
            await self.app.state.inference.tasks.drain()
            await self.http.aclose()
            await self.app.state.database.close()

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
        base_folder(folder / "base")
        tiny_model(folder / "tiny")
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
