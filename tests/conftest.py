"""Fixtures that several layers share; a server starts once per run, on first use."""

import os
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests.secrecy import Watch, record_of_run, watching
from tests.services import PostgresServer, RedisServer, running_postgres, running_redis

# Read when torch is imported: threads that spin between products starve a machine that does more.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long an example takes is the machine's affair.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The run's Postgres: do not kill it, use `running_postgres()` for that."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database for one test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The run's Redis: do not kill it, use `running_redis()` for that."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty Redis for one test."""
    redis_server.execute("FLUSHALL")
    return redis_server.url


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """Of secrets, and of what is shown: all of a run are searched at its end, across its tests.

    Logs are drawn plainly, since rich takes seconds.
    """
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)

    def overhear(_: object, __: str, line: str) -> str:
        watch.show("log", line)
        return line

    with record_of_run(tmp_path_factory.getbasetemp()) as record:
        watch = Watch(record)
        structlog.configure(processors=[renderer, overhear])
        with watching(watch):
            yield watch
        watch.put_away()
        assert watch.leaks_of_run() == []
