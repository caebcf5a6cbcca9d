"""The process that is killed while it is refused: it asks for another user's sessions without end.

    python -m tests.support.refused URL START

A line with a number means that the denial about the session of that number was answered. Every
third one is asked for twice: the repeat is counted.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import limpet
from limpet.errors import AccessDenied

BOB = limpet.Principal("user:bob", role="owner", app="kill", user="bob")


async def main(url: str, start: int) -> None:
    async with limpet.open(url) as lp:
        acting = lp.acting_as(BOB)
        for number in range(start, sys.maxsize):
            for _ in range(2 if number % 3 == 0 else 1):
                with suppress(AccessDenied):
                    await acting.get("kill", "ada", f"s{number}")
                    raise AssertionError("it was let in")
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
