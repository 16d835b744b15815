"""How Alembic reaches the database: on a given connection, or by writing SQL for a dialect."""

from __future__ import annotations

from alembic import context

from holdfast.store.schema import metadata


def run() -> None:
    attributes = context.config.attributes
    if context.is_offline_mode():
        context.configure(dialect_name=attributes["dialect"], target_metadata=metadata, literal_binds=True)
    else:
        context.configure(
            connection=attributes["connection"],
            target_metadata=metadata,
            render_as_batch=True,
        )
    with context.begin_transaction():
        context.run_migrations()


run()
