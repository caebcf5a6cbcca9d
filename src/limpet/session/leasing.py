"""Leases: who works on which session, so that no two workers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from limpet.errors import InvalidQuery, LimpetError, SessionFenced
from limpet.model import Lease
from limpet.session.arguments import (
    AnyKey,
    check_claim,
    check_lease,
    check_lease_seconds,
    check_retry_seconds,
    check_sessions,
    check_worker,
    key_of,
)
from limpet.session.door import Door
from limpet.session.logs import SESSION, lease_lost
from limpet.store.leases import Leases


class Leasing(Door):
    """Claiming due sessions, and locking one."""

    async def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30, app: str | None = None
    ) -> tuple[Lease, ...]:
        """Leases on sessions that want to run: highest priority first, then longest due.

        Nobody else is given them until the lease ends. Write with lp.session(key, lease=lease);
        renew the lease in time, release it when done. `lease.claimed_at` is when it was given,
        `lease.timers` the names of the timers that were due then.
        """
        work = self._leases()
        check_worker(worker)
        check_lease_seconds(lease_seconds)
        limit, app = check_claim(limit), check_sessions(app)
        return await work.claim(worker, limit=limit, lease_seconds=lease_seconds, app=app)

    @overload
    async def renew(self, lease: Lease, *, lease_seconds: float | None = None) -> Lease: ...
    @overload
    async def renew(
        self, lease: Iterable[Lease], *, lease_seconds: float | None = None
    ) -> tuple[Lease | None, ...]: ...
    async def renew(
        self, lease: Lease | Iterable[Lease], *, lease_seconds: float | None = None
    ) -> Lease | tuple[Lease | None, ...]:
        """Hold the lease for so long from now: without a number, for as long as it was given.

        Raises SessionFenced if it is not held any more. Given many leases, all are renewed at once,
        and None stands in the place of each that is lost.
        """
        seconds = None if lease_seconds is None else check_lease_seconds(lease_seconds)
        many = not isinstance(lease, Lease) and isinstance(lease, Iterable)
        leases = tuple(map(check_lease, lease)) if many else (check_lease(lease),)  # type: ignore[arg-type]
        for each in leases if seconds is None else ():
            check_lease_seconds(each.lease_seconds)
        renewed = await self._leases().renew(leases, seconds) if leases else ()
        for before, after in zip(leases, renewed, strict=True):
            if isinstance(after, SessionFenced):
                lease_lost(after, before, "renewal")
            if isinstance(after, LimpetError) and not many:
                raise after
        return tuple([a if isinstance(a, Lease) else None for a in renewed]) if many else renewed[0]  # type: ignore[return-value]

    async def release(self, lease: Lease, *, retry_seconds: float | None = None) -> bool:
        """Give the lease back. False if it was not held any more.

        With `retry_seconds` nobody is given the session by a claim before then, not even if input
        comes: for work that failed, so that others have their turn. acquire_lock may take it.
        Without, a claimed session that is due for nothing but what it was claimed for (timers that
        still stand, inputs of which none was processed) is held back for a second.
        """
        work = self._leases()
        held = await work.release(check_lease(lease), check_retry_seconds(retry_seconds))
        if not held:
            text = "lease already over: session=%s worker=%s fence=%d"
            SESSION.info(text, lease.key, lease.worker, lease.fence)
        return held

    async def acquire_lock(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        worker: str,
        lease_seconds: float = 30,
    ) -> Lease:
        """A lease on this very session, due or not. Raises SessionLocked if another holds it.

        Give it back with release. `lease.timers` names the timers that are due. Given
        back, it is as due as it was.
        """
        work = self._leases()
        seconds = check_lease_seconds(lease_seconds)
        return await work.acquire(key_of(key, user, id), check_worker(worker), seconds)

    def _leases(self) -> Leases:
        store = self._journal.store
        if not isinstance(store, Leases):
            raise InvalidQuery("this store does not support leases")
        return store
