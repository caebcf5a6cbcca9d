"""A process that verifies a file and says what came of it: a verification may hang, a test not."""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def main(path: str) -> None:
    try:
        async with holdfast.open(f"sqlite:///{path}") as hf:
            report = await hf.verify()
    except holdfast.StoreError as error:
        print("found" if isinstance(error, holdfast.StoreCorrupt) else repr(error), flush=True)
        return
    print("clean" if report.ok else "found", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
