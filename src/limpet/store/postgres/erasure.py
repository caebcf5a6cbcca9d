"""Deleting and erasing sessions: what each leaves, entered in the ledger of ended sessions.

Runs inside the caller's transaction. A deleted session leaves a tombstone, and as much of its log
as its forks read; an erased one leaves a row that knows its key only by a hash. Sessions are locked
in the order of their keys, as commits lock them, before one of them ends: the others are those that
it began on, and those that began on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from limpet.errors import SessionHasForks
from limpet.model import Key, checkpoints_of, forgotten_with, is_reserved, owner_of
from limpet.store.coding.bodies import erasure_crc, tomb_crc
from limpet.store.coding.seal import scope_owner
from limpet.store.ledger import Ledger, buried, erased, unburied
from limpet.store.postgres import ledger, rows
from limpet.store.postgres.reading.reader import LoadRequest, PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Ending, Erasure, Erasures, Exchange, Forks, KeyOwner, Standing

KEYS_AT_ONCE: Final = 1_000  # of a user who is erased, by one round of statements


async def delete(conn: Connection, key: Key, ending: Ending, at: Standing | None) -> bool:
    """Leave a tombstone of the session. False if it is missing or has moved past `at`."""
    await ledger.begin(conn)
    await _lock_around(conn, _with_beside([key]))
    if at is not None and not await _stands(conn, key, at):
        return False
    deleted = await _delete(conn, key, ending)
    if deleted and not is_reserved(key.app):
        await _delete(conn, checkpoints_of(key), ending)
    return deleted


async def _stands(conn: Connection, key: Key, at: Standing) -> bool:
    row = await conn.fetchrow(SQL["standing"], *rows.key_names(key))
    log = await conn.fetchrow(SQL["standing"], *rows.key_names(checkpoints_of(key)))
    checkpoints = 0 if log is None else log["version"]
    return row is not None and at.holds(row["uid"], row["version"], checkpoints)


class NotExchanged(Exception):
    """A session does not stand where it should: the transaction is rolled back."""


async def exchange(conn: Connection, reader: PostgresReader, exchanges: Sequence[Exchange]) -> None:
    """Give keys of sessions to other sessions, in the caller's transaction. Raises NotExchanged."""
    await ledger.begin(conn)
    given = [each.key for each in exchanges]
    taking = [each.by for each in exchanges if each.by is not None]
    await _lock_around(conn, list(dict.fromkeys([*_with_beside(given), *taking])))
    for each in exchanges:
        await _exchange(conn, reader, each)


async def _exchange(conn: Connection, reader: PostgresReader, each: Exchange) -> None:
    key, fence = each.key, 0
    row = await conn.fetchrow(SQL["standing"], *rows.key_names(key))
    if each.at is not None:
        if row is None or not await _stands(conn, key, each.at):
            raise NotExchanged
        fence = row["fence"]
        await _delete(conn, key, "moved")
        if not is_reserved(key.app):
            await _delete(conn, checkpoints_of(key), "moved")
    elif row is not None:
        raise NotExchanged
    if each.by is None:
        return
    if await reader.erasure(conn, key) is not None:
        raise NotExchanged
    if each.by_at is not None and not await _stands(conn, each.by, each.by_at):
        raise NotExchanged
    taking = None
    if reader.codec.marks:
        (taking,) = await reader.load_many(conn, [each.by], LoadRequest())
    sid = await conn.fetchval(
        SQL["take_key"], *rows.key_names(each.by), *rows.key_names(key), fence
    )
    if sid is None:
        raise NotExchanged
    if taking is not None and taking.holds:  # the keys vouch for its new key, too
        head = replace(taking.live.fold.head, key=key)
        mac = reader.codec.head_mac(head)
        await conn.execute(SQL["set_mac"], sid, head.version, head.link, mac)
    await conn.execute(SQL["take_labels"], sid, key.app, key.user)


async def _delete(conn: Connection, key: Key, ending: Ending) -> bool:
    row = await conn.fetchrow(SQL["unmake"], *rows.key_names(key))
    if row is None:
        return False
    sid, tomb = row["sid"], rows.unburied(key, row, row["now_us"], ending)
    kept = (tomb.uid, tomb.version, tomb.link, tomb.created_us, tomb.updated_us, tomb.active_us)
    crc = tomb_crc(tomb)
    ended = (tomb.floor, row["parent"], tomb.deleted_us, tomb.ending, crc)
    await conn.execute(SQL["put_tomb"], sid, *rows.key_names(key), *kept, *ended)
    await conn.execute(SQL["remove_labels"], sid)
    await conn.execute(SQL["purge"], sid)
    await ledger.enter(conn, sid, buried(crc))
    return True


async def forks(conn: Connection, key: Key) -> tuple[Key, ...]:
    """The living sessions that began on the one of this key, or on those deleted under it."""
    sids = [row["sid"] for row in await conn.fetch(SQL["sids"], *rows.key_names(key))]
    return tuple(await _forks(conn, sids))


