"""`true` is no number in any body: Python takes it for 1."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Literal

import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from tests.admin_stand import AdminStand, admin_stand
from tests.platform_stand import Seeded

import loraplex_platform
from loraplex_platform.files.schemas import ExpiresAfter
from loraplex_platform.kit.bodies import Body


def all_bodies() -> Iterator[type[Body]]:
    for module in pkgutil.walk_packages(loraplex_platform.__path__, "loraplex_platform."):
        if module.name.rpartition(".")[2] not in ("__main__", "api"):
            importlib.import_module(module.name)
    todo = list(Body.__subclasses__())
    while todo:
        body = todo.pop()
        todo += body.__subclasses__()
        yield body


def faults_of(body: type[Body], **values: object) -> set[tuple[str, str]]:
    try:
        body.model_validate(values)
    except ValidationError as error:
        return {(str(fault["loc"][0]), fault["type"]) for fault in error.errors()}
    return set()


def test_no_body_takes_true_for_a_number() -> None:
    asked = 0
    for body in set(all_bodies()) - {Nested}:
        properties = body.model_json_schema()["properties"]
        for name, schema in properties.items():
            if any(kind in str(schema) for kind in ("'integer'", "'number'")):
                asked += 1
                assert (name, "number_type") in faults_of(body, **{name: True}), (body, name)
    assert asked > 12


class Nested(Body):
    flag: bool | None = None
    either: int | bool = 0
    kind: Literal[1, 2] = 1
    amounts: dict[str, list[float]] | None = None
    expiry: ExpiresAfter | None = None


@pytest.mark.parametrize("value", [{"a": [True]}, {"a": [1.0, False]}])
def test_nor_within_a_list_or_a_mapping(value: object) -> None:
    assert faults_of(Nested, amounts=value) == {("amounts", "number_type")}
    expiry = {"anchor": "created_at", "seconds": True}
    assert faults_of(Nested, expiry=expiry) == {("expiry", "number_type")}


def test_what_may_be_true_may() -> None:
    assert faults_of(Nested, flag=True, either=True, amounts={"a": [1]}) == set()


async def test_a_tenants_retention_is_not_true_days(app: FastAPI, keys: Seeded) -> None:
    async with admin_stand(app) as stand:
        await try_to_keep_for_true_days(stand)


async def try_to_keep_for_true_days(stand: AdminStand) -> None:
    made = await stand.made("/tenants", {"name": "hooli", "retention_days": 30})
    answer = await stand.call("PATCH", f"/tenants/{made['id']}", {"retention_days": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "retention_days")
    assert answer.json()["error"]["code"] == "invalid_type"
