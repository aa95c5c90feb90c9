"""A console's database of any size, made with bulk SQL: tenants, a month of usage, and the rest."""

import sqlite3
from pathlib import Path

TENANTS, EVENTS = 5_000, 1_000_000
DAYS = 30
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < :last)"
MOMENT = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || ({}) || ' seconds')"
FLOOR = "strftime('%Y-%m-%d %H:%M:00.000000', started_at)"
QUARTER = (
    "strftime('%Y-%m-%d %H:', started_at) || "
    "printf('%02d', CAST(strftime('%M', started_at) AS INTEGER) / 15 * 15) || ':00.000000'"
)
NOW = MOMENT.format("0")
SUMS = """
    INSERT INTO {table} (tenant_id, bucket, project_id, key_id, model, base_model, adapter, tier,
        requests, failed_requests, uncached_prompt_tokens, cached_prompt_tokens,
        completion_tokens, unbilled_tokens, recomputed_tokens)
    SELECT tenant_id, {bucket}, project_id, key_id, model, base_model,
        coalesce(adapter_version, 'base'), tier, count(*), 0, sum(prompt_tokens - cached_tokens),
        sum(cached_tokens), sum(completion_tokens), 0, 0
    FROM usage_event WHERE started_at >= datetime('now', '{since}') GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
"""
STATEMENTS = (
    f"""{NUMBERS} INSERT INTO plan (id, name, weight, max_tier, limits, created_at, revision)
        SELECT 'plan_s' || i, 'plan-' || i, 1, 'interactive', '{{"requests_per_minute": 600}}',
        {NOW}, 1 FROM n WHERE i < 5""",
    f"""{NUMBERS} INSERT INTO tenant (id, name, state, plan_id, prefix_tokens,
        stores_prompts, created_at, revision)
        SELECT printf('ten_%06d', i), printf('customer-%06d', i),
        CASE WHEN i % 4 THEN 'active' ELSE 'suspended' END, 'plan_s' || (i % 5), 4096, 0, {NOW}, 1
        FROM n WHERE i < :tenants""",
    """INSERT INTO project (id, tenant_id, name, created_at, revision)
        SELECT 'proj' || substr(id, 4), id, 'default', created_at, 1 FROM tenant
        WHERE length(id) = 10""",
    """INSERT INTO api_key (id, tenant_id, project_id, name, digest, pepper_id, last_four, scopes,
        created_at, revision) SELECT 'key' || substr(id, 4), id, 'proj' || substr(id, 4), 'ci',
        '', '', '0000', '["inference"]', created_at, 1 FROM tenant WHERE length(id) = 10""",
    f"""{NUMBERS} INSERT INTO usage_event (request_id, tenant_id, project_id, key_id, endpoint, model,
        base_model, adapter_version, tier, outcome, sequences, attempts, prompt_tokens,
        cached_tokens, completion_tokens, recomputed_tokens, started_at, ended_at, queue_s, ttft_s,
        total_s, engine_s, region, delivered)
        SELECT printf('req_%08d', i), printf('ten_%06d', i % :tenants),
        printf('proj_%06d', i % :tenants), printf('key_%06d', i % :tenants),
        '/v1/chat/completions', printf('adapter-%d', i % :tenants), 'tiny',
        printf('v%d', i % :tenants), CASE i % 7 WHEN 0 THEN 'batch' WHEN 1 THEN 'interactive'
        ELSE 'standard' END, CASE WHEN i % 1000 THEN 'stop' ELSE 'error' END, 1, 1, 100, 40, 10, 0,
        {MOMENT.format("i * 86400.0 * :days / :last")}, {NOW}, 0.01, 0.2, 2, 0.5, '', 1 FROM n""",
    SUMS.format(table="usage_quarter", bucket=QUARTER, since=f"-{DAYS + 1} days"),
    SUMS.format(table="usage_minute", bucket=FLOOR, since="-2 days"),
    f"""INSERT INTO latency_minute (tenant_id, bucket, model, tier, measure, bin, count)
        SELECT tenant_id, {FLOOR}, model, tier, column1, 5, count(*) FROM usage_event,
        (VALUES ('queue'), ('ttft'), ('tpot')) WHERE started_at >= datetime('now', '-2 days')
        GROUP BY 1, 2, 3, 4, 5""",
    f"""INSERT INTO rejection_count (tenant_id, minute, key_id, reason, "limit", count)
        SELECT tenant_id, {FLOOR}, key_id, 'exceeded', 'requests_per_minute:tenant:' || tenant_id,
        count(*) FROM usage_event WHERE rowid % 9 = 0 GROUP BY 1, 2, 3""",
    """INSERT INTO audit_event (id, at, tenant_id, action, object_type, object_id, actor_kind,
        actor_id, actor_name) SELECT 'aud' || substr(request_id, 4), started_at, tenant_id,
        'api_key.updated', 'api_key', key_id, 'person', 'per_' || (rowid % 50), 'somebody'
        FROM usage_event WHERE rowid % 10 = 0""",
    """INSERT INTO batch (id, tenant_id, project_id, key_id, rights, status, endpoint,
        completion_window, input_file_id, priority, total, completed, failed, running, input_tokens,
        cached_tokens, output_tokens, enqueued_tokens, epoch, created_at, expires_at)
        SELECT 'batch' || substr(request_id, 4), tenant_id, project_id, key_id, '{}', 'completed',
        '/v1/completions', '24h', 'file', 0, 10, 10, 0, 0, 0, 0, 0, 0, 0, started_at, started_at
        FROM usage_event WHERE rowid % 50 = 0""",
    f"""INSERT INTO webhook (id, tenant_id, url, events, sealed_secret, is_active, created_at,
        revision) SELECT 'wh' || substr(id, 4), id, 'https://example.com/', '["*"]', x'', 1, {NOW},
        1 FROM tenant WHERE length(id) = 10""",
    """INSERT INTO webhook_delivery (id, tenant_id, webhook_id, type, data, created_at, attempts)
        SELECT 'msg' || substr(request_id, 4), tenant_id, 'wh' || substr(tenant_id, 4),
        'batch.completed', '{}', started_at, 1 FROM usage_event WHERE rowid % 5 = 0""",
    """INSERT INTO adapter_name (tenant_id, name, current, last_number, is_enabled, is_pinned,
        defaults, created_at, updated_at, revision) SELECT id, 'support', 1, 1, 1, 0, '{}',
        created_at, created_at, 1 FROM tenant WHERE length(id) = 10""",
    """INSERT INTO adapter (id, tenant_id, name, number, version, rank, num_bytes, manifest,
        created_at, updated_at) SELECT 'adp' || substr(id, 4), id, 'support', 1, 'v', 8, 1,
        '{"base_model": null, "modules": [], "unadapted": [], "warnings": []}', created_at,
        created_at FROM tenant WHERE length(id) = 10""",
)


def fill(path: Path, share: float = 1.0) -> None:
    """`share` of the tenants and of the events, over the same month."""
    tenants, events = int(TENANTS * share), int(EVENTS * share)
    connection = sqlite3.connect(path)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
        connection.execute(f"PRAGMA {pragma}")
    indexes = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall()
    values = {"tenants": tenants, "last": events - 1, "days": DAYS}
    with connection:
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        for statement in STATEMENTS:
            connection.execute(statement, values)
        for _, statement in indexes:
            connection.execute(statement)
        connection.execute("ANALYZE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
