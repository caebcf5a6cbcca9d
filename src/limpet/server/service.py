"""What every route of a server shares."""

from __future__ import annotations

import asyncio

from limpet.server.access import CallerOf, Gate
from limpet.server.limits import RATE_PER_KEY
from limpet.server.meter import Meter
from limpet.server.pulse import StorePulse
from limpet.server.requests import KeyShare, admitted
from limpet.server.store_door import StoreDoor
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens


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
    ) -> None:
        self.lp = lp
        self.meter = Meter()
        self.share = KeyShare(rate=rate)
        self.door = StoreDoor(lp, self.meter, self.share)
        self.tokens = tokens  # None: there is no key to sign them with
        self.pulse = StorePulse(lp)
        self.caller_of = admitted(caller_of, self.meter, self.share)  # raises EntryRefused
        self.gate = gate  # ours to close
        self.stopping = asyncio.Event()  # streams end when it is set

    async def close(self) -> None:
        """Finish what is at work. Closing twice is fine."""
        self.stopping.set()
        await self.door.close()
        await self.pulse.close()
        if self.gate is not None:
            await self.gate.close()
