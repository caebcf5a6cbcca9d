"""One of several processes that share fields, or coordinate children, on one store.

    python -m tests.support.coordinator ROLE URL COUNT

Says "ready", waits for a line on stdin, does its part, says "done" and waits for another line.
"""

from __future__ import annotations

import asyncio
import sys

import limpet
from limpet.errors import SessionConflict

SOURCE = limpet.Key("support", "ada", "source")
LEAD = limpet.Key("support", "ada", "lead")
ADA = "user:ada"


async def setter(lp: limpet.Limpet, count: int) -> None:
    """Set the shared field to 1, 2, …"""
    source = await lp.get(SOURCE, actor=ADA)
    for number in range(1, count + 1):
        await source.append("note.made", actor=ADA, set={"n": number})


async def counter(lp: limpet.Limpet, count: int) -> None:
    """Add to a shared field through a share with write access, in a race with others."""
    target = await lp.create("support", "ada", actor=ADA)
    source = await lp.get(SOURCE, actor=ADA)
    share = (await source.share(target, "n", access="write", sync="live")).id
    for _ in range(count):
        while True:
            seen = await target.read_shared(share)
            try:
                await target.write_shared(share, {"n": seen.values["n"] + 1})
            except SessionConflict:
                continue
            break


async def lead(lp: limpet.Limpet, count: int) -> None:
    """Spawn children and complete them, each once, from whichever place a crash left it at."""
    for number in range(count):
        child = await lp.spawn(LEAD, task=f"task {number}", id=f"kid-{number}", actor=ADA)
        if child.phase == "active":
            await child.complete({"n": number}, actor=ADA)
        print("step", flush=True)


ROLES = {"setter": setter, "counter": counter, "lead": lead}


async def main(role: str, url: str, count: int) -> None:
    async with limpet.open(url) as lp:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await ROLES[role](lp, count)
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
