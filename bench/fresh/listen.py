"""A process in which many follow one session, and note when each piece of a message came.

    python -m bench.fresh.listen URL APP USER ID FOLLOWERS PIECES

Prints `ready` when all follow, and at the end of the message `heard LATE99_MS DISORDER LOST`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import quantiles

import limpet


class Heard:
    """What one follower heard: how late each piece was, and which were out of order."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.disorder = 0
        self._last = -1

    def take(self, event: limpet.Event) -> None:
        self.late.append(time.time() - float(event.data["text"]))
        self.disorder += event.data["index"] <= self._last
        self._last = event.data["index"]


async def follow(session: limpet.Session, heard: Heard) -> None:
    async for event in session.follow(after=2):
        if event.partial:
            heard.take(event)
        elif event.type == "agent.message":
            return


async def listen(url: str, app: str, user: str, id: str, followers: int, pieces: int) -> None:
    async with limpet.open(url) as lp:
        session = await lp.get(app, user, id)
        heard = [Heard() for _ in range(followers)]
        tasks = [asyncio.create_task(follow(session, each)) for each in heard]
        await asyncio.sleep(1)  # its entry beside the store, by which publishers know of it
        print("ready", flush=True)
        await asyncio.gather(*tasks)
        late = [seconds for each in heard for seconds in each.late]
        disorder = sum([each.disorder for each in heard])
        lost = followers * pieces - len(late)
        print(f"heard {quantiles(late, n=100)[98] * 1e3:.3f} {disorder} {lost}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(listen(*sys.argv[1:5], *map(int, sys.argv[5:7])))
