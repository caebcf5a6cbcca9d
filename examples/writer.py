"""A process that streams an answer into a session, one durable event for each word.

    python examples/writer.py sqlite:///support.db support ada refund

It goes on where the log ends, whoever wrote it, and prints the id of every event once that event
is safe. It never stops: the demo kills it at an arbitrary moment.
"""

from __future__ import annotations

import asyncio
import sys

import limpet

ANSWER = ("Both", "charges", "are", "real.", "The", "second", "is", "on", "its", "way", "back.")


def word(number: int) -> limpet.Draft:
    """The nth word of the answer, which begins again at its end. Its id is always the same."""
    return limpet.Draft(
        id=f"word-{number:05}",
        type="agent.word",
        data={"text": ANSWER[(number - 1) % len(ANSWER)]},
        actor="agent:main",
        inc={"words": 1},
    )


async def stream(url: str, app: str, user: str, id: str) -> None:
    async with limpet.open(url) as lp:
        session = await lp.get((app, user, id))
        number = session.state.get("words", 0)
        while True:
            number += 1
            await session.append_many([word(number)])  # returns when it is on the disk
            print(word(number).id, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(stream(*sys.argv[1:]))
