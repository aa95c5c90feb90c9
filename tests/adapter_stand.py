"""What tests of `/v1/adapters` stand on: a base model to judge against, and a client of the API."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from tests.adapters.folders import BASE, CONFIG, float32_file, lora_tensors, zeros_file

CONFIG_BYTES = json.dumps(CONFIG).encode()


def base_folder(folder: Path) -> Path:
    """A base model's folder, as far as judging adapters needs it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    shapes = {f"{name}.weight": shape.weight_shape for name, shape in BASE.modules.items()}
    (folder / "model.safetensors").write_bytes(zeros_file(shapes))
    return folder


def weights_of(seed: int = 0) -> bytes:
    """The weights of an adapter; another seed is another version."""
    return float32_file(lora_tensors(seed=seed))


def zip_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tar_of(files: Mapping[str, bytes], mode: str = "w:gz", **facts: Any) -> bytes:
    """`facts` are set on every entry, its type for example."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for fact, value in facts.items():
                setattr(entry, fact, value)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@dataclass(frozen=True, slots=True)
class AdapterClient:
    """Calls as one tenant's key."""

    http: httpx2.AsyncClient
    key: str

    async def call(
        self, method: str, path: str = "", body: object = None, **headers: str
    ) -> httpx2.Response:
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(
            method, f"/v1/adapters{path}", json=body, headers=self._headers() | renamed
        )

    async def upload(
        self,
        name: str,
        weights: bytes | None = None,
        config: bytes = CONFIG_BYTES,
        *,
        archive: bytes | None = None,
        idempotency_key: str | None = None,
        **fields: str,
    ) -> httpx2.Response:
        parts: dict[str, Any] = {"config": ("c", config), "weights": ("w", weights or weights_of())}
        if archive is not None:
            parts = {"archive": ("a.zip", archive)}
        headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
        return await self.http.post(
            "/v1/adapters",
            data={"name": name, **fields},
            files=parts,
            headers=self._headers() | headers,
        )

    async def ask(self, model: str, **parameters: object) -> httpx2.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        return await self.http.post(
            "/v1/chat/completions", json=body | parameters, headers=self._headers()
        )

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


def code_of(response: httpx2.Response) -> tuple[int, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["code"]


def tensors_spoiled() -> bytes:
    tensors = lora_tensors()
    first = next(iter(tensors))
    tensors[first] = np.full_like(tensors[first], np.nan)
    return float32_file(tensors)