async def erase(
    conn: Connection, reader: PostgresReader, key: Key, forks: Forks, gone: frozenset[KeyOwner]
) -> Erasure | None:
    """Leave nothing but proof of the erasure. None if there never was such a session.

    Raises Unforgotten unless the keys of what goes are among those that are gone.
    """
    await ledger.begin(conn)
    await _lock_around(conn, _with_beside([key]))
    erasing = _Erasing(conn, reader, gone)
    erasure = await erasing.erase(key, forks)
    await ledger.enter(conn, erasing.sid, erasing.change)
    return erasure


async def erase_user(
    conn: Connection, reader: PostgresReader, app: str, user: str, gone: frozenset[KeyOwner]
) -> Erasures:
    """Leave nothing but proof that a user was erased. Raises Unforgotten as erase does."""
    await ledger.begin(conn)
    asked = (app, user, owner_of(app, user))
    keys = [Key(*row) for row in await conn.fetch(SQL["keys_of_user"], *asked)]
    near = await _lock_around(conn, keys)
    uids = [row["uid"] for row in await conn.fetch(SQL["uids_of"], *_columns(keys))]
    reader.codec.sealer.require_forgotten([*uids, scope_owner(app, user)], gone)
    left = tuple([fork for fork in near if fork not in set(keys)])
    erasing = _Erasing(conn, reader, gone)
    certificates = await erasing.erase_all(keys)
    names = await _remove_names(conn, app, user)
    mark = reader.user_hash(app, user)
    before = await reader.certificate(conn, mark)
    own = {reader.key_hash(key) for key in keys if not is_reserved(key.app)}
    now_us = await conn.fetchval(SQL["now"])
    done = Erasures.of(mark, certificates, own, at_us=now_us, names=names, forks=left)
    if certificates or names or before is None:
        await erasing.certify(done.user)
    else:
        done = replace(done, user=before)
    await ledger.enter(conn, erasing.sid, erasing.change)
    return done


