"""The GPU kernels, proved without a GPU: interpreted for their results, compiled for their quality."""

from typing import Any

import pytest
from tests.kernels.compiled import ROOT, SPILLING, is_sound, reports, run

from loraplex_kernels.gpu_configs import ARCHITECTURES
from loraplex_kernels.gpu_table import page


def interpret(cases: str) -> str:
    file = str(ROOT / "tests/kernels/triton_interpreted.py")
    return run("-m", "pytest", file, "-q", "-x", "-k", cases, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    return reports("-m", "loraplex_kernels.ahead_of_time")


def test_interpreted_kernels_equal_the_definition() -> None:
    """One case of each kernel; the slow suite walks the whole grid."""
    cases = "random-63-widths0 or lengths1-None-None-heads0 or rotary or norm or pick"
    assert " passed" in interpret(f"float16 and ({cases})")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_interpreted_kernels_equal_the_definition_on_the_grid(dtype: str) -> None:
    assert " passed" in interpret(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_configuration_compiles_without_spills(
    compiled: list[dict[str, Any]], architecture: int
) -> None:
    mine = [report for report in compiled if report["architecture"] == architecture]
    assert len(mine) >= 33
    assert [report for report in mine if not is_sound(report)] == []


@pytest.mark.slow
def test_the_page_shows_what_is_compiled(compiled: list[dict[str, Any]]) -> None:
    """All that ships, and what the compiler made of it if the page is of this version of it.

    kernels/loraplex_kernels/gpu_table.py says how to write it anew.
    """
    kept = (ROOT / "deploy/docs/gpu-kernels.md").read_text()
    table = page(compiled).partition("\n## ")[2]
    if f"## Triton {compiled[0]['triton']}\n" in kept:
        assert table in kept
    for report in compiled:
        assert f"| {report['name']} | {report['intensity']} |" in kept


@pytest.mark.slow
def test_a_spilling_kernel_is_seen() -> None:
    [report] = reports("-c", SPILLING)
    assert report["spills"] > 0
    assert not is_sound(report)
