"""Leases that one store object holds, each renewed until it is released.

The lease of a process that died, or that could not reach its store for so long, ends by itself
after `lease_seconds`, by the store's clock.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from limpet.errors import LimpetError, StoreError
from limpet.model import Key, Lease
from limpet.session.arguments import check_lease_seconds
from limpet.session.limpet import Limpet

LEASE_SECONDS: Final = 30


class _Held(NamedTuple):
    lp: Limpet
    lease: Lease
    renewing: asyncio.Task[None]
    task: asyncio.Task[Any] | None  # that took it


class Leases:
    """The leases that one object holds, by the keys of their sessions."""

    def __init__(
        self, *, lease_seconds: float = LEASE_SECONDS, renew_seconds: float | None = None
    ) -> None:
        self.lease_seconds = check_lease_seconds(lease_seconds)
        self._renew_seconds = lease_seconds / 3 if renew_seconds is None else renew_seconds
        # The newest last. Those before it have lapsed, and their tasks do not know it yet.
        self._held: dict[Key, list[_Held]] = {}

    async def take(self, lp: Limpet, key: Key, worker: str | None = None) -> Lease:
        """A lease on this session, renewed from now on. Raises SessionLocked if it is leased.

        Without a worker's name it gets one of its own: a second caller in this process is refused
        as well.
        """
        lease = await self._take(lp, key, worker or f"graph:{uuid4().hex}")
        renewing = asyncio.get_running_loop().create_task(self._renew(lp, lease))
        held = _Held(lp, lease, renewing, asyncio.current_task())
        self._held.setdefault(key, []).append(held)
        return lease

    async def release(self, key: Key) -> None:
        """Release the lease on this session, if this object holds one.

        A task whose lease has lapsed releases that one, not the lease of the task that has it now.
        """
        if key not in self._held:
            return
        held = self._take_out(key)
        held.renewing.cancel()
        await asyncio.wait([held.renewing])  # which hides no cancellation of the caller's
        await held.lp.work.release(held.lease)

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        while self._held:
            await self.release(next(iter(self._held)))

    def _take_out(self, key: Key) -> _Held:
        """What the caller's task holds of this session; if it took none, the oldest."""
        every, task = self._held[key], asyncio.current_task()
        held = next((one for one in every if one.task is task), every[0])
        every.remove(held)
        if not every:
            del self._held[key]
        return held

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
