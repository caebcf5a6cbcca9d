"""What every route of a server shares."""

from __future__ import annotations

import asyncio

from limpet.server.access import CallerOf, Gate
from limpet.server.meter import Meter
from limpet.server.pulse import StorePulse
from limpet.server.requests import KeyShare, admitted
from limpet.server.store_door import StoreDoor
from limpet.session.limpet import Limpet


class Service:
    """One server: its store, the door of the store protocol, and who may enter."""

    def __init__(self, lp: Limpet, caller_of: CallerOf, gate: Gate | None = None) -> None:
        self.lp = lp
        self.meter = Meter()
        self.door = StoreDoor(lp, self.meter)
        self.pulse = StorePulse(lp)
        self.share = KeyShare()
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
