"""A server in a process of its own, asked over HTTP, each request as a stream when it is due."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import psutil
from workload import Request, Timeline

STOP_TIMEOUT_S = 60.0
Body = dict[str, object]


class HttpServer(ABC):
    """What the servers share; each says how it wants to be asked for a completion."""

    name: str

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        *,
        port: int,
        log: Path,
        health: str = "/health",
        timeout_s: float = 600.0,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.headers: dict[str, str] = {}
        self.log = log.open("w+")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log, stderr=subprocess.STDOUT
        )
        self.ready_s = self._wait_until_ready(health, timeout_s)  # since the command was given

    @abstractmethod
    def body(self, request: Request) -> Body:
        """Greedy, and of exactly so many tokens."""

    def serve(self, requests: list[Request]) -> list[Timeline]:
        return asyncio.run(self._serve(requests))

    def greedy(self, request: Request) -> list[int]:
        """The tokens themselves."""
        asked = {**self.body(request), "return_token_ids": True}
        [choice] = self.ask("/v1/completions", asked)["choices"]
        return [int(token) for token in choice["token_ids"]]

    def ask(self, path: str, body: Body) -> dict[str, Any]:
        answer = httpx2.post(self.url + path, json=body, headers=self.headers, timeout=600)
        if answer.status_code != 200:
            raise SystemExit(f"{self.name}: {answer.status_code}: {answer.text}")
        return dict(answer.json())

    def close(self) -> None:
        """Its workers too are gone before anything else is measured."""
        family: list[psutil.Process] = []
        if self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=STOP_TIMEOUT_S)
        for left in psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)[1]:
            left.kill()
        self.log.close()

    async def _serve(self, requests: list[Request]) -> list[Timeline]:
        limits = httpx2.Limits(max_connections=len(requests))
        async with httpx2.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=3600, limits=limits
        ) as client:
            began_s = time.perf_counter()
            return await asyncio.gather(*(self._stream(client, r, began_s) for r in requests))

    async def _stream(
        self, client: httpx2.AsyncClient, request: Request, began_s: float
    ) -> Timeline:
        body = self.body(request) | {"stream": True, "stream_options": {"include_usage": True}}
        first_token_s, usage = None, None
        await asyncio.sleep(max(0.0, began_s + request.arrival_s - time.perf_counter()))
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
                    first_token_s = time.perf_counter() - began_s
                usage = chunk.get("usage") or usage
        assert usage is not None
        return Timeline(
            usage["completion_tokens"],
            first_token_s,
            time.perf_counter() - began_s,
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            request.arrival_s,
        )

    def _wait_until_ready(self, health: str, timeout_s: float) -> float:
        started_s = time.monotonic()
        while time.monotonic() < started_s + timeout_s and self.process.poll() is None:
            try:
                if httpx2.get(self.url + health, timeout=2).status_code == 200:
                    return time.monotonic() - started_s
            except httpx2.TransportError:
                pass  # not listening yet
            time.sleep(0.2)
        self.log.seek(0)
        said = self.log.read()[-4000:]
        HttpServer.close(self)  # nobody else has it yet
        raise SystemExit(f"{self.name} did not become ready:\n{said}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
