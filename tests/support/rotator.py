"""A process that rotates the keys of a store and is killed at one of its writes to the ring.

    python -m tests.support.rotator URL KEYS PAGE WRITE MOMENT

PAGE is how many keys one write wraps again, WRITE counts from 1, and MOMENT says when it dies: with
the statements done and not committed ("before"), or committed and not answered ("after").
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import limpet


async def main(url: str, keys: str, page: int, write: int, moment: str) -> None:
    async with limpet.open(url, keys=keys) as lp:
        provenance = lp._journal.provenance
        assert provenance is not None
        ring: Any = provenance.seal.ring
        pages, swap, written = ring.page, ring.swap, 0

        def die() -> bool:
            nonlocal written
            written += 1
            if written == write:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        async def swapped(changes: Any) -> int:
            done: int = await swap(changes)
            if changes and moment == "after":
                die()
            return done

        ring.page = lambda kind, after, limit=page: pages(kind, after, page)
        ring.swap = swapped
        if moment == "before":
            ring._conn.set_commit_hook(die)
        print(await lp.keys.rotate())
        ring._conn.set_commit_hook(None)


if __name__ == "__main__":
    _, store, masters, rows, number, when = sys.argv
    asyncio.run(main(store, masters, int(rows), int(number), when))
