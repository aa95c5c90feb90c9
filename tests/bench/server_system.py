"""Loraplex as its users meet it: `loraplex serve`, an API key, streams over HTTP."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
from workload import Request, Timeline

TENANT = "bench"
START_TIMEOUT_S = 120.0


class LoraplexServer:
    """All requests are sent at once, each as a stream."""

    name = "loraplex"

    def __init__(self, model_folder: Path, adapters: Path) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="loraplex-bench-")
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            **os.environ,
            "LORAPLEX_HOME": self.home.name,
            "LORAPLEX_PORT": str(port),
            "LORAPLEX_DTYPE": "bfloat16",
            "LORAPLEX_MAX_LORAS": "16",
        }
        self.log = (Path(self.home.name) / "bench-serve.log").open("w+")
        self.process = subprocess.Popen(
            _loraplex("serve", "--model", str(model_folder)),
            env=self.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        self.ready_s = self._wait_until_ready()  # since the command was given
        self.key = self.add_tenant(TENANT)
        for folder in sorted(adapters.iterdir()):
            self._run("adapters", "add", "--tenant", TENANT, "--name", folder.name, str(folder))
        self.base_model = json.loads((Path(self.home.name) / "demo.json").read_text())["base_model"]

    def serve(self, requests: list[Request]) -> list[Timeline]:
        return asyncio.run(self._serve(requests))

    def add_tenant(self, name: str) -> str:
        """Its key; it uses the base model."""
        self._run("tenants", "create", name)
        return self._run("keys", "create", "--tenant", name).splitlines()[-1]

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        self.log.close()
        self.home.cleanup()

    async def _serve(self, requests: list[Request]) -> list[Timeline]:
        limits = httpx2.Limits(max_connections=len(requests))
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=600, limits=limits
        ) as client:
            started = time.perf_counter()
            return await asyncio.gather(*(self._stream(client, r, started) for r in requests))

    async def _stream(
        self, client: httpx2.AsyncClient, request: Request, started: float
    ) -> Timeline:
        body = {
            "model": request.adapter or self.base_model,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,  # a token whose text is still held back is a token, too
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first_token_s, usage = None, None
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise SystemExit(f"{response.status_code}: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise SystemExit(line)
                if chunk["choices"] and first_token_s is None:
                    first_token_s = time.perf_counter() - started
                usage = chunk.get("usage") or usage
        assert usage is not None
        return Timeline(
            usage["completion_tokens"],
            first_token_s,
            time.perf_counter() - started,
            usage["prompt_tokens_details"]["cached_tokens"],
        )

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            _loraplex(*arguments), env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"loraplex {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout.strip()

    def _wait_until_ready(self) -> float:
        started_s = time.monotonic()
        deadline = started_s + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return time.monotonic() - started_s
            except httpx2.TransportError:
                pass  # not listening yet
            time.sleep(0.2)
        self.log.seek(0)
        raise SystemExit(f"loraplex serve did not become ready:\n{self.log.read()}")


def _loraplex(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loraplex_platform", *arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
