"""Leases that one store object holds, each renewed until it is released; locks made of them.

The lease of a process that died, or that could not reach its store for so long, ends after
`lease_seconds` by the store's clock. A lock on a session id is a lease on a small session of its
own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from limpet.errors import LimpetError, SessionLocked, StoreError
from limpet.graph.stores.documents import LimpetSource
from limpet.model import DefaultActor, Key, Lease
from limpet.session.arguments import check_lease_seconds
from limpet.session.limpet import Limpet

LEASE_SECONDS: Final = 30
_PAUSE_SECONDS: Final = 0.05  # between two looks at a lock that another holds
_ACTOR: Final = DefaultActor("system:graph")


class _HeldLease(NamedTuple):
    lp: Limpet
    lease: Lease
    renewing: asyncio.Task[None]
    task: asyncio.Task[Any] | None  # that took it


class HeldLeases:
    """The leases that one object holds, by the keys of their sessions."""

    def __init__(
        self, *, lease_seconds: float = LEASE_SECONDS, renew_seconds: float | None = None
    ) -> None:
        self.lease_seconds = check_lease_seconds(lease_seconds)
        self._renew_seconds = lease_seconds / 3 if renew_seconds is None else renew_seconds
        # The newest last. Those before it have lapsed, and their tasks do not know it yet.
        self._held: dict[Key, list[_HeldLease]] = {}

    async def take(self, lp: Limpet, key: Key, worker: str | None = None) -> Lease:
        """A lease on this session, renewed from now on. Raises SessionLocked if it is leased.

        Without a worker's name it gets one of its own: a second caller in this process is refused
        as well.
        """
        lease = await self._take(lp, key, worker or f"graph:{uuid4().hex}")
        renewing = asyncio.get_running_loop().create_task(self._renew(lp, lease))
        held = _HeldLease(lp, lease, renewing, asyncio.current_task())
        self._held.setdefault(key, []).append(held)
        return lease

    async def release(self, key: Key) -> None:
        """Release the lease on this session, if this object holds one.

        A task whose lease has lapsed releases that one, not the lease of the task that has it now.
        """
        if key not in self._held:
            return
        every, task = self._held[key], asyncio.current_task()
        held = next((one for one in every if one.task is task), every[0])
        every.remove(held)
        if not every:
            del self._held[key]
        held.renewing.cancel()
        await asyncio.wait([held.renewing])  # which hides no cancellation of the caller's
        await held.lp.work.release(held.lease)

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        while self._held:
            await self.release(next(iter(self._held)))

    async def _take(self, lp: Limpet, key: Key, worker: str) -> Lease:
        """The lease. Raises SessionLocked.

        If the caller is cancelled it is given back: it may be granted all the same, and everybody
        would wait until it ends.
        """
        asked = lp.work.lock(key, worker=worker, lease_seconds=self.lease_seconds)
        taking = asyncio.ensure_future(asked)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(LimpetError):
                await lp.work.release(await taking)
            raise

    async def _renew(self, lp: Limpet, lease: Lease) -> None:
        """Keep the lease from ending. An outage that is shorter than the lease does not end it."""
        with suppress(LimpetError):  # it is lost, or the session was deleted
            while True:
                await asyncio.sleep(self._renew_seconds)
                with suppress(StoreError):
                    await lp.work.renew(lease)


class LeaseLocks:
    """The locks that one store object holds."""

    def __init__(
        self, source: LimpetSource, app: str, user: str, *, renew_seconds: float | None = None
    ) -> None:
        self._source, self._app, self._user = source, app, user
        self._leases = HeldLeases(renew_seconds=renew_seconds)

    async def acquire(self, id: str) -> None:
        """Wait for the lock of this id and take it."""
        lp, key = await self._source.limpet(), self._key(id)
        await lp.get_or_create(key.app, key.user, key.id, actor=_ACTOR, tail=0)
        worker = f"graph:{uuid4().hex}"  # a name of its own: a second caller here waits as well
        while True:
            with suppress(SessionLocked):
                await self._leases.take(lp, key, worker)
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def release(self, id: str) -> None:
        """Release the lock of this id, if this object holds it."""
        await self._leases.release(self._key(id))

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        await self._leases.release_all()

    def _key(self, id: str) -> Key:
        return Key(f"{self._app}.locks", self._user, id)
