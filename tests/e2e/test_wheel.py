"""The wheel alone, in a clean virtual environment and an empty folder, serves the demo."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tests.e2e.stand import ROOT, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, timeout=120)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture
def loraplex(wheel: Path, tmp_path: Path) -> Path:
    """The command of a virtual environment that holds the wheel and, by path, its dependencies."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*install, *options, str(wheel)], check=True, timeout=120)
    return home / "bin" / "loraplex"


def test_wheel_carries_the_consoles_templates_and_scripts(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("templates", "static"):
        there = (ROOT / "admin" / "loraplex_admin" / folder).rglob("*")
        files = {str(path.relative_to(ROOT / "admin")) for path in there if path.is_file()}
        assert files
        assert files <= names


def test_wheel_carries_migrations_and_demo_adapters(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "loraplex_platform/db/_migrations/env.py" in names
    adapters = {name for name in names if name.endswith("adapter_model.safetensors")}
    assert len(adapters) == 3
    assert all(name.startswith("loraplex_platform/_demo/") for name in adapters)


def test_installed_wheel_serves_the_demo_from_an_empty_folder(
    loraplex: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty" / "var", None, installed=loraplex) as served:
        for tenant, access in served.demo["tenants"].items():
            assert access["model"] != served.demo["base_model"]
            with served.client(tenant) as client:
                answer = client.chat.completions.create(
                    model=access["model"],
                    messages=[{"role": "user", "content": "Hello"}],
                    max_tokens=4,
                )
            assert answer.usage is not None
            assert answer.usage.completion_tokens > 0
