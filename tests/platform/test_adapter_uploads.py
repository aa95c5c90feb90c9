"""Uploads to `/v1/adapters`: the same once, in any archive, judged, and within the quota."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.adapter_stand import (
    CONFIG_BYTES,
    AdapterClient,
    base_folder,
    code_of,
    tar_of,
    weights_of,
    zip_of,
)

from loraplex_adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from loraplex_platform.admission.service import LimitService, Subject


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    return make_app(model=str(base_folder(tmp_path / "base")))


async def test_the_same_content_is_the_same_version(acme: AdapterClient) -> None:
    await acme.upload("bot")
    again = await acme.upload("bot", activate="true")
    assert (again.status_code, again.json()["versions"][0]["number"]) == (200, 1)


async def test_a_repeated_upload_happens_once(acme: AdapterClient) -> None:
    first = await acme.upload("bot", idempotency_key="k1")
    again = await acme.upload("bot", idempotency_key="k1")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    other = await acme.upload("bot", weights_of(1), idempotency_key="k1")
    assert code_of(other) == (422, "idempotency_key_reused")


PACKED = {
    f"lora/{CONFIG_NAME}": CONFIG_BYTES,
    f"lora/{WEIGHTS_NAME}": weights_of(),
    "lora/README.md": b"hello",
}


@pytest.mark.parametrize(
    "archive",
    [zip_of(PACKED), *(tar_of(PACKED, mode) for mode in ("w:", "w:gz", "w:bz2", "w:xz"))],
)
async def test_an_archive_is_as_good_as_two_files(acme: AdapterClient, archive: bytes) -> None:
    made = await acme.upload("bot", archive=archive)
    plain = await acme.upload("other")
    assert made.json()["versions"][0]["sha256"] == plain.json()["versions"][0]["sha256"]


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (b"no zip at all", "bad_archive"),
        (zip_of({f"../{CONFIG_NAME}": b"{}"}), "unsafe_path"),
        (zip_of({f"/etc/{CONFIG_NAME}": b"{}"}), "unsafe_path"),
        (zip_of({CONFIG_NAME: CONFIG_BYTES}), "missing_file"),
        (zip_of({CONFIG_NAME: CONFIG_BYTES, "adapter_model.bin": b"x"}), "pickle_refused"),
        (zip_of({f"{i}/{CONFIG_NAME}": b"{}" for i in range(2)}), "bad_archive"),
        (zip_of({str(i): b"" for i in range(1001)}), "bad_archive"),
        (zip_of({CONFIG_NAME: b" " * (2 << 20), WEIGHTS_NAME: b""}), "adapter_too_large"),
        (zip_of({CONFIG_NAME: CONFIG_BYTES, WEIGHTS_NAME: weights_of()})[:-40], "bad_archive"),
        (tar_of({f"../{CONFIG_NAME}": b"{}"}), "unsafe_path"),
        (tar_of({f"/etc/{CONFIG_NAME}": b"{}"}), "unsafe_path"),
        (tar_of({CONFIG_NAME: b""}, type=tarfile.SYMTYPE, linkname="/etc/hostname"), "unsafe_path"),
        (tar_of({CONFIG_NAME: b""}, type=tarfile.LNKTYPE, linkname=WEIGHTS_NAME), "unsafe_path"),
        (tar_of({WEIGHTS_NAME: b""}, type=tarfile.FIFOTYPE), "unsafe_path"),
        (tar_of({CONFIG_NAME: CONFIG_BYTES}), "missing_file"),
        (tar_of({CONFIG_NAME: CONFIG_BYTES, "adapter_model.bin": b"x"}), "pickle_refused"),
        (tar_of({f"{i}/{CONFIG_NAME}": b"{}" for i in range(2)}), "bad_archive"),
        (tar_of({str(i): b"" for i in range(1001)}), "bad_archive"),
        (tar_of({CONFIG_NAME: b" " * (2 << 20), WEIGHTS_NAME: b""}), "adapter_too_large"),
        (tar_of({CONFIG_NAME: CONFIG_BYTES}, pax_headers={"x": "y" * (5 << 20)}), "bad_archive"),
        (tar_of(PACKED)[:-40], "bad_archive"),
    ],
)
async def test_a_bad_archive_is_refused(acme: AdapterClient, archive: bytes, code: str) -> None:
    assert code_of(await acme.upload("bot", archive=archive)) == (400, code)


async def test_bytes_over_the_quota_are_refused_and_nothing_is_named(
    acme: AdapterClient, app: FastAPI
) -> None:
    tenant = await app.state.tenants.get("acme")
    limits: LimitService = app.state.limits
    subject = Subject(tenant.id, "tenant", tenant.id)
    await limits.set(subject, "adapter_bytes", 1500, strict=False)
    assert (await acme.upload("a")).status_code == 201
    assert code_of(await acme.upload("b", weights_of(1))) == (429, "insufficient_quota")
    assert (await acme.call("GET", "/b")).status_code == 404
    assert (await acme.call("DELETE", "/a")).is_success
    assert (await acme.upload("b", weights_of(1))).status_code == 201
