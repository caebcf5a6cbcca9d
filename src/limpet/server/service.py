"""The service: the objects that every route of a server shares."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from limpet.security.access import Principal
from limpet.server.access import Caller, CallerOf, Gate
from limpet.server.limits import RATE_PER_KEY
from limpet.server.meter import Meter
from limpet.server.pulse import StorePulse
from limpet.server.requests import KeyShare, admitted
from limpet.server.store_door import StoreDoor
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens

if TYPE_CHECKING:  # it loads numpy
    from limpet.analytics.analytics import Analytics


class Service:
    """One server: its store, the door of the store protocol, and who may enter."""

    def __init__(
        self,
        lp: Limpet,
        caller_of: CallerOf,
        gate: Gate | None = None,
        *,
        tokens: Tokens | None = None,
        rate: float | None = RATE_PER_KEY,
        analytics: Analytics | None = None,
        folds: bool = False,
    ) -> None:
        self.lp = lp
        self.meter = Meter()
        self.share = KeyShare(rate=rate)
        self.door = StoreDoor(lp, self.meter, self.share)
        self.tokens = tokens  # None: there is no key to sign them with
        self.analytics = analytics  # None: nobody folds them here
        self.folds = folds  # when somebody looks at them; else their owner runs them
        self.pulse = StorePulse(lp)
        self.caller_of = admitted(caller_of, self.meter, self.share)  # raises EntryRefused
        self.gate = gate  # ours to close
        self.leaving = False  # it gets no new connections, and is not ready any more
        self.stopping = asyncio.Event()  # streams end when it is set
        self._named: weakref.WeakKeyDictionary[Caller, Limpet] = weakref.WeakKeyDictionary()

    def lp_of(self, caller: Caller) -> Limpet:
        """The Limpet of a caller, whose records have the caller's name, also on a server without
        keys. It is the same for all requests of the caller: it remembers what was decided."""
        if caller.principal is not None or not caller.admin:
            return caller.lp
        lp = self._named.get(caller)
        if lp is None:
            principal = Principal(caller.name, role="admin", app=caller.app, user=caller.user)
            lp = self._named[caller] = caller.lp.acting_as(principal)
        return lp

    async def close(self) -> None:
        """Finish what is at work. Closing twice is fine."""
        self.leaving = True
        self.stopping.set()
        await self.door.close()
        await self.pulse.close()
        if self.gate is not None:
            await self.gate.close()
