"""A process that follows one session and says what it meets, a line each.

`python -m tests.support.partials URL APP USER ID`. A recorded event is its seq and id; a partial
its attempt, id and text.
"""

from __future__ import annotations

import asyncio
import sys

import limpet


async def main(url: str, *key: str) -> None:
    async with limpet.open(url) as lp:
        async for event in lp.session(*key).follow():
            if event.partial:
                print("partial", event.seq, event.attempt, event.id, event.data["text"], flush=True)
            else:
                print("event", event.seq, event.id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
