"""Kernels compiled in processes of their own, by the installed Triton or by the oldest supported one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OLDEST = "3.6.0"
SPILLING = """
from dataclasses import asdict, replace
import json
from loraplex_kernels.ahead_of_time import inspect
from loraplex_kernels.gpu_variants import attention_variants
prefill = next(v for v in attention_variants(90) if v.name == "prefill d128")
print(json.dumps(asdict(inspect(replace(prefill, max_registers=64), 90))))
"""


def run(*command: str, triton: Path | None = None, **environment: str) -> str:
    """Output of a Python process that sees Triton for the first time."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    folders = [str(ROOT / p) for p in ("kernels", "tests")]
    inherited["PYTHONPATH"] = os.pathsep.join([str(triton), *folders] if triton else folders)
    result = subprocess.run(
        [sys.executable, *command],
        env=inherited | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def reports(*arguments: str, triton: Path | None = None) -> list[dict[str, Any]]:
    output = run(*arguments, triton=triton, TRITON_DEFAULT_FP_FUSION="1")
    return [json.loads(line) for line in output.splitlines()]


def is_sound(report: dict[str, Any]) -> bool:
    """Nothing spilled, and products run on tensor cores fed by 16-byte or asynchronous loads."""
    fits = report["spills"] == 0 and report["stack_bytes"] == 0
    return (fits and report["occupancy"] > 0) and (
        not report["has_dot"]
        or (report["tensor_core_instructions"] > 0 and report["wide_loads"] > 0)
    )


def oldest_triton() -> Path:
    """A folder with the oldest Triton that we support, brought from PyPI the first time."""
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"triton-{OLDEST}-python-{python}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as half_done:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            target = Path(half_done) / "triton"
            subprocess.run([*pip, "--target", str(target), f"triton=={OLDEST}"], check=True)
            target.rename(folder)
    return folder
