"""Deleting and erasing sessions: what each leaves, entered in the ledger of ended sessions.

Runs inside the caller's transaction. A deleted session leaves its head as a tombstone; an erased
one leaves a row that knows its key only by a hash.
"""

from __future__ import annotations

from limpet.model.keys import Key
from limpet.store import bodies
from limpet.store.ledger import Ledger, buried, erased
from limpet.store.postgres import ledger, rows
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Erasure, Owner


async def delete(conn: Connection, key: Key) -> bool:
    """Leave a tombstone of the session. False if there is no such session."""
    await ledger.begin(conn)
    row = await conn.fetchrow(SQL["bury"], key.app, key.user, key.id)
    if row is None:
        return False
    crc = bodies.tomb_crc(rows.tombstone(key, row), row["deleted_us"])
    await conn.execute(SQL["put_tomb"], row["sid"], crc)
    await conn.execute(SQL["remove_rows"], row["sid"])
    await ledger.enter(conn, row["sid"], buried(crc))
    return True


async def erase(
    conn: Connection, reader: Reader, key: Key, gone: frozenset[Owner]
) -> Erasure | None:
    """Leave nothing but proof of the erasure. None if there never was such a session.

    Raises Unforgotten unless its keys are among those that are gone.
    """
    await ledger.begin(conn)
    row = await conn.fetchrow(SQL["unmake"], key.app, key.user, key.id)
    if row is None:
        return await reader.erasure(conn, key)
    reader.codec.sealer.require_forgotten(row["uid"], gone)
    await conn.execute(SQL["remove_rows"], row["sid"])
    erasure = Erasure(reader.key_hash(key), row["version"], row["link"], row["at_us"])
    crc = bodies.erasure_crc(erasure)
    before = await conn.fetchrow(SQL["erased_crc"], erasure.key_hash)
    proof = (erasure.key_hash, erasure.version, erasure.link, erasure.erased_us)
    await conn.execute(SQL["put_erased"], *proof, crc)
    change = erased(crc, row["tomb_crc"], was_tomb=row["deleted_us"] is not None)
    if before is not None:  # erased, created again in that very moment, and now replaced
        change = change.plus(Ledger(0, 0, -1, -(before["crc"] or 0)))
    await ledger.enter(conn, row["sid"], change)
    return erasure
