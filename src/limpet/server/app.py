"""The ASGI app: its routes, and what stands before each of them.

`build` puts together a `Service` (the store, the door to it, who may enter) and the routes that
use it. A new route belongs into a module of `routes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from limpet.errors import InvalidInput, LimpetError
from limpet.server.access import CallerOf, DevGate, Gate, KeyGate
from limpet.server.answers import error_response
from limpet.server.limits import QUERY_BYTES_MAX
from limpet.server.routes import routes
from limpet.server.service import Service
from limpet.session.limpet import Limpet


def build(lp: Limpet, *, dev: bool = False, caller_of: CallerOf | None = None) -> Starlette:
    """Return the ASGI app that serves an open Limpet, which the caller closes afterwards.

    With `dev` everybody on this machine enters as an admin, without a key: never for a port that
    others reach. `caller_of` says who enters, in the place of keys.
    """
    if not isinstance(lp, Limpet):
        raise InvalidInput("build takes an open Limpet: limpet.server.build(lp).")
    gate: Gate | None = None
    if caller_of is None:
        caller_of = gate = DevGate(lp) if dev else KeyGate(lp)
    service = Service(lp, caller_of, gate)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    app = Starlette(
        routes=routes(service),
        lifespan=lifespan,
        exception_handlers={LimpetError: _failed},
    )
    app.state.service = service
    app.add_middleware(_Bounded)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, LimpetError)
    return error_response(error)


class _Bounded:
    """Refuses what is too long before anything looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["query_string"]) > QUERY_BYTES_MAX:
            error = InvalidInput(f"the query is longer than {QUERY_BYTES_MAX:,} bytes.")
            await error_response(error, status=414)(scope, receive, send)
            return
        await self._app(scope, receive, send)
