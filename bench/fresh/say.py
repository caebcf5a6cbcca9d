"""A process that writes to one session, for followers elsewhere.

    python -m bench.fresh.say URL APP USER ID partials|events COUNT

Begins when a line comes in on stdin. Each event holds the system's monotonic clock when it was
handed over. Partials are about 30 ms apart, as a model's words are, and in no step with any poller.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import limpet


async def say(url: str, app: str, user: str, id: str, kind: str, count: int) -> None:
    async with limpet.open(url) as lp:
        session = await lp.get(app, user, id, actor="agent:main")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(count):
            partial = kind == "partials"
            await asyncio.sleep(random.uniform(0.02, 0.04) if partial else 0.005)
            data = {"at": time.monotonic_ns()}
            await session.append("agent.message", data, partial=partial)
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(say(*sys.argv[1:6], int(sys.argv[6])))
