"""A worker with an empty harness, until nothing is due any more.

    python -m bench.fresh.turn URL

Begins when a line comes in on stdin; prints its turns, and when it began and ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import limpet


async def _empty(turn: limpet.Turn) -> None:
    """Nothing to do."""


async def work(url: str) -> dict[str, float]:
    async with limpet.open(url) as lp:
        await lp.list(app="bench", limit=1)  # the modules of the store are imported, and connected
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begin = time.monotonic()
        rates = await limpet.Worker(lp, _empty, app="bench", idle_exit=True).run()
        return {"turns": rates.turns, "begin": begin, "end": time.monotonic()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(sys.argv[1]))))
