"""Plans, people, admin keys, service accounts, states of tenants, and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0006_people"
down_revision = "0005_batches"
branch_labels = None
depends_on = None


POSTGRES_APPEND_ONLY = """
CREATE FUNCTION audit_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$;
CREATE TRIGGER audit_event_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_event
EXECUTE FUNCTION audit_event_is_append_only();
"""
SQLITE_APPEND_ONLY = """
CREATE TRIGGER audit_event_no_{verb} BEFORE {verb} ON audit_event
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
"""


def upgrade() -> None:
    op.create_table(
        "plan",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_tier", sa.String(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("kv_share", sa.Double(), nullable=True),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plan")),
        sa.UniqueConstraint("name", name=op.f("uq_plan_name")),
    )
    op.create_table(
        "admin_key",
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("pepper_id", sa.String(), nullable=False),
        sa.Column("last_four", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_admin_key_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admin_key")),
    )
    with op.batch_alter_table("admin_key") as batch_op:
        batch_op.create_index("ix_admin_key_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "audit_event",
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("object_type", sa.String(), nullable=False),
        sa.Column("object_id", sa.String(), nullable=False),
        sa.Column("actor_kind", sa.String(), nullable=False),
        sa.Column("actor_id", sa.String(), nullable=False),
        sa.Column("actor_name", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("address", sa.String(), nullable=True),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    with op.batch_alter_table("audit_event") as batch_op:
        batch_op.create_index("ix_audit_event_tenant_id_id", ["tenant_id", "id"], unique=False)

    if op.get_bind().dialect.name == "postgresql":
        op.execute(POSTGRES_APPEND_ONLY)
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(SQLITE_APPEND_ONLY.format(verb=verb))

    op.create_table(
        "person",
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_person_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_person")),
        sa.UniqueConstraint("email", name=op.f("uq_person_email")),
    )
    with op.batch_alter_table("person") as batch_op:
        batch_op.create_index("ix_person_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "login_session",
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("person_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["person.id"], name=op.f("fk_login_session_person_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_login_session_tenant_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_session")),
        sa.UniqueConstraint("digest", name=op.f("uq_login_session_digest")),
    )
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.create_index("ix_login_session_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_login_session_person_id", ["person_id"], unique=False)
        batch_op.create_index("ix_login_session_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "one_time_link",
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("person_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("pepper_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["person_id"], ["person.id"], name=op.f("fk_one_time_link_person_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_one_time_link_tenant_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_one_time_link")),
    )
    with op.batch_alter_table("one_time_link") as batch_op:
        batch_op.create_index("ix_one_time_link_person_id", ["person_id"], unique=False)
        batch_op.create_index("ix_one_time_link_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "service_account",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_service_account_project_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_service_account_tenant_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_service_account")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_service_account_project_id_name")),
    )
    with op.batch_alter_table("service_account") as batch_op:
        batch_op.create_index("ix_service_account_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "key_use",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name=op.f("fk_key_use_key_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_key_use_tenant_id")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_key_use")),
    )
    with op.batch_alter_table("key_use") as batch_op:
        batch_op.create_index("ix_key_use_tenant_id", ["tenant_id"], unique=False)

    with op.batch_alter_table("api_key") as batch_op:
        batch_op.add_column(sa.Column("service_account_id", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("previous_digest", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("previous_pepper_id", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("allowed_models", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("allowed_networks", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))
        batch_op.create_foreign_key(
            batch_op.f("fk_api_key_service_account_id"),
            "service_account",
            ["service_account_id"],
            ["id"],
        )

    with op.batch_alter_table("project") as batch_op:
        batch_op.add_column(sa.Column("allowed_models", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))

    with op.batch_alter_table("tenant") as batch_op:
        batch_op.add_column(
            sa.Column("state", sa.String(), nullable=False, server_default="active")
        )
        batch_op.add_column(sa.Column("plan_id", sa.String(), nullable=True))
        batch_op.add_column(sa.Column("allowed_models", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("allowed_networks", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("allowed_regions", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("retention_days", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("revision", sa.Integer(), nullable=False, server_default="1"))
        batch_op.alter_column("weight", existing_type=sa.DOUBLE(), nullable=True)
        batch_op.alter_column("max_tier", existing_type=sa.VARCHAR(), nullable=True)
        batch_op.create_foreign_key(batch_op.f("fk_tenant_plan_id"), "plan", ["plan_id"], ["id"])


def downgrade() -> None:
    op.execute("UPDATE tenant SET weight = 1.0 WHERE weight IS NULL")
    op.execute("UPDATE tenant SET max_tier = 'interactive' WHERE max_tier IS NULL")
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_tenant_plan_id"), type_="foreignkey")
        batch_op.alter_column("max_tier", existing_type=sa.VARCHAR(), nullable=False)
        batch_op.alter_column("weight", existing_type=sa.DOUBLE(), nullable=False)
        batch_op.drop_column("revision")
        batch_op.drop_column("retention_days")
        batch_op.drop_column("allowed_regions")
        batch_op.drop_column("allowed_networks")
        batch_op.drop_column("allowed_models")
        batch_op.drop_column("plan_id")
        batch_op.drop_column("state")

    with op.batch_alter_table("project") as batch_op:
        batch_op.drop_column("revision")
        batch_op.drop_column("archived_at")
        batch_op.drop_column("allowed_models")

    with op.batch_alter_table("api_key") as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_api_key_service_account_id"), type_="foreignkey")
        batch_op.drop_column("revision")
        batch_op.drop_column("allowed_networks")
        batch_op.drop_column("allowed_models")
        batch_op.drop_column("previous_until")
        batch_op.drop_column("previous_pepper_id")
        batch_op.drop_column("previous_digest")
        batch_op.drop_column("service_account_id")

    with op.batch_alter_table("key_use") as batch_op:
        batch_op.drop_index("ix_key_use_tenant_id")

    op.drop_table("key_use")
    with op.batch_alter_table("service_account") as batch_op:
        batch_op.drop_index("ix_service_account_tenant_id")

    op.drop_table("service_account")
    with op.batch_alter_table("one_time_link") as batch_op:
        batch_op.drop_index("ix_one_time_link_tenant_id")
        batch_op.drop_index("ix_one_time_link_person_id")

    op.drop_table("one_time_link")
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.drop_index("ix_login_session_tenant_id")
        batch_op.drop_index("ix_login_session_person_id")
        batch_op.drop_index("ix_login_session_expires_at")

    op.drop_table("login_session")
    with op.batch_alter_table("person") as batch_op:
        batch_op.drop_index("ix_person_tenant_id")

    op.drop_table("person")
    with op.batch_alter_table("audit_event") as batch_op:
        batch_op.drop_index("ix_audit_event_tenant_id_id")

    op.drop_table("audit_event")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_event_is_append_only()")
    with op.batch_alter_table("admin_key") as batch_op:
        batch_op.drop_index("ix_admin_key_tenant_id")

    op.drop_table("admin_key")
    op.drop_table("plan")
