"""A process that makes a backup and stops halfway, to be killed there."""

from __future__ import annotations

import asyncio
import sys

import limpet
from limpet.store.sqlite.file import backup


def wait(done: int, total: int) -> None:
    print("halfway", flush=True)
    sys.stdin.readline()


async def main(path: str, target: str) -> None:
    backup._PAGES_PER_STEP = 3  # type: ignore[misc]  # so that there is a middle
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.maintenance.backup(target, progress=wait)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
