"""A process that verifies files and says what came of each: a verification may hang, a test not."""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def verdict(path: str) -> str:
    try:
        async with holdfast.open(f"sqlite:///{path}") as hf:
            report = await hf.verify()
    except holdfast.StoreCorrupt:
        return "found"
    return "clean" if report.ok else "found"


async def main(paths: list[str]) -> None:
    for path in paths:
        print(await verdict(path), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
