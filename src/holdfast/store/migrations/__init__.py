"""Alembic revisions and how they are run.

`upgrade` (and with it Alembic) is imported only when the stored revision is not the newest. Revisions run inside SQLite
for SQLite and are written out as SQL text for PostgreSQL, so one that must look at data does it in SQL, not in Python.
"""
