"""A node in a process of its own: it works on the session of its file, and writes messages to it.

    python -m tests.support.node FILE

It says `ready` when its worker runs, and goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import limpet
from tests.support.live_mover import KEY


async def answer(turn: limpet.Turn) -> None:
    """Answer each message once, by its seq."""
    for event in turn.inputs:
        await turn.say(f"re {event.seq}")


async def main(file: str) -> None:
    async with limpet.open(f"sqlite:///{file}?sync=normal", node=Path(file).stem) as lp:
        worker = limpet.Worker(lp, answer, app=KEY.app, signals=False, lease_seconds=2)
        working = asyncio.create_task(worker.run())
        print("ready", flush=True)
        while not working.done():
            with suppress(limpet.LimpetError):  # the session is elsewhere, or on its way
                await lp.session(KEY).append(
                    "user.message", {"text": "hi", "m": 1}, actor="user:ada"
                )
            await asyncio.sleep(0.05)
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
