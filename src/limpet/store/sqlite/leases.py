"""Leases on the writer's thread: each change is one transaction, so no two claims run at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from limpet.errors import LimpetError, SessionDeleted, SessionErased, SessionError, SessionNotFound
from limpet.model import Head, Key, Lease, due_for
from limpet.model.lease import (
    AHEAD_US,
    acquired,
    expired_lease,
    given_back,
    lasting,
    lease_of,
    measured_again,
    renewed,
    withdrawn,
)
from limpet.model.limits import INT_MAX, PRIORITY_MAX
from limpet.store.leases import Place, span_us
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import stored_key
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection


class SQLiteLeases:
    """Grants, renews and ends leases. The clock is read under the write lock."""

    def __init__(self, writes: SQLiteWriteConnection, clock: Callable[[], int]) -> None:
        self._writes, self._clock = writes, clock

    def claim(
        self, worker: str, limit: int, lease_seconds: float, app: str | None
    ) -> tuple[Lease, ...]:
        self._measure_again()
        with self._writes.transaction():
            now_us = self._clock()
            until_us = now_us + span_us(lease_seconds)
            rows = due(self._writes.conn, now_us, limit, app)
            until = (until_us, lease_seconds, now_us)
            leases = [self._grant(row, worker, *until) for row in rows]
            values = [
                (lease.fence, until_us, worker, now_us, row[0])
                for lease, row in zip(leases, rows, strict=True)
            ]
            self._writes.conn.executemany(SQL["set_lease"], values)
        for lease in leases:
            self._settle(lease.key, lease.fence, until_us, worker, now_us)
        return tuple(leases)

    def _grant(
        self, row: tuple[Any, ...], worker: str, until_us: int, lease_seconds: float, now_us: int
    ) -> Lease:
        """The lease on a session that is due. Why it is, is known from memory, or read."""
        _, app, user, id, uid, fence, facts, holder, held_us, since_us = row
        key = stored_key(app, user, id)
        live = self._writes.cache.peek(key)
        if live is not None and live.era == self._writes.cache.era:
            reasons, uid = due_for(live.fold.head.facts, now_us), live.fold.head.uid
        else:
            reasons, uid = rows.reasons_from(now_us, facts), rows.unpack_id(uid)
        until = (until_us, lease_seconds, now_us)
        expired = expired_lease(holder, held_us, since_us, now_us)
        return Lease(key, worker, fence + 1, *until, reasons, uid=uid, expired=expired)

    def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        with self._writes.transaction():
            now_us = self._clock()
            answers = [self._renew(lease, lease_seconds, now_us) for lease in leases]
        for _, after in answers:
            if after is not None:
                self._settle_head(after)
        return tuple([answer for answer, _ in answers])

    def _renew(
        self, lease: Lease, lease_seconds: float | None, now_us: int
    ) -> tuple[Lease | LimpetError, Head | None]:
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            sid, head = self._writes.reader.living(lease.key)
            after = renewed(head, lease, now_us, until_us)
        except SessionError as error:
            return error, None
        self._write(sid, after)
        return lasting(lease, until_us, seconds), after

    def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        try:
            return self._acquire(key, worker, lease_seconds)
        except SessionError:
            self._measure_again()
            return self._acquire(key, worker, lease_seconds)

    def _acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        with self._writes.transaction():
            now_us = self._clock()
            sid, head = self._writes.reader.living(key)
            after = acquired(head, worker, now_us, now_us + span_us(lease_seconds))
            self._write(sid, after)
        self._settle_head(after)
        return lease_of(after, lease_seconds, now_us, lock=True, before=head)

    def release(self, lease: Lease, retry_seconds: float | None) -> bool:
        with self._writes.transaction():
            try:
                sid, head = self._writes.reader.living(lease.key)
            except (SessionNotFound, SessionDeleted, SessionErased):
                return False
            now_us = self._clock()
            retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
            given = given_back(head, lease, now_us, retry_us)
            after = given or withdrawn(head, lease, now_us)
            if after is None:
                return False
            self._write(sid, after)
        self._settle_head(after)
        return given is not None

    def _measure_again(self) -> None:
        """Leases of a clock that was set back since: nobody waits for the time it was ahead.

        In a transaction of its own: measured at every claim and never recorded, they would not end.
        """
        conn, now_us = self._writes.conn, self._clock()
        if conn.execute(SQL["leased_ahead"], (now_us + AHEAD_US,)).fetchone() is None:
            return
        with self._writes.transaction():
            fetched: Any = conn.execute(SQL["leased_ahead"], (now_us + AHEAD_US,)).fetchall()
            changed = [(row[0], measured_again(rows.head_from(row), now_us)) for row in fetched]
            for sid, after in changed:
                self._write(sid, after)
        for _, after in changed:
            self._settle_head(after)

    def _write(self, sid: int, head: Head) -> None:
        self._writes.conn.execute(SQL["set_lease"], rows.lease_row(sid, head))

    def _settle_head(self, head: Head) -> None:
        self._settle(head.key, head.fence, head.lease_us, head.worker, head.leased_us)

    def _settle(
        self,
        key: Key,
        fence: int,
        lease_us: int | None,
        worker: str | None,
        leased_us: int | None,
    ) -> None:
        """Note the lease, after its commit, in what the writer remembers of the session."""
        live = self._writes.cache.peek(key)
        if live is not None:
            live.lease(fence, lease_us, worker, leased_us)


def due(conn: apsw.Connection, now_us: int, limit: int, app: str | None) -> list[tuple[Any, ...]]:
    """sid, key, fence and reasons of the first sessions that are due, the highest priority first.

    The rest of their heads is not read: a damaged one must not stand in the way of the others.
    """
    of_app, where = ("_in_app", (app,)) if app is not None else ("", ())
    rows: list[tuple[Any, ...]] = []
    below = PRIORITY_MAX + 1
    while len(rows) < limit:
        row = conn.execute(SQL["due_priority" + of_app], (*where, below)).fetchone()
        if row is None:
            break
        below = row[0]
        args = (*where, below, now_us, limit - len(rows))
        rows += conn.execute(SQL["due" + of_app], args).fetchall()
    return rows


def expired(
    conn: apsw.Connection, now_us: int, limit: int, after: Place | None
) -> tuple[tuple[Key, ...], Place | None]:
    """The keys of the first sessions whose deadline has come and that nobody holds."""
    beyond = after or (-INT_MAX, 0)
    fetched: Any = conn.execute(SQL["expired"], (now_us, *beyond, now_us, limit)).fetchall()
    keys = tuple([Key(app, user, id) for _, _, app, user, id in fetched])
    return keys, (fetched[-1][0], fetched[-1][1]) if len(fetched) == limit else None
