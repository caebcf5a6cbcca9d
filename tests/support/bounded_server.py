"""A server with bounds of its own: `python -m tests.support.bounded_server STORE [NAME=VALUE …]`.

NAME is a bound of `limpet.server.limits`, as `connection` or `requests` uses it.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import limpet
from limpet.server import connection, requests
from limpet.server.serve import serving, stop_signals


async def main(store: str, bounds: list[str]) -> None:
    for each in bounds:
        name, _, value = each.partition("=")
        (module,) = [each for each in (connection, requests) if hasattr(each, name)]
        setattr(module, name, type(getattr(module, name))(value))
    logging.basicConfig(level=logging.ERROR)
    with stop_signals() as stopped:
        async with limpet.open(store) as lp, serving(lp, dev=True) as url:
            print(url, flush=True)
            await stopped.wait()
    print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
