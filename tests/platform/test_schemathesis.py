"""Every documented route against generated requests: it keeps its document, whoever asks.

`make contract` asks each route 50 times as each caller, which takes minutes; without it a share of that.
"""

import asyncio
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, AuthContext, BaseSchema, Case, GenerationMode
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.adapter_stand import base_folder
from tests.admin_stand import AdminStand, admin_stand
from tests.platform import test_admin_matrix, test_tenant_matrix
from tests.platform.batch_stand import jsonl, line
from tests.platform_stand import NO_TLS, Seeded, home_like, letter_engine, listening

from loraplex_platform.app import create_app
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.rest.route import PREFIX

pytestmark = pytest.mark.slow
V1 = "/v1"
ALL = os.environ.get("LORAPLEX_TEST_EXAMPLES")
ADMINS = {"owner": 10, "globex": 3, "": 1}  # examples for each route, and as many wrong ones
TENANTS = {"acme's": 10, "globex's": 3, "": 1}


class Unsaid(NamedTuple):
    """What a schema cannot tell of a route, and where a refusal for it points: a field, or a code."""

    why: str
    where: str  # a pattern


WINDOW = Unsaid("a bucket's width bounds their number, a start the end", "limit|end_time|page")
# Everything else that a schema allows is accepted; of these routes, what the matrices ask.
SAYS_NOT_ALL = {
    f"GET {V1}/organization/usage/completions": WINDOW,
    f"GET {V1}/organization/costs": WINDOW,
    f"GET {PREFIX}/usage/completions": WINDOW,
    f"GET {PREFIX}/usage/costs": WINDOW,
    f"POST {V1}/files": Unsaid("the fields of an expiry bind each other", "expires_after.*"),
    f"POST {V1}/adapters": Unsaid("the files have to be an adapter", ".*"),
    f"POST {V1}/prefixes": Unsaid("a prefix has some tokens at the least", "messages|prompt"),
    f"POST {V1}/completions": Unsaid("token ids are those of the model", "prompt.*"),
    f"POST {PREFIX}/admin_keys": Unsaid(
        "a role of a tenant has one, which its own admin need not name", "role|tenant_id"
    ),
    f"POST {PREFIX}/price_books": Unsaid("prices bind each other", "content|effective_from"),
    f"PUT {PREFIX}/tenants/{{tenant_id}}/billing": Unsaid(
        "a share in percent has two decimals", "tax_percent.*"
    ),
    f"POST {PREFIX}/tenants/{{tenant_id}}/invoices": Unsaid("the month has to be over", "month"),
}
# A file is bytes, which schemathesis itself has generated and yet holds for no text, so for wrong data.
WITH_FILES = {f"POST {V1}/files", f"POST {V1}/adapters"}
# Nothing is wrong with the data: a stale revision, an Idempotency-Key that was used.
REFUSED_ELSE = ("412", "422")
FORMS = {  # that patterns cannot tell
    "chat-template": st.from_regex(r"[a-z <>]{1,20}(\{\{ messages \}\})?", fullmatch=True),
    "date-time": st.datetimes(datetime(2100, 1, 1), datetime(8999, 1, 1)).map(
        lambda m: f"{m.isoformat()}Z"
    ),
    "https-address": st.from_regex(r"https://[a-z]{1,9}\.example(/[a-z]{0,9})?", fullmatch=True),
    "ip-network": st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(
        lambda pair: str(ip_network(pair, strict=False))
    ),
    "time-zone": st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kathmandu")),
}
for name, texts in FORMS.items():
    schemathesis.openapi.format(name, texts)


@dataclass(frozen=True, slots=True)
class Running:
    base_url: str
    keys: Mapping[str, str]
    known: Mapping[str, Mapping[str, str]]  # what acme has, by API and the path's parameter
    named: Mapping[str, str]  # what bodies may name
    document: dict[str, object]


