"""What the engine's core runs on, and what the engine's process does without."""

import subprocess
import sys

CORE = """
import importlib, pkgutil, sys

BLOCKED = {"msgspec", "zmq", "tokenizers", "transformers", "peft", "pydantic", "fastapi", "structlog"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
import loraplex_engine.offline, loraplex_engine.model, loraplex_engine.scheduling, loraplex_kernels
for package in (loraplex_engine.model, loraplex_engine.scheduling, loraplex_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print("core" if "loraplex_engine.core" in sys.modules else "nothing")
"""

# The modules of a process that serves on the CPU
SERVING = """
import sys
import loraplex_engine.__main__
from loraplex_kernels.device import implementation
from loraplex_kernels.warm_up import AMX_OPS, OPS

for ops, kind in ((OPS, "cpu"), (AMX_OPS, "amx")):
    for op in ops:
        implementation(f"loraplex_kernels.{op}", kind)
print(*sys.modules)
"""
UNUSED = {
    "accelerate", "fastapi", "gguf", "huggingface_hub", "loraplex_platform", "pandas", "peft", "pydantic",
    "safetensors", "scipy", "sqlalchemy", "sympy", "torch._dynamo", "torch._inductor", "torch.onnx",
    "torchvision", "transformers", "triton",
}  # fmt: skip


def run(code: str) -> str:
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_needs_no_other_package() -> None:
    assert run(CORE) == "core\n"


def test_an_engine_on_the_cpu_loads_no_library_that_it_does_not_use() -> None:
    loaded = set(run(SERVING).split())
    assert {"torch", "numba", "loraplex_kernels.attention._numba"} <= loaded
    assert not loaded & UNUSED
