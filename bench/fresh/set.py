"""A process that sets one field of a session, for those who share it elsewhere.

    python -m bench.fresh.set URL APP USER ID COUNT

Begins when a line comes in on stdin. Each value is the system's monotonic clock when it was handed
over. Says "done" and the median of its appends in microseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import limpet


async def set_field(url: str, app: str, user: str, id: str, count: int) -> None:
    taken: list[float] = []
    async with limpet.open(url) as lp:
        session = await lp.get(app, user, id, actor="agent:main")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(count):
            await asyncio.sleep(0.005)
            began = time.monotonic_ns()
            await session.append("note.made", set={"at": began})
            taken.append((time.monotonic_ns() - began) / 1e3)
        print("done", f"{median(taken):.1f}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(set_field(*sys.argv[1:5], int(sys.argv[5])))
