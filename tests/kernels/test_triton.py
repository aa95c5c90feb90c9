"""The GPU kernels, proved without a GPU: interpreted for their results, compiled for their quality."""

from typing import Any

import pytest
from tests.kernels.compiled import FAULTY, ROOT, is_sound, reports, run

from loraplex_kernels.gpu_configs import ARCHITECTURES
from loraplex_kernels.gpu_table import page


def interpret(cases: str, *names: str) -> str:
    files = [str(ROOT / "tests/kernels" / f"{name}.py") for name in names]
    return run("-m", "pytest", *files, "-q", "-x", "-k", cases, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    return reports("-m", "loraplex_kernels.ahead_of_time")


@pytest.fixture(scope="module")
def faulty() -> list[dict[str, Any]]:
    return reports("-c", FAULTY)


def test_interpreted_kernels_equal_the_definition() -> None:
    """One case of each kernel; the slow suite walks the whole grid."""
    rows = "((rotary or pick) and 7-float16) or ((norm or most_likely) and 63-float16)"
    cases = f"random-63-widths0 or lengths1-None-None-heads0 or {rows}"
    assert " passed" in interpret(f"float16 and ({cases})", "triton_interpreted")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_interpreted_kernels_equal_the_definition_on_the_grid(dtype: str) -> None:
    """And beyond what 32 bits count: one process for both, whose start takes seconds."""
    assert " passed" in interpret(dtype, "triton_interpreted", "triton_far_memory")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_configuration_compiles_without_spills(
    compiled: list[dict[str, Any]], architecture: int
) -> None:
    mine = [report for report in compiled if report["architecture"] == architecture]
    assert len(mine) >= 40
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
def test_a_spilling_kernel_is_seen(faulty: list[dict[str, Any]]) -> None:
    spilling, _, _ = faulty
    assert spilling["spills"] > 0
    assert not is_sound(spilling)


@pytest.mark.slow
def test_a_kernel_that_counts_in_32_bits_is_seen(faulty: list[dict[str, Any]]) -> None:
    _, whole, narrow = faulty
    assert is_sound(whole)
    assert narrow["narrow_products"] > 0
    assert not is_sound(narrow)
