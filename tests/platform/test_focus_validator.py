"""FOCUS's own validator reads our files: a second opinion, where there is a Python 3.12 to run it."""

import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from tests.usage_stand import NOON, facts, fifty_days, post

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.usage.credit_notes import Wish
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.invoice_service import InvoiceService, Month

pytestmark = pytest.mark.slow
PACKAGES = ("focus-validator==2.2.1", "pyarrow<22")
ARGUMENTS = (
    "--block-download",
    "--validate-version",
    "1.2.0.1",
    "--focus-dataset",
    "CostAndUsage",
)
# It asks that InvoiceId be null «when the charge is not associated with an invoice», and cannot know
# that ours is: it reports every row that has one.
EXPLAINED = {"InvoiceId-C-004-C"}
START = "import sys; from focus_validator.main import main; sys.exit(main())"


def python_3_12() -> str | None:
    """An interpreter that runs: a shim of pyenv may be on the path and lead nowhere."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which("python3.12"), *map(str, sorted(pyenv.glob("3.12.*/bin/python3.12")))]
    for candidate in filter(None, found):
        code = "import sys; print(sys.version_info[:2] == (3, 12))"
        answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if answer.stdout.strip() == "True":
            return candidate
    return None


@pytest.fixture(scope="module")
def validator() -> tuple[str, Path]:
    """Python 3.12, and a folder of packages that only it uses; filled once a machine."""
    python = python_3_12()
    if python is None:
        pytest.skip("focus-validator 2.2.1 needs Python 3.12, and there is none")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "loraplex" / "focus-validator-2.2.1"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        install = [python, "-m", "pip", "install", "--quiet", "--target", str(part), *PACKAGES]
        subprocess.run(install, check=True, capture_output=True)
        part.rename(folder)
    return python, folder


def failures_of(validator: tuple[str, Path], path: Path) -> set[str]:
    """The rules that a file breaks; its exit code says nothing."""
    python, folder = validator
    done = subprocess.run(
        [python, "-c", START, "--data-file", str(path), *ARGUMENTS],
        cwd=folder,  # it looks for its tables from there
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    total = re.search(r"^Total: (\d+) \| Pass: (\d+) \| Fail: (\d+)", done.stdout, re.MULTILINE)
    assert total is not None, done.stdout[-2000:] + done.stderr[-2000:]
    failed = set(re.findall(r"^- ([A-Za-z0-9-]+): violations", done.stdout, re.MULTILINE))
    assert len(failed) == int(total[3])
    assert int(total[2]) > 100
    return failed


async def test_the_official_validator_finds_nothing_unexplained(
    database: Database, tmp_path: Path, validator: tuple[str, Path]
) -> None:
    """July: usage by project and key, hosting, corrections, credits, a fee, tax, a credit note."""
    tenant = await fifty_days(database)
    later, july = ManualClock(NOON.replace(year=2027)), ManualClock(NOON + timedelta(days=20))
    june = await InvoiceService(database, later, "Example").finalize(tenant, Month(2026, 6))
    await post(database, [facts(tenant.id), facts(tenant.id, tier="batch")])
    await InvoiceService(database, later, "Example").finalize(tenant, Month(2026, 7))
    await InvoiceService(database, july, "Example").credit(june.id, Wish(cents=1234))
    exports = ExportService(database, later, tmp_path, issuer="Example", region="here")
    path = (await exports.write(tenant, Month(2026, 7), "focus", "csv")).path
    assert {"Correction", "Credit note", ",Tax,"} <= set(
        re.findall("Correction|Credit note|,Tax,", path.read_text())
    )
    assert failures_of(validator, path) <= EXPLAINED
    broken = tmp_path / "broken.csv"
    head = path.read_text().splitlines(keepends=True)[:20]
    broken.write_text("".join(head).replace(",USD,", ",Dollars,"))
    assert failures_of(validator, broken) - EXPLAINED
