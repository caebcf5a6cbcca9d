"""The process that is killed while it flushes: it queues and flushes without end.

    python -m tests.support.soon_writer WHERE START

Each round queues a few events for several sessions, interleaved, and flushes them. The id of an
event is its number in its session. A line with the number of the round means that its flush was
acknowledged. A process that takes over repeats the round that its predecessor may have recorded
unheard, with the same ids.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import limpet

APP: Final = "kill"
USER: Final = "ada"
SESSIONS: Final = 4
EACH: Final = 25  # events of a session in a round


async def main(where: str, start: int) -> None:
    """`where` is a file, or a server's URL."""
    async with limpet.open(where if "://" in where else f"sqlite:///{where}") as lp:
        for number in range(SESSIONS):
            await lp.get_or_create(APP, USER, f"s{number}", state={"log": []}, actor="w")
        many = [lp.session(APP, USER, f"s{number}", actor="w") for number in range(SESSIONS)]
        for at in range(start, sys.maxsize):
            for number in range(at * EACH, (at + 1) * EACH):
                for session in many:
                    session.append_soon("agent.did", id=str(number), add={"log": [number]})
            await lp.flush()
            sys.stdout.write(f"{at}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
