"""What the OpenAPI document says of forms with files is what their routes take."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from jsonschema_rs import Draft202012Validator
from tests.adapter_stand import CONFIG_BYTES, base_folder, weights_of, zip_of
from tests.platform.test_tenant_matrix import ROUTES
from tests.platform_stand import Seeded

from loraplex_adapters.folder import CONFIG_NAME, WEIGHTS_NAME

LATER = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
WEIGHTS = weights_of()
PAIR = {"config": CONFIG_BYTES, "weights": WEIGHTS}
ARCHIVE = {"archive": zip_of({CONFIG_NAME: CONFIG_BYTES, WEIGHTS_NAME: WEIGHTS})}
TEXT = {"file": b"text"}
Form = Mapping[str, str | bytes]  # bytes are a file
TAKEN: dict[str, tuple[str, Form]] = {
    "a file": ("/v1/files", TEXT | {"purpose": "user_data"}),
    "a file that expires": ("/v1/files", TEXT | {"purpose": "evals"} | LATER),
    "two files of an adapter": ("/v1/adapters", PAIR | {"name": "a"}),
    "an adapter's archive": ("/v1/adapters", ARCHIVE | {"name": "a", "activate": "true"}),
}
REFUSED: dict[str, tuple[str, Form]] = {
    "no file": ("/v1/files", {"purpose": "user_data"}),
    "no purpose": ("/v1/files", TEXT),
    "another purpose": ("/v1/files", TEXT | {"purpose": "mischief"}),
    "a purpose with fields": ("/v1/files", TEXT | {"purpose[a]": "b"}),
    "half an expiry": ("/v1/files", TEXT | {"purpose": "evals", "expires_after[seconds]": "3600"}),
    "too early": (
        "/v1/files",
        TEXT | {"purpose": "evals"} | LATER | {"expires_after[seconds]": "60"},
    ),
    "weights alone": ("/v1/adapters", {"weights": WEIGHTS, "name": "a"}),
    "archive and config": ("/v1/adapters", ARCHIVE | {"config": CONFIG_BYTES, "name": "a"}),
    "archive and tokenizer": ("/v1/adapters", ARCHIVE | {"tokenizer": b"{}", "name": "a"}),
    "no name": ("/v1/adapters", PAIR),
    "an unknown field": ("/v1/adapters", PAIR | {"name": "a", "colour": "red"}),
    "an unknown file": ("/v1/adapters", PAIR | {"name": "a", "readme": b"hello"}),
    "no digest": ("/v1/adapters", PAIR | {"name": "a", "sha256": "00"}),
}


def is_documented(path: str, form: Form) -> bool:
    body = ROUTES["POST", path]["requestBody"]
    schema = body["content"]["multipart/form-data"]["schema"]
    read = {name: _as_read(schema, name, value) for name, value in form.items()}
    assert body["required"]
    return Draft202012Validator(schema).is_valid(read)


def _as_read(schema: Mapping[str, Any], name: str, value: str | bytes) -> object:
    """A form has texts alone; the document says which of them are numbers and flags."""
    kind = schema["properties"].get(name, {}).get("type")
    reads: dict[str, Callable[[Any], object]] = {"integer": int, "boolean": "true".__eq__}
    return "" if isinstance(value, bytes) else reads.get(kind, str)(value)


async def answer_to(app: FastAPI, keys: Seeded, path: str, form: Form) -> httpx2.Response:
    transport = httpx2.ASGITransport(app)
    auth = {"authorization": f"Bearer {keys.acme}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        files = {name: (f"a.{name}", value) for name, value in form.items() if type(value) is bytes}
        fields = {name: (None, value) for name, value in form.items() if type(value) is str}
        return await http.post(path, files=files | fields, headers=auth)


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    return make_app(model=str(base_folder(tmp_path / "base")))


@pytest.mark.parametrize(("path", "form"), TAKEN.values(), ids=TAKEN)
async def test_a_form_as_documented_is_taken(
    app: FastAPI, keys: Seeded, path: str, form: Form
) -> None:
    assert is_documented(path, form)
    answer = await answer_to(app, keys, path, form)
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.parametrize(("path", "form"), REFUSED.values(), ids=REFUSED)
async def test_another_form_is_refused(app: FastAPI, keys: Seeded, path: str, form: Form) -> None:
    assert not is_documented(path, form)
    answer = await answer_to(app, keys, path, form)
    assert answer.status_code == 400, answer.text


async def test_a_field_that_is_also_a_group_is_refused(app: FastAPI, keys: Seeded) -> None:
    form = TEXT | {"purpose": "user_data", "purpose[a]": "b"}
    answer = await answer_to(app, keys, "/v1/files", form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")
