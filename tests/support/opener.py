"""A process that opens a database when it is told to, creates a session, and says its version."""

from __future__ import annotations

import asyncio
import os
import sys

import limpet


async def main(url: str) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with limpet.open(url) as lp:
        session = await lp.create("a", "b", id=f"{os.getpid()}")
        print(session.version, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
