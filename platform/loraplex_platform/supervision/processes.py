"""How the engine and the API are started, from settings."""

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from loraplex_platform.config import PREFIX, Settings, inherited_environment
from loraplex_platform.supervision.base_model import served_name
from loraplex_platform.supervision.child import Command

LONGEST_IPC_PATH = 100  # bytes; Linux allows 107


class PortTaken(Exception):
    """Another process listens where the API should."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} on {host} is taken; stop what listens there or set {PREFIX}PORT"
        )
        self.port = port


def bind(host: str, port: int) -> socket.socket:
    """The API's address, held by the parent so that a restarted API finds it free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise PortTaken(host, port) from error
    return listener


def engine_address(settings: Settings) -> str:
    """Where this home's engine is reached."""
    if settings.engine_address is not None:
        return settings.engine_address
    path = settings.home.absolute() / "engine.sock"
    if len(os.fsencode(path)) > LONGEST_IPC_PATH:
        path = Path(tempfile.mkdtemp(prefix="loraplex-")) / "engine.sock"
    return f"ipc://{path}"


def engine_command(settings: Settings, model: Path, address: str) -> Command:
    config = {name.lower(): value for name, value in settings.engine.items()} | {
        "model": str(model)
    }
    cpus = available_cpus()
    # Our kernels run on TBB's threads, of which none is waited for that has no CPU. torch's own products,
    # where there are no AMX tiles, wait for all of OpenMP's threads; so they leave one CPU to the API.
    threads = config.get("threads", str(cpus))
    waiting_threads = config.get("threads", str(max(1, cpus - 1)))
    environment = inherited_environment() | {
        "NUMBA_NUM_THREADS": threads,
        "OMP_NUM_THREADS": waiting_threads,
        "MKL_NUM_THREADS": waiting_threads,
        # Threads that spin at a barrier while another process has the core cost far more than a wake-up:
        # 8 steps took 0.9 s against 23 s on a loaded machine (2 cores, SmolLM2, bf16). But most barriers
        # are short: OpenMP's threads spin for some 0.1 ms before they sleep.
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "3000",
    }
    environment.pop("OMP_PROC_BIND", None)  # with it Numba sees a single CPU
    args = [
        "-m", "loraplex_engine",
        "--address", address,
        "--adapters", str(settings.adapter_store),
        "--config", json.dumps(config),
        "--log-level", settings.log_level,
    ]  # fmt: skip
    return Command("engine", args, environment)


def api_command(settings: Settings, model: Path, address: str, listener: socket.socket) -> Command:
    own = {
        "HOME": str(settings.home.absolute()),
        "MODEL": str(model),
        "SERVED_MODEL_NAME": served_name(settings),
        "ENGINE_ADDRESS": address,
    }
    environment = inherited_environment() | {PREFIX + name: value for name, value in own.items()}
    if settings.metrics_folder is not None:
        environment["PROMETHEUS_MULTIPROC_DIR"] = str(settings.metrics_folder)
    args = ["-m", "loraplex_platform.api", "--fd", str(listener.fileno())]
    return Command("api", args, environment, pass_fds=(listener.fileno(),))


def available_cpus() -> int:
    """CPUs this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
