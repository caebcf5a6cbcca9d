"""Reading: each call one round trip, each within one snapshot of the server."""

from __future__ import annotations

import hashlib
import hmac
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model.canonical import canonical
from limpet.model.events import Event
from limpet.model.fold import Fold, ScopeKey, ScopeValue, replay_any
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.limits import EVENT_OVERHEAD_BYTES, READ_PAGE_BYTES_MAX
from limpet.store import bodies
from limpet.store.cache import Live
from limpet.store.codec import SEALED, Codec, Damaged
from limpet.store.pages import bare
from limpet.store.postgres import rows
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Erasure, Place
from limpet.store.room import DELETED
from limpet.store.scopes import Scopes, Unread
from limpet.store.seal import Unready, scope_owner

_ALL: Final = 2**62  # events, as a tail
Snapshot: TypeAlias = tuple[int, Fold | None, int]  # seq, fold if it can be read, size


class Found(msgspec.Struct):
    """A session as one round trip brought it."""

    live: Live
    events: tuple[tuple[Event, int], ...]  # each with the bytes of its encoded body
    scopes: Scopes
    snapshot: tuple[int, Fold | None] | None  # its seq, and the fold if it can be read


class Reader:
    """What is asked of the database, on the connection that the caller holds."""

    def __init__(self, codec: Codec, secret: bytes) -> None:
        self.codec, self._secret = codec, secret

    async def load(
        self,
        conn: Connection,
        key: Key,
        *,
        tail: int = 0,
        scopes: bool = False,
        since_us: int | None = None,
    ) -> Found:
        """Head, state, last events and scopes. Raises SessionNotFound, -Deleted, -Erased."""
        args = (key.app, key.user, key.id, tail, scopes, since_us, READ_PAGE_BYTES_MAX)
        kinds = rows.by_kind(await conn.fetch(SQL["load"], *args))
        if not kinds["head"]:
            if await self.erasure(conn, key) is not None:
                raise SessionErased(key)
            raise SessionNotFound(key)
        (row,) = kinds["head"]
        if row["deleted_us"] is not None:
            raise SessionDeleted(key)
        head = rows.head_from(key, row)
        snapshot = next((self.snapshot(head, each) for each in kinds["snapshot"]), None)
        if snapshot is not None and snapshot[1] is None and tail < _ALL:
            return await self.load(conn, key, tail=_ALL, scopes=scopes)  # what it stood for
        sized = [rows.sized_event(each, head.uid, self.codec) for each in kinds["event"]]
        live = self._fold(row["sid"], head, kinds["event"], bare(sized), snapshot)
        kept = None if snapshot is None else snapshot[:2]
        return Found(live, tuple(sized), self._shared(key.app, kinds["name"]), kept)

    def _fold(
        self,
        sid: int,
        head: Head,
        found: list[Any],
        events: tuple[Event, ...],
        snapshot: Snapshot | None,
    ) -> Live:
        _, start, snapshot_bytes = snapshot or (0, None, 0)
        fold = start or Fold(blank(head.key, head.uid, head.created_us))
        delta = sum(
            len(r["body"]) + EVENT_OVERHEAD_BYTES for r in found if r["seq"] > fold.head.version
        )
        damaged: list[int] = []
        seq = fold.head.version
        for event in events:
            if event.seq > seq:
                damaged += range(seq + 1, event.seq)  # rows that are not there at all
                fold, whole = replay_any(fold, event)
                if not whole:
                    damaged.append(event.seq)
                seq = event.seq
        damaged += range(seq + 1, head.version + 1)
        settled = Fold(head, fold.fields, fold.versions, tuple(damaged))
        return Live(sid, settled, snapshot_bytes, delta, 0)

    def snapshot(self, head: Head, row: Any) -> Snapshot:
        """The fold that a snapshot's row keeps, if it can be read."""
        seq = row["seq"]
        place = Place("snapshot", head.uid, str(seq))
        try:
            raw = self.codec.unpack(
                row["flags"], row["body"], row["crc"], lambda: place, bound=True
            )
            fields, versions = bodies.snapshot_from(raw)
        except (Damaged, msgspec.MsgspecError):
            return seq, None, 0
        start = blank(head.key, head.uid, head.created_us)
        at = msgspec.structs.replace(start, version=seq)
        return seq, Fold(at, fields, versions), len(raw)

    def _shared(self, app: str, found: list[Any]) -> Scopes:
        """Names as their rows, whose values are made when somebody asks for them."""
        steps: dict[ScopeKey, list[Any]] = {}
        for row in found:
            steps.setdefault((app, row["owner"], row["name"]), []).append(row)
        # Values are opened when somebody reads them, and nobody can wait for keys then.
        owners = {row["owner"] for row in found if row["flags"] & SEALED}
        self.codec.sealer.require([scope_owner(app, owner) for owner in owners])
        return Scopes(
            {
                key[2]: Unread(rows_[-1]["version"], partial(self._value, key, rows_))
                for key, rows_ in steps.items()
            }
        )

    def _value(self, key: ScopeKey, steps: list[Any]) -> ScopeValue:
        """The value that somebody reads now. Its keys may be gone since it was loaded."""
        name = rows.Name(key, self.codec)
        try:
            for step in steps:
                name.add(step)
        except Unready as error:
            return ScopeValue(steps[-1]["version"], None, False, str(error))
        assert name.value is not None
        return name.value

    async def names(self, conn: Connection, keys: list[ScopeKey]) -> dict[ScopeKey, rows.Name]:
        """The newest versions of some scope names; those that never were are left out."""
        found: dict[ScopeKey, rows.Name] = {}
        columns = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
        for row in await conn.fetch(SQL["names"], *columns):
            key = keys[row["i"] - 1]
            name = found.setdefault(key, rows.Name(key, self.codec))
            name.add(row)
        return found

    async def versions(self, conn: Connection, keys: list[ScopeKey]) -> dict[ScopeKey, int]:
        """The numbers of the newest versions of some scope names; 0 for those that never were."""
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = await conn.fetch(SQL["name_versions"], *columns)
        return {keys[row["i"] - 1]: row["version"] or 0 for row in found}

    async def sizes(self, conn: Connection, app: str, owner: str) -> dict[str, int]:
        """Every name of one owner and the bytes that it takes, for `Room`."""
        found = await conn.fetch(SQL["name_sizes"], app, owner)
        return {n: DELETED if form == bodies.DELETED else size for n, form, size in found}

    async def scopes(self, conn: Connection, app: str, user: str) -> Scopes:
        """Every name that this user's sessions see, in one round trip, values unread."""
        return self._shared(app, await conn.fetch(SQL["scopes"], app, user))

    async def recorded(
        self, conn: Connection, wanted: list[tuple[Live, str]]
    ) -> dict[tuple[Key, str], Event]:
        """Events by the ids they were recorded under."""
        sids = [live.sid for live, _ in wanted]
        ids = [id for _, id in wanted]
        found: dict[tuple[Key, str], Event] = {}
        for row in await conn.fetch(SQL["recorded"], sids, ids):
            live, id = wanted[row["i"] - 1]
            head = live.fold.head
            found[head.key, id] = rows.event_from(row, head.uid, self.codec)
        return found

    async def erasure(self, conn: Connection, key: Key) -> Erasure | None:
        row = await conn.fetchrow(SQL["erased"], self.key_hash(key))
        return None if row is None else Erasure(*row)

    def key_hash(self, key: Key) -> bytes:
        return hmac.new(self._secret, canonical(key), hashlib.sha256).digest()
