"""Deleting and erasing, on the writer's thread.

The session ends in one small transaction; the rows of its log, which may be many, are removed a
few thousand at a time, and by the next process if this one dies.
"""

from __future__ import annotations

from limpet.errors import SessionDeleted, SessionErased
from limpet.model.keys import Key
from limpet.store import bodies
from limpet.store.ledger import buried, erased
from limpet.store.protocol import Erasure
from limpet.store.sqlite import ledger, rows
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.writer import Writer


def delete(writer: Writer, key: Key, now_us: int) -> bool:
    """Turn a living session into a tombstone. Durable when it returns."""
    with writer.transaction():
        try:
            found = writer.reader.head(key)
        except (SessionDeleted, SessionErased):
            return False
        if found is None:
            return False
        sid, head = found
        writer.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
        crc = bodies.tomb_crc(head, now_us)
        writer.conn.execute(SQL["bury"], (now_us, crc, sid))
        ledger.enter(writer.conn, buried(crc))
        writer.conn.execute(SQL["add_purge"], (sid,))
        writer.cache.forget(key)
    writer.note_purge()
    return True


def erase(writer: Writer, key: Key, now_us: int) -> Erasure | None:
    """End a session, living or deleted, for good. Its rows are removed by `erase_some`."""
    with writer.transaction():
        row = writer.conn.execute(SQL["head"], (key.app, key.user, key.id)).fetchone()
        if row is None:
            return writer.reader.erasure(key)
        sid, head = row[0], rows.head_from(row)
        erasure = Erasure(writer.reader.key_hash(key), head.version, head.link, now_us)
        writer.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
        tomb_crc = writer.conn.execute(SQL["tomb_crc"], (sid,)).get
        writer.conn.execute(SQL["drop_session"], (sid,))
        writer.conn.execute(SQL["add_erased"], rows.erased_row(erasure))
        crc, was_tomb = bodies.erasure_crc(erasure), row[-1] is not None
        ledger.enter(writer.conn, erased(crc, tomb_crc, was_tomb=was_tomb))
        writer.conn.execute(SQL["add_purge"], (sid,))
        writer.conn.execute("INSERT OR REPLACE INTO meta VALUES ('overwrite', 1)")
        writer.cache.forget(key)
    return erasure


def is_unfinished(writer: Writer) -> bool:
    """Whether something that was erased may still be in the files."""
    sql = "SELECT 1 FROM meta WHERE name = 'overwrite' UNION ALL SELECT 1 FROM purges"
    return writer.conn.execute(sql).fetchone() is not None


def rewrite(writer: Writer) -> None:
    """Write the whole file anew. SQLite overwrites what it deletes, but a page that was split or
    merged before may still hold a copy of a row in the part it does not use."""
    writer.conn.execute("VACUUM")


def finish(writer: Writer) -> bool:
    """Empty the log file, which holds pages as they were before. False if somebody reads it."""
    if not writer.wal.truncate():
        return False
    with writer.transaction():
        writer.conn.execute("DELETE FROM meta WHERE name = 'overwrite'")
    return True
