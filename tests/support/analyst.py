"""A process that folds a store into an analytics file, a page at a time, until it is killed."""

from __future__ import annotations

import asyncio
import sys

import limpet
from limpet.analytics import folding


async def main(url: str, file: str, page: int) -> None:
    folding.PAGE = page  # type: ignore[misc]  # small, so that a kill falls between many commits
    async with limpet.open(url) as lp, limpet.Analytics(lp, file, retrain=None) as an:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        await an.run(once=True)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
