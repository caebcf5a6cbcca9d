"""A worker as a process of its own, which a message can kill.

    python -m tests.support.deadly_process URL RETRIES

Runs until nothing is due. The message "die" kills the process once everything that was claimed with
it is under way; while it is in flight, no other turn ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import limpet

APP = "support"
LEASE_SECONDS = 1.0
_ROUNDS = 500  # of the event loop, in which every turn begins


class Agent:
    """Its turns, and how many of them kill."""

    def __init__(self) -> None:
        self._deadly = 0

    async def run(self, turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "die":
            self._deadly += 1
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(_ROUNDS // 10):
            await asyncio.sleep(0)
        if self._deadly:
            await asyncio.Event().wait()
        await turn.say("done")


async def main(url: str, retries: int) -> None:
    async with limpet.open(url) as lp:
        worker = limpet.Worker(
            lp,
            Agent(),
            app=APP,
            idle_exit=True,
            lease_seconds=LEASE_SECONDS,
            poll_seconds=0.02,
            retries=retries,
        )
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
