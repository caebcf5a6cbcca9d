"""A process that appends, forks, restores checkpoints and compacts, until it is killed."""

from __future__ import annotations

import asyncio
import sys

import limpet


async def main(where: str) -> None:
    """Say each event's number once it is acknowledged. `where` is a file, or a server's URL."""
    async with limpet.open(where if "://" in where else f"sqlite:///{where}") as lp:
        s = await lp.get_or_create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
        await lp.policies.retention("shop", events=20)
        number = s.version
        while True:
            await s.append("agent.did", {"text": "x" * 200}, inc={"n": 1}, id=f"e{number}")
            print(number, flush=True)
            number += 1
            if number % 7 == 0:
                fork = await s.fork(max(1, number // 2))
                await fork.append("agent.did", set={"forked": number})
            if number % 5 == 0:
                await s.checkpoint(full=True if number % 2 == 0 else None)
            if number % 11 == 0 and (kept := (await s.history.checkpoints()).items):
                await s.history.restore(kept[-1].ref)
            if number % 13 == 0:
                await lp.maintenance.compact()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