class _Erasing:
    """The erasures of one transaction. Sums up the change of the ledger, which is entered last."""

    def __init__(self, conn: Connection, reader: PostgresReader, gone: frozenset[KeyOwner]) -> None:
        self._conn, self._reader, self._gone = conn, reader, gone
        self.change, self.sid = Ledger(), 0

    async def erase(self, key: Key, forks: Forks) -> Erasure | None:
        children = [fork for fork in await self._forks(key) if fork != key]
        if children and forks == "refuse":
            raise SessionHasForks(key, tuple(children))
        if forks != "erase":
            return await self._forget(key, len(children))
        below = await self._descent(key)
        await _lock(self._conn, _with_beside(below))
        for each in (await self._descent(key))[1:]:
            await self._forget(each, 0)
        return await self._forget(key, 0)

    async def _forks(self, key: Key) -> list[Key]:
        """Return the forks of all that have this key, once nobody can begin on them any more."""
        # Tombstones first: who takes the key again looks at them, and waits here or is seen below.
        tombs = await self._conn.fetch(SQL["lock_tombs"], *rows.key_names(key))
        living = await self._conn.fetch(SQL["lock"], *_columns([key]))
        return await _forks(self._conn, [row["sid"] for row in [*tombs, *living]])

    async def _descent(self, key: Key) -> list[Key]:
        """The key, and those of all forks of what has it, of their forks, and so on."""
        descent = [key]
        for each in descent:  # grows as it is walked
            descent += [fork for fork in await self._forks(each) if fork not in descent]
        return descent

    async def _forget(self, key: Key, forks_kept: int) -> Erasure | None:
        """End every session that has this key, and put down its certificate."""
        last = await self._remove(key)
        if last is None:
            return await self._reader.erasure(self._conn, key)
        proof = (last["version"], last["link"], last["now_us"], forks_kept)
        erasure = Erasure(self._reader.key_hash(key), *proof)
        await self.certify(erasure)
        for beside in forgotten_with(key):
            await self._forget(beside, 0)
        return erasure

    async def _remove(self, key: Key) -> Any:
        """Remove all that have this key; the row of the last of them."""
        conn = self._conn
        dead = await conn.fetch(SQL["remove_tombs"], *rows.key_names(key))
        living = await conn.fetch(SQL["unmake"], *rows.key_names(key))
        if not dead and not living:
            return None
        uids = [row["uid"] for row in [*dead, *living]]
        self._reader.codec.sealer.require_forgotten(uids, self._gone)
        await conn.execute(SQL["remove_rows"], [row["sid"] for row in [*dead, *living]])
        for row in [*dead, *living]:
            if row["parent"] is not None:
                await conn.execute(SQL["purge"], row["parent"])
        for row in dead:
            self.change = self.change.plus(unburied(row["crc"]))
        last = max([*dead, *living], key=lambda row: row["sid"])
        self.sid = last["sid"]
        return last

    async def certify(self, *erasures: Erasure) -> None:
        """Put down certificates; a user may be erased again, and has one."""
        crcs = [erasure_crc(each) for each in erasures]
        hashes = [each.key_hash for each in erasures]
        for row in await self._conn.fetch(SQL["erased_crcs"], hashes):
            self.change = self.change.plus(Ledger(0, 0, -1, -row["crc"]))
        columns = [list(column) for column in zip(*[e.stored for e in erasures], strict=True)]
        await self._conn.execute(SQL["put_erased"], *columns, crcs)
        for crc in crcs:
            self.change = self.change.plus(erased(crc))

    # --- many at once --------------------------------------------------------------------------

    async def erase_all(self, keys: list[Key]) -> tuple[Erasure, ...]:
        """Erase all that have these keys, a bounded number of them by one round of statements.
        Their forks keep the state they began on."""
        erasures: dict[bytes, Erasure] = {}
        for at in range(0, len(keys), KEYS_AT_ONCE):
            some = await self._erase_some(keys[at : at + KEYS_AT_ONCE])
            erasures |= {each.key_hash: each for each in some}
        return tuple(erasures.values())

    async def _erase_some(self, keys: list[Key]) -> list[Erasure]:
        # The logs beside them are among the keys, but for one that was begun a moment ago.
        conn, columns = self._conn, _columns(dict.fromkeys(_with_beside(keys)))
        tombs = await conn.fetch(SQL["lock_tombs_of"], *columns)  # first: see `_forks`
        living = await conn.fetch(SQL["lock"], *columns)
        sids = [row["sid"] for row in [*tombs, *living]]
        forks = await self._forks_of(sids)
        gone = [*await conn.fetch(SQL["remove_tombs_of"], *columns)]
        for row in gone:
            self.change = self.change.plus(unburied(row["crc"]))
        gone += await conn.fetch(SQL["unmake_all"], *columns)
        self._reader.codec.sealer.require_forgotten([row["uid"] for row in gone], self._gone)
        await conn.execute(SQL["remove_rows"], [row["sid"] for row in gone])
        parents = {row["parent"] for row in gone} - {None}
        await conn.execute(SQL["purge_all"], sorted(parents))
        return await self._certify_keys(keys, gone, forks)

    async def _forks_of(self, sids: list[int]) -> dict[int, set[Key]]:
        """The living forks of each of these sessions."""
        forks: dict[int, set[Key]] = {}
        for row in await self._conn.fetch(SQL["forks_of_each"], sids):
            fork = Key(row["app"], row["owner"], row["id"])
            forks.setdefault(row["root"], set()).add(fork)
        return forks

    async def _certify_keys(
        self, keys: list[Key], gone: list[Any], forks: dict[int, set[Key]]
    ) -> list[Erasure]:
        """Put down the certificate of each key; of one that has gone meanwhile, there is one."""
        by_key: dict[Key, list[Any]] = {}
        for row in gone:
            by_key.setdefault(Key(row["app"], row["owner"], row["id"]), []).append(row)
        made: list[Erasure] = []
        earlier: set[Key] = set()
        for key, its in by_key.items():
            last = max(its, key=lambda row: row["sid"])
            self.sid = max(self.sid, last["sid"])
            earlier.add(key)
            kept = set().union(*[forks.get(row["sid"], set()) for row in its]) - earlier
            proof = (last["version"], last["link"], last["now_us"], len(kept))
            made.append(Erasure(self._reader.key_hash(key), *proof))
        if made:
            await self.certify(*made)
        before = [self._reader.key_hash(key) for key in keys if key not in by_key]
        fetched = await self._conn.fetch(SQL["erased_all"], before) if before else []
        return [*made, *[Erasure(*row) for row in fetched]]


async def _remove_names(conn: Connection, app: str, user: str) -> int:
    """Remove every version of a user's names, and how many there were.

    Under the locks by which they are written. Who adds one has the lock on the name '': once that
    is held there are no more to come.
    """
    held: set[str] = set()
    while True:
        fetched = {row["name"] for row in await conn.fetch(SQL["names_of_user"], app, user)}
        if held and fetched <= held:
            await conn.execute(SQL["remove_names"], app, user)
            return len(fetched)
        held |= {"", *fetched}
        names = sorted(held)
        many = len(names)
        await conn.execute(SQL["lock_names"], [app] * many, [user] * many, names)


async def _lock_around(conn: Connection, keys: list[Key]) -> list[Key]:
    """Lock these sessions with those that they began on, and with their forks, which it returns."""
    sids = [row["sid"] for row in await conn.fetch(SQL["sids_of"], *_columns(keys))]
    begun_on = [Key(*row) for row in await conn.fetch(SQL["begun_on"], sids)]
    children = await _forks(conn, sids)
    await _lock(conn, {*keys, *begun_on, *children})
    return children


async def _lock(conn: Connection, keys: Iterable[Key]) -> None:
    await conn.fetch(SQL["lock"], *_columns(keys))


async def _forks(conn: Connection, sids: list[int]) -> list[Key]:
    return [Key(*row) for row in await conn.fetch(SQL["forks"], sids)]


def _with_beside(keys: Iterable[Key]) -> list[Key]:
    """Return these sessions, and the logs that are forgotten with them."""
    return [*keys, *[log for key in keys for log in forgotten_with(key)]]


def _columns(keys: Iterable[Key]) -> list[list[str]]:
    return [list(column) for column in zip(*map(rows.key_names, keys), strict=True)] or [[], [], []]
