"""Every documented route against generated requests: it keeps its document, whoever asks."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, AuthContext, BaseSchema, Case, GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.admin_stand import AdminStand, admin_stand
from tests.platform_stand import Seeded, home_like, letter_engine, listening

from loraplex_platform.app import create_app
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.rest.route import PREFIX

pytestmark = pytest.mark.slow
CALLERS = {"owner": 10, "globex": 3, "": 1}  # examples for each route, and as many wrong ones

EXCLUDED = [
    positive_data_acceptance,  # what a schema cannot say (a moment that is past) is a 400
]


@dataclass(frozen=True, slots=True)
class Running:
    base_url: str
    stand: AdminStand
    document: dict[str, object]


@pytest.fixture(scope="module")
def running(
    seeded: tuple[Path, Seeded], model: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server in a thread of its own: the generated requests are synchronous."""
    home = tmp_path_factory.mktemp("schemathesis")
    app = create_app(replace(home_like(seeded[0], home), engine_wait_s=1.0), letter_engine(), model)
    started, ended, found = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with admin_stand(app) as stand, listening(app) as base_url:
            found.append(Running(base_url, stand, app.openapi()))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(20)
    yield found[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("mode", GenerationMode)
def test_generated_requests_find_no_undocumented_answer(
    running: Running, caller: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(running.document)
    schema.config.generation.update(with_security_parameters=False)  # the caller's key is sent
    if caller:
        authenticate(schema, running.stand.keys[caller])
    operations = [result.ok() for result in schema.get_all_operations()]
    of_admin = [o for o in operations if o.path.startswith(PREFIX)]
    assert len(of_admin) > 40
    for operation in of_admin:
        if mode is GenerationMode.NEGATIVE and not takes_input(operation):
            continue  # nothing of it can be wrong
        _probe(running, operation, caller, mode)


def takes_input(operation: APIOperation) -> bool:
    return bool(list(operation.iter_parameters()) or operation.body)


def authenticate(schema: BaseSchema, key: str) -> None:
    """As schemathesis knows credentials: it tries without them too."""

    @schema.auth()
    class Bearer:
        def get(self, _: Case, __: AuthContext) -> str:
            return key

        def set(self, case: Case, data: str, _: AuthContext) -> None:
            case.headers["Authorization"] = f"Bearer {data}"


def _probe(running: Running, operation: APIOperation, caller: str, mode: GenerationMode) -> None:
    is_closing = operation.method == "delete" and operation.path.endswith("/{tenant_id}")

    @settings(
        max_examples=CALLERS[caller],
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def probe(case: Case) -> None:
        if mode is GenerationMode.POSITIVE and not is_closing:
            known = {"tenant_id": running.stand.acme, "project_id": running.stand.project}
            case.path_parameters |= {k: v for k, v in known.items() if k in case.path_parameters}
        case.call_and_validate(base_url=running.base_url, excluded_checks=EXCLUDED)

    probe()
