"""A process that counts in state shared by a whole app, while others do the same.

    python examples/counter.py sqlite:///support.db support grace 100

It counts visits with an operation (`inc`) and takes tickets by reading, computing and writing
(`update`). Start several at once: no visit and no ticket is lost.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import limpet


def take_ticket(state: Mapping[str, Any]) -> dict[str, Any]:
    """What to set, given what was read. Called again if somebody else was faster."""
    return {"app:tickets": state["app:tickets"] - 1}


async def count(url: str, app: str, user: str, times: str) -> None:
    async with limpet.open(url) as lp:
        session = await lp.create(app, user, state={"user:lang": "fr"})
        for _ in range(int(times)):
            await session.append("visit.made", actor=f"user:{user}", inc={"app:visits": 1})
            await session.update(take_ticket, actor=f"user:{user}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(count(*sys.argv[1:]))
