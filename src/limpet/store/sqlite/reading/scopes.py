"""Reading app: and user: names: the newest value of each, made from the rows since its base.

A value that cannot be read is returned with `damage` set: one broken name must not keep a session
from being loaded.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from limpet.errors import LimpetError
from limpet.model import ScopeKey, ScopeValue, freeze, scope_next
from limpet.store.coding import SEALED, Codec, Damaged, Unready, bodies, scope_owner
from limpet.store.planning.room import DELETED
from limpet.store.protocol import Owner
from limpet.store.scopes import Scopes, Unread
from limpet.store.sqlite import rows
from limpet.store.sqlite.sql import SQL

_MALFORMED = (AssertionError, AttributeError, TypeError, ValueError)  # a value of another kind


def _sealed(row: tuple[Any, ...]) -> bool:
    return isinstance(row[3], int) and bool(row[3] & SEALED)


class ScopeReader:
    """Everything that is asked of the table of shared names."""

    def __init__(self, conn: apsw.Connection, codec: Codec) -> None:
        self._conn, self._codec = conn, codec

    def all(self, app: str, user: str) -> Scopes:
        """The newest version of every name that the user's sessions see, values unread."""
        if self._conn.execute(SQL["scope_any"], (app, user)).fetchone() is None:
            return Scopes()  # as most often, and much cheaper to see
        try:
            read = self._all(SQL["scopes"], (app, user))
        except UnicodeDecodeError:
            # Some row is broken: read each name by itself, so that only that one is lost.
            owned = ((app, owner, name) for owner in ("", user) for name in self.sizes(app, owner))
            apart = {key[2]: found[0] for key in owned if (found := self.newest(key)) is not None}
            return Scopes(apart)
        steps: dict[ScopeKey, list[tuple[Any, ...]]] = {}
        for owner, name, *step in read:
            steps.setdefault((app, owner, name), []).append(tuple(step))
        # Values are opened when somebody reads them, and nobody can wait for keys then.
        owners = {key[:2] for key, rows_ in steps.items() if any([_sealed(row) for row in rows_])}
        self._codec.sealer.require([scope_owner(*owner) for owner in owners])
        return Scopes({key[2]: self._unread(key, rows_) for key, rows_ in steps.items()})

    def of(self, app: str, user: str) -> dict[str, ScopeValue]:
        """The newest version of every name of one owner."""
        mine = "user:" if user else "app:"
        found = self.all(app, user)
        return {name: found[name] for name in found if name.startswith(mine)}

    def owners(self, app: str | None, after: Owner | None, limit: int) -> tuple[Owner, ...]:
        """Who has names, beyond one of them. Skips from owner to owner: each is one search."""
        found: list[Owner] = []
        last = after or (app or "", "")
        query = SQL["next_owner"] if after is not None else SQL["first_owner"]
        while len(found) < limit:
            row = self._conn.execute(query, last).fetchone()
            if row is None or app not in (None, row[0]):
                break
            last = (row[0], row[1])
            found.append(last)
            query = SQL["next_owner"]
        return tuple(found)

    def sizes(self, app: str, user: str) -> dict[str, int]:
        """The names of one owner and the bytes that each takes, for `Room`."""
        found = self._all(SQL["scope_names"], (app, user))
        return {n: DELETED if form == bodies.DELETED else size for n, form, size in found}

    def version(self, key: ScopeKey) -> int:
        return int(self._conn.execute(SQL["scope_version"], key).get)

    def _unread(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> Unread:
        version = max([int(step[0]) for step in steps])
        return Unread(version, lambda: self._late(key, version, sorted(steps)))

    def _late(self, key: ScopeKey, version: int, steps: list[tuple[Any, ...]]) -> ScopeValue:
        """The value that somebody reads now. Its keys may be gone since it was loaded."""
        try:
            return self._made(key, steps)[0]
        except Unready as error:
            return ScopeValue(version, None, False, str(error))

    def newest(self, key: ScopeKey) -> tuple[ScopeValue, int, int] | None:
        """The newest version of a name, the version of its base, and the bytes of ops since (-1:
        the next version must be written whole). A value that cannot be read has `damage` set."""
        row = self._conn.execute(SQL["scope_newest"], key).fetchone()
        if row is None:
            return None
        try:
            steps = self._all(SQL["scope_since"], (*key, row[1]))
        except UnicodeDecodeError as error:
            return ScopeValue(row[0], None, False, str(error)), row[0], -1
        return self._made(key, steps)

    def at(self, key: ScopeKey, version: int) -> ScopeValue | None:
        """What a name was at one version."""
        steps = self._all(SQL["scope_at"], (*key, version))
        return self._made(key, steps)[0] if steps else None

    def _made(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> tuple[ScopeValue, int, int]:
        """The value that a name's rows from its base on make, in order. As `newest` returns it."""
        version, base, form = steps[-1][:3]
        try:
            if form == bodies.DELETED:
                self._raw(key, steps[-1])
                return ScopeValue(version, None, True), version, -1
            value, size = self._folded(key, steps)
        except (Damaged, msgspec.MsgspecError, LimpetError, *_MALFORMED) as error:
            return ScopeValue(version, None, False, str(error) or repr(error)), version, -1
        return value, base, size

    def _folded(self, key: ScopeKey, steps: list[tuple[Any, ...]]) -> tuple[ScopeValue, int]:
        """The value that the rows make, and the bytes of ops among them."""
        value: ScopeValue | None = None
        size = 0
        for step in steps:
            raw = self._raw(key, step)
            if step[2] == bodies.WHOLE:
                value = ScopeValue(step[0], freeze(msgspec.json.decode(raw)))
            else:
                value = scope_next(key, value, bodies.scope_op_from(raw))
                size += len(raw)
        assert value is not None
        return value, size

    def after(self, key: ScopeKey, before: ScopeValue | None, row: tuple[Any, ...]) -> ScopeValue:
        """The value after one more row of a name. One that cannot be read has `damage` set."""
        version, _, form = row[:3]
        try:
            raw = self._raw(key, row)
            if form == bodies.DELETED:
                return ScopeValue(version, None, True)
            if form == bodies.WHOLE:
                return ScopeValue(version, freeze(msgspec.json.decode(raw)))
            return scope_next(key, before, bodies.scope_op_from(raw))
        except (Damaged, msgspec.MsgspecError, LimpetError, *_MALFORMED) as error:
            return ScopeValue(version, None, False, str(error) or repr(error))

    def _raw(self, key: ScopeKey, row: tuple[Any, ...]) -> bytes:
        """The body of a row, unpacked. Raises Damaged."""
        version, base, form, flags, body, crc, uid, seq = row
        place = bodies.scope_place(key, version, base, form, rows.unpack_id(uid), seq)
        return self._codec.unpack(flags, body, crc, lambda: place, bound=True)

    def _all(self, sql: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, args).fetchall()
