"""The hold of a wake on its session: whether its lease is surely held at this moment.

A process may stand still for longer than its lease lasts: it was stopped, the machine slept, or a
harness kept the event loop busy. Nothing in its memory says so when it goes on. So before it acts
on the world it looks at a clock that runs on meanwhile, and where that says that the lease may be
over, it asks the store. Only the store's clock decides; this one says when to ask.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from limpet.errors import StoreError
from limpet.model import Lease
from limpet.runtime.driving import Driver
from limpet.store.clock import steady_ns

if TYPE_CHECKING:
    from limpet.session.limpet import Limpet

_TRIES: Final = 4
_PAUSE_SECONDS: Final = 0.05


class Hold:
    """The lease of one wake, as its process knows it.

    `since_ns` is this process's steady clock before the lease was asked for, so that it is over
    here before it is over at the store.
    """

    def __init__(self, lp: Limpet, lease: Lease, since_ns: int) -> None:
        self._lp, self._lease = lp, lease
        self._until_ns = 0
        self.renewed(since_ns)

    def renewed(self, since_ns: int) -> None:
        """The store has renewed the lease, and was asked to at this time of `steady_ns`."""
        self._until_ns = max(self._until_ns, since_ns + round(self._lease.lease_seconds * 1e9))

    async def check(self, driver: Driver, *, ask: bool = False) -> None:
        """Return only while the run goes on and its lease is held; else stop it and raise.

        The store is asked, which renews the lease, if the lease may be over by this process's
        clock, and in any case with `ask`. Raises StoreError if it gives no answer.
        """
        driver.check()
        while ask or steady_ns() >= self._until_ns:  # again: it may have stood still meanwhile
            ask = False
            if not await self._renew():
                driver.stop("lost")
            driver.check()

    async def _renew(self) -> bool:
        for left in reversed(range(_TRIES)):
            since_ns = steady_ns()
            try:
                (lease,) = await self._lp.work.renew([self._lease])
            except StoreError as error:
                if not error.retryable or not left:
                    raise
            else:
                if lease is not None:
                    self.renewed(since_ns)
                return lease is not None
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")
