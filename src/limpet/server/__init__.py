"""The server: a store as a service. `build` makes the ASGI app of an open Limpet.

    async with limpet.open("sqlite:///support.db") as lp:
        app = limpet.server.build(lp)

`limpet serve STORE` runs it. The store protocol is at /limpet/v1/store (`store_door`), for
`limpet.open("http://…")`. The server has no checks of its own: who enters (`access`) gets a Limpet,
and everything is asked of that one.
"""

from __future__ import annotations

from limpet.errors import ExtraMissing

try:
    from limpet.server.app import build as build
except ModuleNotFoundError as error:  # pragma: no cover
    if (error.name or "").partition(".")[0] != "starlette":
        raise
    raise ExtraMissing("starlette", "server") from error

__all__ = ["build"]
