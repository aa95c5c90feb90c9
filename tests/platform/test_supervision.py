"""Children are kept alive and ended; addresses, commands and the demo file are what they say."""

import asyncio
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs
from tests.platform_stand import engine_of
from tests.until import until

from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.supervision import child as child_module
from loraplex_platform.supervision import demo, processes
from loraplex_platform.supervision.base_model import expected_folder, served_name
from loraplex_platform.supervision.child import CANNOT_START, Child, ChildCannotStart, Command
from loraplex_platform.supervision.doctor import examine
from loraplex_platform.supervision.processes import (
    PortTaken,
    api_command,
    bind,
    engine_address,
    engine_command,
)
from loraplex_platform.supervision.serve import HomeInUse, only_server_of


def child_of(script: str, *, grace_s: float = 5.0) -> Child:
    return Child(Command("child", ["-c", script], dict(os.environ), grace_s=grace_s))


async def test_child_that_dies_is_started_again(tmp_path: Path) -> None:
    child = child_of(f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    alive = asyncio.create_task(child.keep_alive())
    await until(lambda: child.restarts >= 2)
    await child.stop()
    await asyncio.wait_for(alive, 60)
    assert len((tmp_path / "runs").read_text()) >= 2


async def test_child_that_cannot_start_is_not_tried_again() -> None:
    child = child_of(f"raise SystemExit({CANNOT_START})")
    with pytest.raises(ChildCannotStart, match="child"):
        await child.keep_alive()
    assert child.restarts == 0


async def test_child_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = child_of(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(ready)!r}, 'w'); time.sleep(3600)",
        grace_s=0.2,
    )
    alive = asyncio.create_task(child.keep_alive())
    await until(ready.exists)
    await asyncio.wait_for(child.stop(), 60)  # it would sleep for an hour
    await asyncio.wait_for(alive, 60)


async def test_stop_does_not_wait_for_a_patient_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "FIRST_DELAY_S", 60.0)
    child = child_of("raise SystemExit(1)")
    with capture_logs() as logs:
        alive = asyncio.create_task(child.keep_alive())
        await until(lambda: "process ended" in {log["event"] for log in logs})
    await child.stop()
    await asyncio.wait_for(alive, 60)


def test_taken_port_names_itself() -> None:
    with bind("127.0.0.1", 0) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} on 127.0.0.1 is taken"):
            bind("127.0.0.1", port)


def test_home_has_one_server(tmp_path: Path) -> None:
    with only_server_of(tmp_path), pytest.raises(HomeInUse), only_server_of(tmp_path):
        pass
    with only_server_of(tmp_path):
        pass


def test_long_home_still_gets_an_address_that_fits(tmp_path: Path) -> None:
    assert engine_address(Settings(home=tmp_path)) == f"ipc://{tmp_path}/engine.sock"
    address = engine_address(Settings(home=tmp_path / ("x" * 100)))
    assert len(address.removeprefix("ipc://")) < 100
    assert engine_address(Settings(engine_address="tcp://e:1")) == "tcp://e:1"


def test_engine_gets_its_settings_and_threads(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, engine={"DTYPE": "float32", "THREADS": "3"})
    command = engine_command(settings, Path("/m"), "ipc:///e")
    config = command.args[command.args.index("--config") + 1]
    assert config == '{"dtype": "float32", "threads": "3", "model": "/m"}'
    assert command.environment["OMP_NUM_THREADS"] == command.environment["NUMBA_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("cpus", "waiting"), [(1, "1"), (2, "1"), (8, "7")])
def test_threads_that_wait_for_each_other_leave_one_cpu_to_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, waiting: str
) -> None:
    monkeypatch.setattr(processes, "available_cpus", lambda: cpus)
    environment = engine_command(Settings(home=tmp_path), Path("/m"), "ipc:///e").environment
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == waiting
    assert environment["NUMBA_NUM_THREADS"] == str(cpus)


def test_api_inherits_the_listening_socket(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as listener:
        command = api_command(Settings(home=tmp_path), Path("/m/tiny"), "ipc:///e", listener)
        assert command.pass_fds == (listener.fileno(),)
    assert command.environment["LORAPLEX_MODEL"] == "/m/tiny"
    assert command.environment["LORAPLEX_ENGINE_ADDRESS"] == "ipc:///e"


def test_model_is_a_folder_a_hub_id_or_the_demo(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").touch()
    mine = Settings(cache=tmp_path, model=str(tmp_path / "mine"))
    hub = Settings(cache=tmp_path, model="Org/Tiny")
    assert (expected_folder(mine), served_name(mine)) == (tmp_path / "mine", "mine")
    assert (expected_folder(hub), served_name(hub)) == (tmp_path / "models/org--tiny", "Org/Tiny")
    assert expected_folder(Settings(cache=tmp_path)).name == "smollm2-135m-instruct"


async def test_seeding_twice_makes_no_second_tenant_and_a_private_file(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, model="some/model")
    upgrade(settings.database)
    for port in (1, 2):
        await demo.seed(settings, tmp_path, f"http://h:{port}/v1")
    engine = engine_of(settings.database)
    with engine.connect() as connection:
        names = connection.execute(text("select name from tenant order by name")).scalars().all()
    engine.dispose()
    assert names == ["acme", "globex", "initech"]
    written = demo.access_file(settings)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert "http://h:2/v1" in written.read_text()


def test_curl_survives_a_shell() -> None:
    command = demo.curl("http://h/v1", demo.Access("lpx_a_b", "m"), 'It\'s "here" $HOME')
    words = shlex.split(command.replace("curl", "echo"))
    assert words[words.index("-d") + 1].count('It\'s \\"here\\" $HOME') == 1
    done = subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True)
    assert done.returncode == 0


@pytest.mark.slow
async def test_doctor_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("nonsense")
    (tmp_path / "secret.key").chmod(0o600)
    (tmp_path / "models" / "org--tiny").mkdir(parents=True)
    upgrade(f"sqlite:///{tmp_path}/loraplex.sqlite3", "base")
    findings = {
        f.subject: f
        for f in await examine(Settings(home=tmp_path, cache=tmp_path, model="org/tiny"))
    }
    assert findings["python"].is_well
    assert findings["device"].is_well, findings["device"]
    assert "lacks config.json" in str(findings["model"])
    assert "loraplex models import" in str(findings["model"])
    assert not findings["secret"].is_well
    assert "migrates it" in str(findings["database"])
    assert sys.version.split()[0] in str(findings["python"])
