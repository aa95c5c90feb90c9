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
FAULTY = """  # a kernel that spills, one as it is, and the same with its rows counted in 32 bits
from dataclasses import asdict, replace
from pathlib import Path
import json, tempfile
from tests.kernels.mutants import NARROW, mutant
from loraplex_kernels.ahead_of_time import inspect
from loraplex_kernels.gpu_variants import attention_variants, lora_variants
from loraplex_kernels.lora import _triton as lora
prefill = next(v for v in attention_variants(90) if v.name == "prefill d128")
expand = next(v for v in lora_variants(90) if v.name == "expand r16 few")
with tempfile.TemporaryDirectory() as folder:
    narrow = mutant(lora, Path(folder), NARROW).expand_kernel
    for variant in (replace(prefill, max_registers=64), expand, replace(expand, function=narrow)):
        print(json.dumps(asdict(inspect(variant, 90))))
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
    """Nothing spilled, addresses are of 64 bits, products run on tensor cores fed by wide loads."""
    fits = report["spills"] == 0 and report["stack_bytes"] == 0 and report["occupancy"] > 0
    return (fits and report["narrow_products"] == 0) and (
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