@pytest.fixture(scope="module")
def running(
    seeded: tuple[Path, Seeded], model: ServedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server in a thread of its own: the generated requests are synchronous."""
    home = tmp_path_factory.mktemp("schemathesis")
    stated = home_like(seeded[0], home)
    base = str(base_folder(home / "base"))
    app = create_app(replace(stated, engine_wait_s=1.0, model=base), letter_engine(), model)
    started, ended, found = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with admin_stand(app) as stand, listening(app) as base_url:
            keys = {**stand.keys, "acme's": seeded[1].acme, "globex's": seeded[1].globex, "": ""}
            found.append((base_url, keys, *await administered(stand)))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(60)
    base_url, keys, own, named = found[0]
    known = {PREFIX: own, V1: things_of(base_url, keys["acme's"])}
    yield Running(base_url, keys, known, named, app.openapi())
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


async def administered(stand: AdminStand) -> tuple[dict[str, str], dict[str, str]]:
    """A tenant that may be suspended and archived: what paths ask for, and what bodies name."""
    plan = await stand.made("/plans", {"name": "known"})
    tenant = await stand.made("/tenants", {"name": "known"})
    project = await stand.made(f"/tenants/{tenant['id']}/projects", {"name": "known"})
    accounts = f"/tenants/{tenant['id']}/projects/{project['id']}/service_accounts"
    account = await stand.made(accounts, {"name": "known"})
    paths = {
        "tenant_id": tenant["id"],
        "project_id": project["id"],
        "dimension": "tokens_per_day",  # others can be counted less far
        "month": "2026-06",
        "kind": "events",  # others are not written in every format
    }
    named = {"tenant_id": tenant["id"], "plan_id": plan["id"]}
    return paths, named | {"service_account_id": account["id"]}


def things_of(base_url: str, key: str) -> dict[str, str]:
    """What a tenant's routes can be asked for."""
    auth = {"authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=base_url, headers=auth, verify=NO_TLS, timeout=60) as http:
        files = {"file": ("in.jsonl", jsonl(line("a"))), "purpose": (None, "batch")}
        file_id = http.post("/v1/files", files=files).json()["id"]
        order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions"}
        batch = http.post("/v1/batches", json=order | {"completion_window": "24h"})
    return {
        "file_id": file_id,
        "batch_id": batch.json()["id"],
        "name": "support",
        "model_id": "acme-only",
        "year": "2026",
        "month": "06",
        "kind": "events",
    }


@pytest.mark.parametrize("caller", ADMINS)
@pytest.mark.parametrize("mode", GenerationMode)
def test_admin_api_gives_no_undocumented_answer(
    running: Running, caller: str, mode: GenerationMode
) -> None:
    num_asked = ask(running, PREFIX, caller, mode, ADMINS[caller])
    assert num_asked > (40 if mode is GenerationMode.POSITIVE else 20)


@pytest.mark.parametrize("caller", TENANTS)
@pytest.mark.parametrize("mode", GenerationMode)
def test_tenants_api_gives_no_undocumented_answer(
    running: Running, caller: str, mode: GenerationMode
) -> None:
    num_asked = ask(running, V1, caller, mode, TENANTS[caller])
    assert num_asked > (30 if mode is GenerationMode.POSITIVE else 10)
    auth = {"authorization": f"Bearer {running.keys[caller]}"} if caller else {}
    answer = httpx2.get(f"{running.base_url}/v1/models", headers=auth, verify=NO_TLS, timeout=60)
    assert answer.status_code == (200 if caller else 401), "nobody was asked as this caller"


def ask(running: Running, prefix: str, caller: str, mode: GenerationMode, examples: int) -> int:
    """Every route below a prefix, as somebody, with what is right or wrong; how many there are."""
    schema = schemathesis.openapi.from_dict(running.document)
    schema.config.generation.update(with_security_parameters=False)  # the caller's key is sent
    acceptance = schema.config.checks.positive_data_acceptance
    acceptance.expected_statuses = [*acceptance.expected_statuses, *REFUSED_ELSE]
    if caller:
        authenticate(schema, running.keys[caller])
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 100
    asked = [o for o in operations if o.path.startswith(prefix)]
    if mode is GenerationMode.NEGATIVE:
        asked = [o for o in asked if takes_input(o)]
    return sum(_probe(running, operation, mode, int(ALL or examples)) for operation in asked)


def test_what_no_schema_tells_is_asked_by_the_matrices() -> None:
    asked = {" ".join(route) for route in test_tenant_matrix.ROUTES}
    asked |= {f"{method} {PREFIX}{path}" for method, path in test_admin_matrix.ROUTES}
    assert asked >= SAYS_NOT_ALL.keys()


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


def _lists_of_text(operation: APIOperation) -> list[str]:
    """Of the query: whatever one of these is given is text once it is in an address, and right."""
    found = operation.definition.raw.get("parameters", ())
    kinds = {each["name"]: each["schema"].get("anyOf", ()) for each in found}
    return [name for name, each in kinds.items() if any(map(_is_list_of_text, each))]


def _is_list_of_text(kind: Mapping[str, Any]) -> bool:
    return kind.get("type") == "array" and kind["items"].get("type") == "string"


def is_unsaid(unsaid: Unsaid, answer: Response) -> bool:
    """Whether it is no refusal of what the schema allows, or one for what it cannot tell."""
    if answer.status_code != 400:
        return answer.status_code not in (405, 406, 413, 415)
    error = answer.json()["error"]
    return re.fullmatch(unsaid.where, error["param"] or error["code"] or "") is not None


def _probe(running: Running, operation: APIOperation, mode: GenerationMode, examples: int) -> bool:
    """False: nothing can be wrong, such as a path that takes every text."""
    is_closing = operation.method == "delete" and operation.path.endswith("/{tenant_id}")
    label = f"{operation.method.upper()} {operation.path}"
    excluded = [positive_data_acceptance] if label in SAYS_NOT_ALL else []
    if label in WITH_FILES and mode is GenerationMode.POSITIVE:
        excluded.append(negative_data_rejection)
    lists = _lists_of_text(operation)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def probe(case: Case) -> None:
        if mode is GenerationMode.NEGATIVE:
            asked = [case.query[name] for name in lists if name in case.query]
            assume(all(isinstance(values, list) for values in asked))
            assume(all(isinstance(text, str) for values in asked for text in values))
        if mode is GenerationMode.POSITIVE and not is_closing:
            known = running.known[V1 if operation.path.startswith(V1) else PREFIX]
            case.path_parameters |= {k: v for k, v in known.items() if k in case.path_parameters}
            if isinstance(case.body, dict):
                names = {k: v for k, v in running.named.items() if case.body.get(k) is not None}
                case.body |= names
        answer = case.call_and_validate(base_url=running.base_url, excluded_checks=excluded)
        if mode is GenerationMode.POSITIVE and label in SAYS_NOT_ALL:
            assert is_unsaid(SAYS_NOT_ALL[label], answer), answer.text
        assert operation.method != "get" or str(answer.status_code) not in REFUSED_ELSE

    try:
        probe()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, label
        return False
    return True
