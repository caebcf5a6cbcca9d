"""One of several processes that sweep one store.

    python -m tests.support.sweeper PATH-OR-URL

Says "ready", waits for a line on stdin, sweeps until nothing is left, and says each session whose
cleanup it ran.
"""

from __future__ import annotations

import asyncio
import sys

import limpet


def clean(session: limpet.Session) -> None:
    print(session.id, flush=True)


async def main(where: str) -> None:
    url = where if "://" in where else f"sqlite:///{where}"
    async with limpet.open(url) as lp:
        lp.policies.lifecycle("support", cleanup={"flush": clean})
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        while (swept := await lp.work.sweep(limit=10)).more or swept.left:
            assert not swept.failed, swept


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
