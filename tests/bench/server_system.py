"""Loraplex as its users meet it: `loraplex serve`, an API key, streams over HTTP."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
from http_system import Body, HttpServer, free_port
from workload import Request

TENANT = "bench"
START_TIMEOUT_S = 120.0
SELF_TESTS_TIMEOUT_S = 300.0


class LoraplexServer(HttpServer):
    """A fresh one, with one tenant who has all the adapters."""

    name = "loraplex"

    def __init__(self, model_folder: Path, adapters: Path) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="loraplex-bench-")
        home, port = Path(self.home.name), free_port()
        self.environment = {
            **os.environ,
            "LORAPLEX_HOME": self.home.name,
            "LORAPLEX_PORT": str(port),
            "LORAPLEX_DTYPE": "bfloat16",
            "LORAPLEX_MAX_LORAS": "16",
        }
        super().__init__(
            _loraplex("serve", "--model", str(model_folder)),
            self.environment,
            port=port,
            log=home / "bench-serve.log",
            health="/readyz",
            timeout_s=START_TIMEOUT_S,
        )
        self.key = self.add_tenant(TENANT)
        self.headers = {"Authorization": f"Bearer {self.key}"}
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # a command takes a second to start
            list(pool.map(self._add_adapter, sorted(adapters.iterdir())))
        self._wait_for_self_tests(adapters)
        self.base_model = json.loads((home / "demo.json").read_text())["base_model"]

    def body(self, request: Request) -> Body:
        return {
            "model": request.adapter or self.base_model,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,  # a token whose text is still held back is a token, too
        }

    def add_tenant(self, name: str) -> str:
        """Its key; it uses the base model."""
        self._run("tenants", "create", name)
        return self._run("keys", "create", "--tenant", name).splitlines()[-1]

    def _add_adapter(self, folder: Path) -> None:
        self._run("adapters", "add", "--tenant", TENANT, "--name", folder.name, str(folder))

    def _wait_for_self_tests(self, adapters: Path) -> None:
        """They take a second of processor time each, once for all: other servers have none."""
        until_s = time.monotonic() + SELF_TESTS_TIMEOUT_S
        for folder in adapters.iterdir():
            while not self._is_tested(folder.name):
                if time.monotonic() > until_s:
                    raise SystemExit(f"{folder.name} was not tested")
                time.sleep(0.5)

    def _is_tested(self, name: str) -> bool:
        answer = httpx2.get(f"{self.url}/v1/adapters/{name}", headers=self.headers, timeout=60)
        answer.raise_for_status()
        [version] = answer.json()["versions"]
        return version["parity"] is not None

    def close(self) -> None:
        super().close()
        self.home.cleanup()

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            _loraplex(*arguments), env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"loraplex {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout.strip()


def _loraplex(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loraplex_platform", *arguments]
