"""Deleting and erasing, on the writer's thread.

The session ends in one small transaction; the rows of its log, which may be many, are purged a few
thousand at a time, by the next process if this one dies. An erased session is also overwritten:
`erase`, then `purge_some` until it returns False, `rewrite`, and `finish`.
"""

from __future__ import annotations

from typing import Final

from limpet.errors import SessionDeleted, SessionErased
from limpet.model.keys import Key
from limpet.store import bodies
from limpet.store.ledger import buried, erased
from limpet.store.protocol import Erasure, Owner
from limpet.store.sqlite import ledger, rows
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.transactions import WriteConnection

PURGE_ROWS: Final = 2_000


def delete(writes: WriteConnection, key: Key, now_us: int) -> bool:
    """Turn a living session into a tombstone. Durable when it returns."""
    with writes.transaction():
        try:
            found = writes.reader.head(key)
        except (SessionDeleted, SessionErased):
            return False
        if found is None:
            return False
        sid, head = found
        writes.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
        crc = bodies.tomb_crc(head, now_us)
        writes.conn.execute(SQL["bury"], (now_us, crc, sid))
        ledger.enter(writes.conn, buried(crc))
        writes.conn.execute(SQL["add_purge"], (sid,))
        writes.cache.forget(key)
    writes.purging = True
    return True


def erase(
    writes: WriteConnection, key: Key, now_us: int, gone: frozenset[Owner] = frozenset()
) -> Erasure | None:
    """End a session, living or deleted, for good. Its rows are removed by `purge_some`.

    Raises Unforgotten unless its keys are among those that are gone.
    """
    with writes.transaction():
        row = writes.conn.execute(SQL["head"], (key.app, key.user, key.id)).fetchone()
        if row is None:
            return writes.reader.erasure(key)
        sid, head = row[0], rows.head_from(row)
        writes.codec.sealer.require_forgotten(head.uid, gone)
        erasure = Erasure(writes.reader.key_hash(key), head.version, head.link, now_us)
        writes.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
        tomb_crc = writes.conn.execute(SQL["tomb_crc"], (sid,)).get
        writes.conn.execute(SQL["drop_session"], (sid,))
        writes.conn.execute(SQL["add_erased"], rows.erased_row(erasure))
        crc, was_tomb = bodies.erasure_crc(erasure), row[-1] is not None
        ledger.enter(writes.conn, erased(crc, tomb_crc, was_tomb=was_tomb))
        writes.conn.execute(SQL["add_purge"], (sid,))
        writes.conn.execute(SQL["set_overwrite"])
        writes.cache.forget(key)
    return erasure


def purge_some(writes: WriteConnection) -> bool:
    """Remove some rows of the logs of ended sessions. False if none are left."""
    with writes.transaction():
        row = writes.conn.execute(SQL["next_purge"]).fetchone()
        if row is None:
            return False
        writes.conn.execute(SQL["purge_some"], (row[0], PURGE_ROWS))
        if writes.conn.changes() < PURGE_ROWS:
            writes.conn.execute(SQL["drop_snapshot"], row)
            writes.conn.execute(SQL["drop_purge"], row)
        return True


def is_unfinished(writes: WriteConnection) -> bool:
    """Whether something that was erased may still be in the files."""
    return writes.conn.execute(SQL["erasure_unfinished"]).fetchone() is not None


def rewrite(writes: WriteConnection) -> None:
    """Write the whole file again. SQLite overwrites what it deletes, but a page that was split or
    merged before may still hold a copy of a row in the part it does not use."""
    writes.conn.execute("VACUUM")


def finish(writes: WriteConnection) -> bool:
    """Empty the log file, which holds pages as they were before. False if somebody reads it."""
    if not writes.wal.truncate():
        return False
    with writes.transaction():
        writes.conn.execute(SQL["drop_overwrite"])
    return True
