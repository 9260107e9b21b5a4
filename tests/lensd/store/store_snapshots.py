"""What a store shows, in a form that can be compared."""

from lensd_collectors.rows import TABLES

from lensd.store.interface import Store

Snapshot = dict[str, list[str]]


def snapshot(store: Store) -> Snapshot:
    """Every row of every public table, in no order that a file could change."""
    with store.cursor() as cursor:
        return {table: sorted(map(repr, cursor.execute(f"SELECT * FROM {table}").fetchall())) for table in TABLES}
