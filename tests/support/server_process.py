"""A server in a process of its own: `python -m tests.support.server_process STORE PORT`."""

from __future__ import annotations

import asyncio
import sys

import limpet
from limpet.server.serve import serving, stop_signals


async def main(store: str, port: int) -> None:
    with stop_signals() as stopped:
        async with limpet.open(store) as lp, serving(lp, port=port, dev=True) as url:
            print(url, flush=True)
            await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
