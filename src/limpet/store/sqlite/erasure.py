"""Deleting and erasing, on the writer's thread.

The session ends in one small transaction; the rows of its log, which may be many, are purged a few
thousand at a time, by the next process if this one dies. An erased session is also overwritten:
`erase`, then `purge_some` until it returns False, `rewrite`, and `finish`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from limpet.errors import SessionDeleted, SessionErased, SessionHasForks
from limpet.model import (
    Head,
    Key,
    buried as tombstone,
    checkpoints_of,
    forgotten_with,
    is_reserved,
    owner_of,
)
from limpet.store.coding.bodies import erasure_crc
from limpet.store.coding.seal import scope_owner
from limpet.store.ledger import Ledger, buried, erased, unburied
from limpet.store.protocol import Ending, Erasure, Erasures, Exchange, Forks, KeyOwner, Standing
from limpet.store.sqlite import blobs, ledger, rows
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection

PURGE_ROWS: Final = 2_000


class _Ended(msgspec.Struct, frozen=True):
    """A session under a key that is to be erased: the living one, or a deleted one."""

    sid: int
    head: Head
    tomb_crc: int | None


def delete(
    writes: SQLiteWriteConnection, key: Key, now_us: int, ending: Ending, at: Standing | None
) -> bool:
    """Turn a living session into a tombstone, if it stands there. Durable when it returns."""
    with writes.transaction():
        if at is not None and not _stands(writes, key, at):
            return False
        deleted = _delete(writes, key, now_us, ending)
        if deleted and not is_reserved(key.app):
            _delete(writes, checkpoints_of(key), now_us, ending)
    writes.purging = writes.purging or deleted
    return deleted


def _stands(writes: SQLiteWriteConnection, key: Key, at: Standing) -> bool:
    stands, log = _living(writes, key), _living(writes, checkpoints_of(key))
    checkpoints = 0 if log is None else log[1].version
    return stands is not None and at.holds(stands[1].uid, stands[1].version, checkpoints)


class _NotExchanged(Exception):
    """A session does not stand where it should: the transaction is rolled back."""


def exchange(writes: SQLiteWriteConnection, exchanges: Sequence[Exchange], now_us: int) -> bool:
    """Give keys of sessions to other sessions, all or nothing. Durable when it returns."""
    try:
        with writes.transaction():
            for each in exchanges:
                _exchange(writes, each, now_us)
    except BaseException as error:
        for each in exchanges:  # what was read meanwhile has been rolled back
            for key in (each.key, checkpoints_of(each.key), *([each.by] if each.by else [])):
                writes.cache.doubt(key)
        if isinstance(error, _NotExchanged):
            return False
        raise
    for each in exchanges:
        writes.cache.forget(checkpoints_of(each.key))
        if each.by is None:
            writes.cache.forget(each.key)
        else:
            writes.cache.rename(each.by, each.key)
    writes.purging = True
    return True


def _exchange(writes: SQLiteWriteConnection, each: Exchange, now_us: int) -> None:
    living, fence = _living(writes, each.key), 0
    if each.at is not None:
        if living is None or not _stands(writes, each.key, each.at):
            raise _NotExchanged
        fence = living[1].fence
        _delete(writes, each.key, now_us, "moved")
        if not is_reserved(each.key.app):
            _delete(writes, checkpoints_of(each.key), now_us, "moved")
    elif living is not None:
        raise _NotExchanged
    if each.by is None:
        return
    taking = _living(writes, each.by)
    if taking is None or writes.reader.erasure(writes.reader.key_hash(each.key)) is not None:
        raise _NotExchanged
    if each.by_at is not None and not _stands(writes, each.by, each.by_at):
        raise _NotExchanged
    sid, head = taking
    after = msgspec.structs.replace(head, key=each.key, fence=max(head.fence, fence))
    writes.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
    row = (after.key.app, after.key.user, after.key.id, after.fence, sid)
    held = writes.reader.holds(sid, head)
    writes.conn.execute(SQL["take_key"], row)
    if writes.codec.marks and held:  # the keys vouch for its new key, too
        writes.conn.execute(SQL["set_mac"], (writes.codec.head_mac(after), sid))
    writes.conn.executemany(SQL["add_label"], rows.label_rows(after, sid))


def _living(writes: SQLiteWriteConnection, key: Key) -> tuple[int, Head] | None:
    try:
        return writes.reader.head(key)
    except (SessionDeleted, SessionErased):
        return None


def _delete(writes: SQLiteWriteConnection, key: Key, now_us: int, ending: Ending) -> bool:
    living = _living(writes, key)
    if living is None:
        return False
    sid, head = living
    parent = writes.conn.execute(SQL["parent_of"], (sid,)).get
    row = rows.tombstone_row(sid, tombstone(head, now_us, ending), parent)
    _end(writes, sid, head)
    writes.conn.execute(SQL["add_tombstone"], row)
    ledger.enter(writes.conn, buried(row[-1]))
    return True


def unpin(writes: SQLiteWriteConnection, key: Key, seqs: Sequence[int]) -> None:
    """Let go of pinned snapshots: from now on the log alone gives these states."""
    with writes.transaction():
        sid, _ = writes.reader.living(key)
        writes.conn.executemany(SQL["drop_pinned"], [(sid, seq) for seq in seqs])


def erase(
    writes: SQLiteWriteConnection,
    key: Key,
    now_us: int,
    forks: Forks,
    gone: frozenset[KeyOwner] = frozenset(),
) -> Erasure | None:
    """End a session, living or deleted, for good. Its rows are removed by `purge_some`.

    Raises Unforgotten unless the keys of what goes are among those that are gone.
    """
    with writes.transaction():
        erasure = _erase(writes, key, now_us, forks, gone)
    writes.purging = True
    return erasure


def erase_user(
    writes: SQLiteWriteConnection,
    app: str,
    user: str,
    now_us: int,
    gone: frozenset[KeyOwner] = frozenset(),
) -> Erasures:
    """End all that belongs to a user for good, in one transaction. Raises as `erase` does."""
    with writes.transaction():
        asked = (app, user, owner_of(app, user))
        owned: Any = writes.conn.execute(SQL["user_sessions"], asked).fetchall()
        keys = [Key(*row) for row in owned]
        _require_forgotten(writes, keys, gone, scope_owner(app, user))
        ends = [end for key in keys for end in _ends(writes, key)]
        left = [fork for fork in _forks(writes, ends) if fork not in set(keys)]
        done = [_erase(writes, key, now_us, "keep", gone) for key in keys]
        certificates = [each for each in done if each is not None]
        names = int(writes.conn.execute(SQL["count_user_names"], (app, user)).get)
        writes.conn.execute(SQL["drop_user_names"], (app, user))
        mark = writes.reader.user_hash(app, user)
        before = writes.reader.erasure(mark)
        own = {writes.reader.key_hash(key) for key in keys if not is_reserved(key.app)}
        whole = Erasures.of(mark, certificates, own, at_us=now_us, names=names, forks=left)
        if certificates or names or before is None:
            _certify(writes, whole.user)
            writes.conn.execute(SQL["set_overwrite"])
        else:
            whole = msgspec.structs.replace(whole, user=before)
        writes.cache.clear()
    writes.purging = True
    return whole


def _require_forgotten(
    writes: SQLiteWriteConnection, keys: Sequence[Key], gone: frozenset[KeyOwner], *more: KeyOwner
) -> None:
    logs = [log for key in keys for log in forgotten_with(key)]
    uids = [end.head.uid for key in (*keys, *logs) for end in _ends(writes, key)]
    writes.codec.sealer.require_forgotten([*uids, *more], gone)


def _erase(
    writes: SQLiteWriteConnection, key: Key, now_us: int, forks: Forks, gone: frozenset[KeyOwner]
) -> Erasure | None:
    ends = _ends(writes, key)
    mark = writes.reader.key_hash(key)
    if not ends:
        return writes.reader.erasure(mark)
    children = [fork for fork in _forks(writes, ends) if fork != key]
    if children and forks == "refuse":
        raise SessionHasForks(key, tuple(children))
    below = _descent(writes, key)[1:] if forks == "erase" else []
    _require_forgotten(writes, [key, *below], gone)
    for each in below:
        _forget(writes, each, now_us, 0)
    return _forget(writes, key, now_us, len(children) if forks == "keep" else 0)


def _forget(writes: SQLiteWriteConnection, key: Key, now_us: int, forks_kept: int) -> Erasure:
    """End every session that has this key, and put down its certificate."""
    ends, mark = _ends(writes, key), writes.reader.key_hash(key)
    for end in ends:
        writes.conn.execute(SQL["orphan_forks"], (end.sid,))
        writes.conn.execute(SQL["orphan_tombstones"], (end.sid,))
        _end(writes, end.sid, end.head)
        if end.tomb_crc is not None:
            writes.conn.execute(SQL["drop_tombstone"], (end.sid,))
            ledger.enter(writes.conn, unburied(end.tomb_crc))
    last = ends[-1].head
    erasure = Erasure(mark, last.version, last.link, now_us, forks_kept)
    _certify(writes, erasure)
    writes.conn.execute(SQL["set_overwrite"])
    for beside in forgotten_with(key):
        if _ends(writes, beside):
            _forget(writes, beside, now_us, 0)
    return erasure


def _ends(writes: SQLiteWriteConnection, key: Key) -> list[_Ended]:
    """Every session that has this key, the living one last."""
    names = (key.app, key.user, key.id)
    dead: Any = writes.conn.execute(SQL["tombstones_of"], names).fetchall()
    ends = [_Ended(row[0], rows.tombstone_from(row[:-1]), row[-1]) for row in dead]
    row = writes.conn.execute(SQL["head"], names).fetchone()
    return ends if row is None else [*ends, _Ended(row[0], rows.head_from(row), None)]


def _forks(writes: SQLiteWriteConnection, ends: Sequence[_Ended]) -> list[Key]:
    """The living sessions that begin on a state of these, also through one that was deleted."""
    keys: list[Key] = []
    for end in ends:
        rows_: Any = writes.conn.execute(SQL["forks_of"], (end.sid,)).fetchall()
        keys += [Key(*row) for row in rows_]
    return keys


def _descent(writes: SQLiteWriteConnection, key: Key) -> list[Key]:
    """The key, and those of all forks of what has it, of their forks, and so on."""
    descent = {key: None}
    walk = [key]
    for each in walk:  # grows as it is walked
        new = [fork for fork in _forks(writes, _ends(writes, each)) if fork not in descent]
        descent |= dict.fromkeys(new)
        walk += new
    return list(descent)


def _end(writes: SQLiteWriteConnection, sid: int, head: Head) -> None:
    """The session is no longer among the living; its rows, and those that only it read, go."""
    from limpet.store.sqlite.reading import feed

    feed.retire(writes.conn)
    parent = writes.conn.execute(SQL["parent_of"], (sid,)).get
    writes.conn.executemany(SQL["drop_label"], rows.label_rows(head, sid))
    writes.conn.execute(SQL["drop_session"], (sid,))
    writes.conn.execute(SQL["add_purge"], (sid,))
    if parent is not None:
        writes.conn.execute(SQL["add_purge"], (parent,))
    writes.cache.forget(head.key)


def _certify(writes: SQLiteWriteConnection, erasure: Erasure) -> None:
    """Put down the certificate; a user may be erased again, and has one."""
    before = writes.conn.execute(SQL["erased_crc"], (erasure.key_hash,)).get
    writes.conn.execute(SQL["add_erased"], rows.erased_row(erasure))
    change = erased(erasure_crc(erasure))
    gone = Ledger() if before is None else Ledger(0, 0, -1, -before)
    ledger.enter(writes.conn, change.plus(gone))


def purge_some(writes: SQLiteWriteConnection) -> bool:
    """Remove some rows of the logs of ended sessions. False if none are left.

    What a fork still reads stays. When it has all gone, so may rows of the parent's.
    """
    conn = writes.conn
    with writes.transaction():
        row = conn.execute(SQL["next_purge"]).fetchone()
        if row is None:
            return False
        sid = row[0]
        keep = conn.execute(SQL["kept_below"], (sid,)).get
        conn.execute(SQL["purge_some"], (sid, keep, PURGE_ROWS))
        if conn.changes() < PURGE_ROWS and not blobs.purge(conn, sid, keep):
            conn.execute(SQL["drop_snapshots"], (sid, keep))
            conn.execute(SQL["purge_segments"], (sid, keep))
            conn.execute(SQL["purge_segment_ids"], (sid, keep))
            conn.execute(SQL["drop_purge"], (sid,))
            if not keep:
                conn.execute(SQL["drop_base"], (sid,))
                parent = conn.execute(SQL["parent_of"], (sid,)).get
                conn.execute(SQL["let_go"], (sid,))
                if parent is not None:
                    conn.execute(SQL["add_purge"], (parent,))
        return True


def is_unfinished(writes: SQLiteWriteConnection) -> bool:
    """True if something that was erased may still be in the files."""
    return writes.conn.execute(SQL["erasure_unfinished"]).fetchone() is not None


def rewrite(writes: SQLiteWriteConnection) -> None:
    """Write the whole file again. SQLite overwrites what it deletes, but a page that was split or
    merged before may still hold a copy of a row in the part it does not use."""
    writes.conn.execute("VACUUM")


def finish(writes: SQLiteWriteConnection) -> bool:
    """Empty the log file, which holds pages as they were before. False if somebody reads it."""
    if not writes.wal.truncate():
        return False
    with writes.transaction():
        writes.conn.execute(SQL["drop_overwrite"])
    return True
