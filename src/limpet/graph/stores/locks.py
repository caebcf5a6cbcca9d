"""Locks on session ids: a lease on a small session of its own, renewed while it is held.

The lock of a process that died, or that could not reach its store for so long, is free again when
its lease ends, after `lease_seconds`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple
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
        self._held: dict[str, _Held] = {}

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
        self._held[id] = _Held(lp, lease, renewing)

    async def release(self, id: str) -> None:
        """Release the lock of this id, if this object holds it."""
        held = self._held.pop(id, None)
        if held is None:
            return
        held.renewing.cancel()
        with suppress(asyncio.CancelledError):
            await held.renewing
        await held.lp.release(held.lease)

    async def release_all(self) -> None:
        """Release whatever this object holds: it is being closed."""
        for id in list(self._held):
            await self.release(id)

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
