"""A worker of its own process.

python -m bench.fresh.work URL               begins when a line comes in, and ends when idle
python -m bench.fresh.work URL SECONDS       says when its turn has begun, which never ends
"""

from __future__ import annotations

import asyncio
import json
import sys

import limpet


async def steps(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.step("look", lambda number: {"order": number}, message.data["number"])


async def hangs(turn: limpet.Turn) -> None:
    await turn.step("begin", lambda: 1)
    print("begun", flush=True)
    await asyncio.get_running_loop().create_future()


async def main(url: str, *lease: str) -> None:
    async with limpet.open(url) as lp:
        if lease:
            await limpet.Worker(lp, hangs, app="bench", lease_seconds=float(lease[0])).run()
            return
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rates = await limpet.Worker(lp, steps, app="bench", idle_exit=True).run()
        print(json.dumps({"turns": rates.turns}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
