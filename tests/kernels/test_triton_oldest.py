"""The oldest Triton that we support compiles every shipped configuration as well as the newest does."""

from pathlib import Path
from typing import Any

import pytest
from tests.kernels.compiled import FAULTY, OLDEST, ROOT, is_sound, oldest_triton, reports, run

from loraplex_kernels.gpu_configs import ARCHITECTURES
from loraplex_kernels.gpu_table import page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def oldest() -> Path:
    return oldest_triton()


@pytest.fixture(scope="module")
def compiled(oldest: Path) -> list[dict[str, Any]]:
    return reports("-m", "loraplex_kernels.ahead_of_time", triton=oldest)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_configuration_compiles_without_spills(
    compiled: list[dict[str, Any]], architecture: int
) -> None:
    mine = [report for report in compiled if report["architecture"] == architecture]
    assert {report["triton"] for report in mine} == {OLDEST}
    assert len(mine) >= 40
    assert [report for report in mine if not is_sound(report)] == []


def test_faulty_kernels_are_seen(oldest: Path) -> None:
    spilling, whole, narrow = reports("-c", FAULTY, triton=oldest)
    assert spilling["spills"] > 0
    assert narrow["narrow_products"] > 0
    assert [is_sound(report) for report in (spilling, whole, narrow)] == [False, True, False]


def test_the_page_shows_what_is_compiled(compiled: list[dict[str, Any]]) -> None:
    """kernels/loraplex_kernels/gpu_table.py says how to write it anew."""
    kept = (ROOT / "deploy/docs/gpu-kernels.md").read_text()
    table = page(compiled).partition("\n## ")[2]
    assert table in kept


def test_what_is_launched_is_what_is_compiled(oldest: Path) -> None:
    file = ROOT / "tests/kernels/test_launches.py"
    assert " passed" in run("-m", "pytest", str(file), "-q", triton=oldest)
