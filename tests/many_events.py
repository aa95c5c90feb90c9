"""Very many usage events in a SQLite file, made by one statement; and what reading them costs."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import event

from loraplex_platform.db.database import Database

JUNE = datetime(2026, 6, 1, tzinfo=UTC)
STEP_EVERY = 1_000  # instructions of SQLite's virtual machine between two looks
# Spread over the thirty days; eight keys, three tiers, every second one of an adapter.
SEED = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO usage_event (
    request_id, tenant_id, project_id, key_id, endpoint, model, base_model, adapter_version, tier,
    outcome, error_code, sequences, attempts, prompt_tokens, cached_tokens, completion_tokens,
    recomputed_tokens, discarded_tokens, started_at, ended_at, queue_s, ttft_s, total_s, engine_s,
    region, delivered, job_id, end_user, client_request_id, request_metadata)
SELECT
    printf('req_%09d', i), :tenant, 'proj_1', 'key_' || (i % 8), '/v1/chat/completions',
    iif(i % 2, 'support', 'tiny'), 'tiny', iif(i % 2, 'version-1', NULL),
    iif(i % 3 = 0, 'batch', iif(i % 3 = 1, 'standard', 'interactive')),
    'stop', NULL, 1, 1, 100 + i % 900, 40, 10 + i % 190, 0, 0,
    strftime('%Y-%m-%d %H:%M:%f', :start, (i * 2591999.0 / :count) || ' seconds') || '000',
    strftime('%Y-%m-%d %H:%M:%f', :start, (i * 2591999.0 / :count + 2) || ' seconds') || '000',
    0.01, 0.2, 2.0, 0.5, 'here', 1, NULL, NULL, NULL, NULL
FROM n
"""


def seed_events(path: str, tenant_id: str, count: int) -> None:
    """June of a tenant, evenly filled; roll-ups and ledger know nothing of it."""
    values = {"tenant": tenant_id, "count": count, "start": f"{JUNE:%Y-%m-%d %H:%M:%S}"}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(SEED, values)


@dataclass(slots=True)
class Effort:
    """What was asked of the database; `steps` are of SQLite's virtual machine: they grow with each
    row that is looked at, whether or not it is returned."""

    statements: int = 0
    steps: int = 0


@contextmanager
def effort_of(database: Database) -> Iterator[Effort]:
    """Counts until the block ends; connections that were open before count no steps."""
    effort = Effort()

    def count_statement(*_: Any) -> None:
        effort.statements += 1

    def count_steps() -> int:
        effort.steps += STEP_EVERY
        return 0

    def connected(connection: Any, _: object) -> None:
        connection.driver_connection._conn.set_progress_handler(count_steps, STEP_EVERY)

    engines = [engine.sync_engine for engine in database._engines]
    for engine in engines:
        event.listen(engine, "before_cursor_execute", count_statement)
        event.listen(engine, "connect", connected)
    yield effort
    for engine in engines:
        event.remove(engine, "before_cursor_execute", count_statement)
        event.remove(engine, "connect", connected)
