"""All tables together: what a database must hold. Whoever needs every table imports this, not the parts."""

from __future__ import annotations

from holdfast.store import archive_tables, group_tables
from holdfast.store.tables import metadata

ONLY_SQLITE = archive_tables.ONLY_SQLITE
# Whose tables are in `metadata` once they are imported.
PARTS = (archive_tables, group_tables)

__all__ = ["ONLY_SQLITE", "PARTS", "metadata"]
