"""The servers that other tests stand on."""

import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.services import PostgresServer, RedisServer, black_hole, running_postgres, running_redis
from tests.until import wait_until

ROOT = Path(__file__).parents[1]


def test_postgres_is_version_18_and_each_test_has_an_empty_database(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        version = connection.execute("SHOW server_version_num").fetchone()
        tables = connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone()
    assert version is not None
    assert version[0].startswith("18")
    assert tables == (0,)


def test_a_killed_postgres_keeps_what_was_committed() -> None:
    with running_postgres() as server:
        with psycopg.connect(server.url(user="postgres")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        server.restart()
        with psycopg.connect(server.url(user="postgres")) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (7,)


def test_a_refilled_database_has_the_given_rows_and_nobody_connected(
    postgres: PostgresServer, postgres_url: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE a (n int PRIMARY KEY); INSERT INTO a VALUES (7)")
        connection.execute("CREATE TABLE b (n int REFERENCES a); INSERT INTO b VALUES (7)")
    rows = postgres.rows_of(name)
    left_open = psycopg.connect(postgres_url)
    left_open.execute("DELETE FROM b")
    for given, found in (({}, []), (rows, [(7,)])):
        postgres.refill(name, given)
        with psycopg.connect(postgres_url) as connection:
            for query in ("SELECT n FROM a", "SELECT n FROM b"):
                assert connection.execute(query).fetchall() == found
    with pytest.raises(psycopg.OperationalError), left_open:
        left_open.execute("SELECT 1")


def test_redis_is_6_2_and_empty(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_url == redis_server.url
    assert b"redis_version:6.2." in redis_server.execute("INFO", "server")
    assert redis_server.execute("DBSIZE") == b":0\r\n"


@pytest.mark.parametrize(("append_only", "reply"), [(False, b"$-1\r\n"), (True, b"$1\r\n7\r\n")])
def test_a_killed_redis_keeps_its_keys_only_with_a_log(append_only: bool, reply: bytes) -> None:
    with running_redis(append_only) as server:
        server.execute("SET", "n", "7")
        server.restart()
        assert server.execute("GET", "n") == reply


def test_a_paused_redis_accepts_and_does_not_answer() -> None:
    with running_redis() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.execute("PING", timeout_s=0.1)
        server.resume()
        assert server.is_ready()


def test_a_black_hole_never_answers() -> None:
    with black_hole() as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.05)
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_killed_test_run_leaves_no_server_behind() -> None:
    code = (
        "import os, signal\nfrom tests.services import running_redis\n"
        "with running_redis() as server:\n"
        "    print(server.port, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)

    def is_gone() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(run.stdout))).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(is_gone, what="the end of Redis with the run that started it")
