"""A turn writes fewer index pages: one index of a thread's messages less, none of messages without a step, and, on
SQLite, tables that are stored in the order of their keys instead of apart from them (decision 35)."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_STEP: Final = sa.text("step_id IS NOT NULL")
_WINDOW: Final = sa.text("context_position IS NOT NULL")


def upgrade() -> None:
    op.drop_index("messages_of_step", table_name="messages")
    op.create_index("messages_of_step", "messages", ["step_id", "seq"], sqlite_where=_STEP, postgresql_where=_STEP)
    if op.get_context().dialect.name == "sqlite":
        _rebuild_all(["message_id", "thread_id"], with_rowid=False)
        return
    op.drop_constraint("a_message_once_per_thread", "thread_messages")
    op.create_unique_constraint("a_message_once_per_thread", "thread_messages", ["message_id", "thread_id"])
    op.drop_index("thread_messages_by_message", table_name="thread_messages")


def downgrade() -> None:
    op.drop_index("messages_of_step", table_name="messages")
    op.create_index("messages_of_step", "messages", ["step_id", "seq"])
    if op.get_context().dialect.name == "sqlite":
        _rebuild_all(["thread_id", "message_id"], with_rowid=True)
    else:
        op.drop_constraint("a_message_once_per_thread", "thread_messages")
        op.create_unique_constraint("a_message_once_per_thread", "thread_messages", ["thread_id", "message_id"])
    op.create_index("thread_messages_by_message", "thread_messages", ["message_id"])


def _rebuild_all(once_per_thread: list[str], *, with_rowid: bool) -> None:
    _rebuild(
        "thread_messages",
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.Text(), sa.ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
        sa.Column("context_position", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("thread_id", "position"),
        sa.UniqueConstraint(*once_per_thread, name="a_message_once_per_thread"),
        with_rowid=with_rowid,
    )
    window = ["thread_id", "context_position"]
    op.create_index("thread_window", "thread_messages", window, unique=True, sqlite_where=_WINDOW)
    _rebuild(
        "run_otids",
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("otid", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "otid", "run_id"),
        with_rowid=with_rowid,
    )
    op.create_index("run_otids_of_run", "run_otids", ["run_id"])


def _rebuild(name: str, *parts: sa.Column[str] | sa.Column[int] | sa.Constraint, with_rowid: bool) -> None:
    """The copy is made under the table's own name: SQLite would quote a name that it was given later."""
    op.rename_table(name, f"old_{name}")
    op.create_table(name, *parts, sqlite_with_rowid=with_rowid)
    columns = ", ".join(part.name for part in parts if isinstance(part, sa.Column))
    op.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM old_{name}")
    op.drop_table(f"old_{name}")  # its indexes go with it, so that their names are free
