"""Locks on session ids: a lease on a small session of its own, renewed while it is held.

The lock of a process that died, or that could not reach its store for so long, is free again when
its lease ends, after `lease_seconds`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from limpet.errors import LimpetError, SessionFenced, SessionLocked, StoreError
from limpet.graph.stores.opened import Source
from limpet.model import Key, Lease
from limpet.session.limpet import Limpet

_ACTOR: Final = "system:graph"
_PAUSE_SECONDS: Final = 0.05  # between two looks at a lock that another holds


class _Held(NamedTuple):
    lp: Limpet
    lease: Lease
    renewing: asyncio.Task[None]
    task: asyncio.Task[Any] | None  # that acquired it


class Locks:
    """The locks that one store object holds."""

    def __init__(
        self,
        source: Source,
        app: str,
        user: str,
        *,
        lease_seconds: float = 30,
        renew_seconds: float = 10,
    ) -> None:
        self._source, self._app, self._user = source, app, user
        self._lease_seconds, self._renew_seconds = lease_seconds, renew_seconds
        # The newest last. Those before it have lapsed, and their tasks do not know it yet.
        self._held: dict[str, list[_Held]] = {}

    async def acquire(self, id: str) -> None:
        """Wait for the lock of this id and take it."""
        lp = await self._source.limpet()
        key = Key(f"{self._app}.locks", self._user, id)
        await lp.get_or_create(key.app, key.user, key.id, actor=_ACTOR, tail=0)
        worker = f"graph:{uuid4().hex}"  # a name of its own: a second caller here waits as well
        while True:
            with suppress(SessionLocked):
                lease = await self._take(lp, key, worker)
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        renewing = asyncio.get_running_loop().create_task(self._renew(lp, lease))
        held = _Held(lp, lease, renewing, asyncio.current_task())
        self._held.setdefault(id, []).append(held)

    async def release(self, id: str) -> None:
        """Release the lock of this id, if this object holds it.

        A task whose lock has lapsed releases that one, not the lock of the task that has it now.
        """
        if id not in self._held:
            return
        held = self._take_out(id)
        held.renewing.cancel()
        with suppress(asyncio.CancelledError):
            await held.renewing
        await held.lp.release(held.lease)

    async def release_all(self) -> None:
        """Release whatever this object holds: it is being closed."""
        while self._held:
            await self.release(next(iter(self._held)))

    def _take_out(self, id: str) -> _Held:
        """What the caller's task holds of this id; if it acquired none, the oldest."""
        every, task = self._held[id], asyncio.current_task()
        held = next((one for one in every if one.task is task), every[0])
        every.remove(held)
        if not every:
            del self._held[id]
        return held

    async def _take(self, lp: Limpet, key: Key, worker: str) -> Lease:
        """A lease on the lock. Raises SessionLocked.

        If the caller is cancelled it is given back: it may be granted all the same, and everybody
        would wait until it ends.
        """
        asked = lp.acquire_lock(key, worker=worker, lease_seconds=self._lease_seconds)
        taking = asyncio.ensure_future(asked)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(LimpetError):
                await lp.release(await taking)
            raise

    async def _renew(self, lp: Limpet, lease: Lease) -> None:
        """Keep the lease from ending. An outage that is shorter than the lease does not end it."""
        with suppress(SessionFenced):
            while True:
                await asyncio.sleep(self._renew_seconds)
                with suppress(StoreError):
                    await lp.renew(lease)
