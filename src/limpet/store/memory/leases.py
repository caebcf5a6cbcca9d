"""Leases in memory: each call happens between two awaits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from limpet.errors import LimpetError, SessionError
from limpet.model import Head, Key, Lease, deadline_us, is_reserved, runnable_us
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.runs import run_in
from limpet.model.facts.running.waiting import open_in
from limpet.model.lease import (
    acquired,
    given_back,
    is_ahead,
    is_leased,
    lasting,
    lease_of,
    measured_again,
    renewed,
    taken,
)
from limpet.model.readiness import Readiness, readiness
from limpet.store.leases import Place, span_us
from limpet.store.memory.tables import MemoryTables
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery


class Leasing(MemoryTables):
    """Implements `limpet.store.leases.Leases` and `limpet.store.overview.Overview`."""

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        self._check_open()
        now_us = self._clock()
        self._measure_again(now_us)
        until_us = now_us + span_us(lease_seconds)
        due = sorted(
            (-head.priority, due_us, kept.row, head.key)
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, app)
            and (due_us := runnable_us(head)) is not None
            and due_us <= now_us
        )
        keys = [key for *_, key in due[:limit]]
        heads = [taken(self._head(key), worker, now_us, until_us) for key in keys]
        return tuple(self._lease(head, lease_seconds, now_us) for head in heads)

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        self._check_open()
        return tuple([self._renew(lease, lease_seconds) for lease in leases])

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        self._check_open()
        if lease.key not in self._kept:
            return False
        now_us = self._clock()
        retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
        after = given_back(self._head(lease.key), lease, now_us, retry_us)
        if after is not None:
            self._set_head(after)
        return after is not None

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        now_us = self._clock()
        until_us = now_us + span_us(lease_seconds)
        try:
            head = acquired(self._head(key), worker, now_us, until_us)
        except SessionError:
            self._measure_again(now_us)
            head = acquired(self._head(key), worker, now_us, until_us)
        return self._lease(head, lease_seconds, now_us, lock=True)

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        self._check_open()
        now_us = self._clock()
        found = sorted(
            (at_us, kept.row, head.key)
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, None)
            and not is_leased(head, now_us)
            and (at_us := deadline_us(head)) is not None
            and at_us <= now_us
        )
        page = [each for each in found if after is None or each[:2] > after][:limit]
        keys = tuple([key for *_, key in page])
        return keys, page[-1][:2] if len(page) == limit else None

    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        self._check_open()
        found = sorted(
            ((request.label, kept.row), AskedBy(head.key, request))
            for kept in self._kept.values()
            if _in_app((head := kept.fold.head).key, query.app)
            and query.user in (None, head.key.user)
            for request in open_in(head.facts)
            if query.kind in (None, request.kind)
        )
        page = [each for each in found if after is None or each[0] > after]
        more = page[limit - 1][0] if len(page) > limit else None
        return tuple([asked for _, asked in page[:limit]]), more

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        self._check_open()
        now_us = self._clock()
        heads = [kept.fold.head for kept in self._kept.values()]
        counted: Counter[tuple[Phase, str, Readiness, bool]] = Counter()
        for head in [head for head in heads if _in_app(head.key, app)][:limit]:
            stop, ready = run_in(head.facts).get("stop", ""), readiness(head, now_us)
            counted[head.phase, stop, ready, head.pending > 0] += 1
        return tuple([Tally(*kind, sessions=count) for kind, count in counted.items()])

    def _lease(self, head: Head, lease_seconds: float, now_us: int, *, lock: bool = False) -> Lease:
        self._set_head(head)
        return lease_of(head, lease_seconds, now_us, lock=lock)

    def _renew(self, lease: Lease, lease_seconds: float | None) -> Lease | LimpetError:
        now_us = self._clock()
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            self._set_head(renewed(self._head(lease.key), lease, now_us, until_us))
        except LimpetError as error:
            return error
        return lasting(lease, until_us, seconds)

    def _measure_again(self, now_us: int) -> None:
        for kept in self._kept.values():
            if is_ahead(kept.fold.head, now_us):
                self._set_head(measured_again(kept.fold.head, now_us))


def _in_app(key: Key, app: str | None) -> bool:
    return not is_reserved(key.app) if app is None else key.app == app
