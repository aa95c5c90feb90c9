"""What end-to-end tests stand on: a tiny model with real weights, and `loraplex serve` as a process."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from openai import AsyncOpenAI, OpenAI
from safetensors.torch import save_file
from tests.platform_stand import tiny_model
from tests.secrecy import Watch
from tests.until import until, wait_until
from transformers import LlamaConfig, LlamaForCausalLM

from loraplex_engine.client import RemoteEngine
from loraplex_engine.messages import EngineStats
from loraplex_platform.supervision.base_model import DEMO_MODEL

ROOT = Path(__file__).parents[2]
PACKAGES = ("platform", "engine", "kernels", "adapters", "admin")
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def tiny_checkpoint(folder: Path) -> Path:
    """A random Llama over bytes; it says nonsense, fast."""
    tiny_model(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPE,
        vocab_size=259,
        intermediate_size=128,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def tiny_adapter(folder: Path, seed: int) -> Path:
    """What PEFT would save for the tiny model: q and v of both layers, strong enough to be heard."""
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for name, out_features in (("q_proj", 64), ("v_proj", 32)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(4, 64)
            tensors[f"{key}.lora_B.weight"] = torch.randn(out_features, 4)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, **settings: object) -> dict[str, str]:
    """A child's environment: this checkout, and nothing of LORAPLEX_* but what is given."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LORAPLEX_")}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / package) for package in PACKAGES)
    given = {"HOME": home, "THREADS": 1, **settings}
    return env | {f"LORAPLEX_{name}": str(value) for name, value in given.items()}


@dataclass(slots=True)
class Served:
    """A running `loraplex serve`."""

    home: Path
    port: int
    model: Path
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def demo(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        found: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(
            (self.home / "demo.json").read_text()
        )
        return found

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, tenant: str) -> OpenAI:
        return self.client_with(self.demo["tenants"][tenant]["api_key"])

    def client_with(self, key: str) -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key=key, max_retries=0, timeout=60)

    def async_client(self, tenant: str, url: str | None = None) -> AsyncOpenAI:
        key = self.demo["tenants"][tenant]["api_key"]
        return AsyncOpenAI(base_url=url or self.base_url, api_key=key, max_retries=0, timeout=120)

    def readiness(self) -> int:
        return readiness(self.port)

    def cli(self, *args: str) -> str:
        """Run a command beside the server; returns its last line."""
        command = [sys.executable, "-m", "loraplex_platform", *args]
        env = environment(self.home, MODEL=self.model)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return (done.stdout.splitlines() or [""])[-1]

    def child(self, module: str) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        [found] = [c for c in children if module in c.cmdline()]
        return found

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.home / "loraplex.sqlite3")) as connection:
            return connection.execute(statement).fetchall()


def readiness(port: int) -> int:
    """The status of /readyz; 0 when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


async def until_stats(
    engine: RemoteEngine, condition: Callable[[EngineStats], object]
) -> EngineStats:
    """The first of the engine's statistics that meet the condition; it may be away meanwhile."""
    found = list[EngineStats]()

    def is_met() -> bool:
        stats = engine.stats
        if stats is not None and condition(stats):
            found.append(stats)
        return bool(found)

    await until(is_met)
    return found[-1]


def holds_nothing(stats: EngineStats) -> bool:
    """No sequence, no block, and no slot but those of idle adapters."""
    return (
        not stats.sequences
        and stats.free_blocks == stats.num_blocks
        and stats.free_slots + len(stats.resident_adapters) == stats.num_slots
    )


@asynccontextmanager
async def engine_of(served: Served) -> AsyncIterator[RemoteEngine]:
    """A bare client of the server's engine, connected."""
    engine = RemoteEngine(f"ipc://{served.home / 'engine.sock'}")
    await engine.start()
    try:
        await until_stats(engine, bool)
        yield engine
    finally:
        await engine.close()


def leaks_of(home: Path, log: Path) -> list[str]:
    """Keys in what the server logged and stored; to its terminal it says the demo's on purpose."""
    watch = Watch(log.with_suffix(".shown"))
    watch.show_files(home)
    for line in log.read_bytes().splitlines():
        if line.startswith(b"{"):
            watch.show("log", line)
    return watch.leaks()


@contextmanager
def serving(
    home: Path, model: Path | None, *, installed: Path | None = None, **settings: object
) -> Iterator[Served]:
    """`loraplex serve` until it is ready; afterwards it must end cleanly on Ctrl-C.

    Without a model it serves the demo's; `installed` is a `loraplex` command to run instead of
    this checkout.
    """
    port = free_port()
    log = home.with_suffix(".log")
    env = environment(home, PORT=port, **settings)
    if model is not None:
        env["LORAPLEX_MODEL"] = str(model)
    command = [sys.executable, "-m", "loraplex_platform", "serve"]
    if installed is not None:
        command = [str(installed), "serve"]
        del env["PYTHONPATH"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=home.parent, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(
            lambda: b"\nConsole" in log.read_bytes() or process.poll() is not None,
            300,
            "readiness",
        )
        assert process.poll() is None, log.read_text()
        yield Served(home, port, model or Path(DEMO_MODEL), log, process)
        if process.poll() is None:  # a test may have killed it
            children = psutil.Process(process.pid).children()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, log.read_text()
            assert not [child for child in children if child.is_running()]
            assert leaks_of(home, log) == []
    finally:
        process.kill()
        process.wait()
