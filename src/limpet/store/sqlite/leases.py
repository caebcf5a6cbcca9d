"""Leases on the writer's thread: each change is one transaction, so no two claims run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import Lease, acquired, given_back, lasting, lease_of, renewed
from limpet.model.limits import PRIORITY_MAX
from limpet.store.leases import span_us
from limpet.store.sqlite import rows
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.transactions import WriteConnection


class Leases:
    """Grants, renews and ends leases. The clock is read under the write lock."""

    def __init__(self, writes: WriteConnection, clock: Callable[[], int]) -> None:
        self._writes, self._clock = writes, clock

    def claim(
        self, worker: str, limit: int, lease_seconds: float, app: str | None
    ) -> tuple[Lease, ...]:
        with self._writes.transaction():
            now_us = self._clock()
            until_us = now_us + span_us(lease_seconds)
            found = due(self._writes.conn, now_us, limit, app)
            leases = [
                Lease(
                    Key(app, user, id),
                    worker,
                    fence + 1,
                    until_us,
                    lease_seconds,
                    now_us,
                    rows.reasons_from(now_us, *wants),
                )
                for _, app, user, id, fence, *wants in found
            ]
            values = [
                (lease.fence, until_us, worker, until_us, row[0])
                for lease, row in zip(leases, found, strict=True)
            ]
            self._writes.conn.executemany(SQL["set_lease"], values)
        for lease in leases:
            self._settle(lease.key, lease.fence, until_us, worker)
        return tuple(leases)

    def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        after, _ = self._change(
            lease.key,
            lease_seconds,
            lambda head, now_us, until_us: renewed(head, lease.fence, now_us, until_us),
        )
        assert after.lease_us is not None
        return lasting(lease, after.lease_us, lease_seconds)

    def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        after, now_us = self._change(
            key,
            lease_seconds,
            lambda head, now_us, until_us: acquired(head, worker, now_us, until_us),
        )
        return lease_of(after, lease_seconds, now_us, lock=True)

    def release(self, lease: Lease, retry_seconds: float | None) -> bool:
        with self._writes.transaction():
            try:
                sid, head = self._writes.reader.living(lease.key)
            except (SessionNotFound, SessionDeleted, SessionErased):
                return False
            now_us = self._clock()
            retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
            after = given_back(head, lease, now_us, retry_us)
            if after is None:
                return False
            self._write(sid, after)
        self._settle(after.key, after.fence, after.lease_us, after.worker)
        return True

    def _change(
        self, key: Key, lease_seconds: float, change: Callable[[Head, int, int], Head]
    ) -> tuple[Head, int]:
        """The head under the changed lease, and the time it was judged by."""
        with self._writes.transaction():
            sid, head = self._writes.reader.living(key)
            now_us = self._clock()
            after = change(head, now_us, now_us + span_us(lease_seconds))
            self._write(sid, after)
        self._settle(after.key, after.fence, after.lease_us, after.worker)
        return after, now_us

    def _write(self, sid: int, head: Head) -> None:
        self._writes.conn.execute(SQL["set_lease"], rows.lease_row(sid, head))

    def _settle(self, key: Key, fence: int, lease_us: int | None, worker: str | None) -> None:
        """After the commit: what the writer remembers of the session is leased so too."""
        live = self._writes.cache.peek(key)
        if live is not None:
            live.lease(fence, lease_us, worker)


def due(conn: apsw.Connection, now_us: int, limit: int, app: str | None) -> list[tuple[Any, ...]]:
    """sid, key, fence and reasons of the first sessions that are due, the highest priority first.

    The rest of their heads is not read: a damaged one must not stand in the way of the others.
    """
    of_app, where = ("_in_app", (app,)) if app is not None else ("", ())
    found: list[tuple[Any, ...]] = []
    below = PRIORITY_MAX + 1
    while len(found) < limit:
        row = conn.execute(SQL["due_priority" + of_app], (*where, below)).fetchone()
        if row is None:
            break
        below = row[0]
        args = (*where, below, now_us, limit - len(found))
        found += conn.execute(SQL["due" + of_app], args).fetchall()
    return found
