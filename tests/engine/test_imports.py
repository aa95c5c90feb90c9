"""The engine's core runs on torch, numba, triton, numpy and safetensors alone."""

import subprocess
import sys

CODE = """
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


def test_core_needs_no_other_package() -> None:
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=path)
    assert done.stdout == "core\n", done.stderr
