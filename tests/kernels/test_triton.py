"""The GPU kernels, proved without a GPU: interpreted for their results, compiled for their quality."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SPILLING = """
from dataclasses import asdict, replace
import json
from loraplex_kernels.ahead_of_time import attention_variants, inspect
prefill = next(v for v in attention_variants() if v.name == "prefill d128")
print(json.dumps(asdict(inspect(replace(prefill, max_registers=64), 90))))
"""


def run(*command: str, **environment: str) -> str:
    """Output of a Python process that sees Triton for the first time."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TRITON")}
    inherited["PYTHONPATH"] = os.pathsep.join(str(ROOT / p) for p in ("kernels", "tests"))
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


def interpret(cases: str) -> str:
    file = str(ROOT / "tests/kernels/triton_interpreted.py")
    return run("-m", "pytest", file, "-q", "-x", "-k", cases, TRITON_INTERPRET="1")


def reports(*arguments: str) -> list[dict[str, Any]]:
    output = run(*arguments, TRITON_DEFAULT_FP_FUSION="1")
    return [json.loads(line) for line in output.splitlines()]


def is_sound(report: dict[str, Any]) -> bool:
    """Nothing spilled, and products run on tensor cores fed by 16-byte or asynchronous loads."""
    fits = report["spills"] == 0 and report["stack_bytes"] == 0
    return fits and (
        not report["has_dot"]
        or (report["tensor_core_instructions"] > 0 and report["wide_loads"] > 0)
    )


def test_interpreted_kernels_equal_the_definition() -> None:
    """One case of each kernel; the slow suite walks the whole grid."""
    cases = "random-63-widths0 or lengths1-None-None-heads0 or rotary or norm"
    assert " passed" in interpret(f"float16 and ({cases})")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_interpreted_kernels_equal_the_definition_on_the_grid(dtype: str) -> None:
    assert " passed" in interpret(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_every_configuration_compiles_without_spills(architecture: str) -> None:
    compiled = reports("-m", "loraplex_kernels.ahead_of_time", architecture)
    assert len(compiled) >= 19
    assert [r for r in compiled if not is_sound(r)] == []


@pytest.mark.slow
def test_a_spilling_kernel_is_seen() -> None:
    [report] = reports("-c", SPILLING)
    assert report["spills"] > 0
    assert not is_sound(report)
