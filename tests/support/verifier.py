"""A process that verifies files and says what came of each: a verification may hang, a test not."""

from __future__ import annotations

import asyncio
import sys

import limpet


async def verdict(path: str) -> str:
    try:
        async with limpet.open(f"sqlite:///{path}") as lp:
            report = await lp.maintenance.verify()
    except limpet.errors.StoreCorrupt:
        return "found"
    return "clean" if report.ok else "found"


async def main(paths: list[str]) -> None:
    for path in paths:
        print(await verdict(path), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
