"""A process that adds items to one session in each of several stores: python -m … NAME COUNT URL…

It says "ready", waits for a line, adds its pairs of items one after another, and says "done".
"""

from __future__ import annotations

import asyncio
import sys

from limpet.adapters.openai_agents import LimpetSession


async def main(name: str, count: str, *urls: str) -> None:
    sessions = [LimpetSession("c1", url) for url in urls]
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        pair = [{"role": "user", "content": f"{name} {number} {part}"} for part in "ab"]
        for session in sessions:
            await session.add_items(pair)
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
