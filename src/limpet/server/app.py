"""The ASGI app: its routes, and what stands before each of them.

`build` puts together a `Service` (the store, the door to it, who may enter) and the routes that
use it. A new route belongs into a module of `routes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from limpet.errors import InvalidInput, LimpetError
from limpet.server.access import CallerOf, DevGate, Gate, KeyGate, LinkGate, TokenGate
from limpet.server.answers import error_response
from limpet.server.limits import CORS_SECONDS, RATE_PER_KEY
from limpet.server.requests import Requests
from limpet.server.routes import routes
from limpet.server.service import Service
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens


def build(
    lp: Limpet,
    *,
    dev: bool = False,
    caller_of: CallerOf | None = None,
    cors: Sequence[str] = (),
    tokens: Tokens | None = None,
    rate: float | None = RATE_PER_KEY,
) -> Starlette:
    """Return the ASGI app that serves an open Limpet, which the caller closes afterwards.

    With `dev` everybody on this machine enters as an admin, without a key: never for a port that
    others reach. `caller_of` says who enters, in the place of keys. Pages of the
    origins in `cors` may use it from a browser; others may not. `tokens` issues and checks session
    tokens. A key may send `rate` requests a second, None: as many as it likes.
    """
    if not isinstance(lp, Limpet):
        raise InvalidInput("build takes an open Limpet: limpet.server.build(lp).")
    gate: Gate | None = caller_of if isinstance(caller_of, LinkGate) else None
    if caller_of is None:
        gate = DevGate(lp) if dev else KeyGate(lp)
        caller_of = gate = gate if tokens is None else TokenGate(lp, tokens, gate)
    service = Service(lp, caller_of, gate, tokens=tokens, rate=rate)

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
    if cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(_origins(cors)),
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=("*",),
            expose_headers=("request-id", "x-new-session-token", "x-should-retry"),
            max_age=CORS_SECONDS,
        )
    app.add_middleware(Requests, meter=service.meter, share=service.share)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, LimpetError)
    return error_response(error)


def _origins(cors: Sequence[str]) -> Iterator[str]:
    """Origins that were named. Raises InvalidInput: `*` is not one."""
    for each in (cors,) if isinstance(cors, str) else cors:
        parts = urlsplit(each)
        if parts.scheme not in ("http", "https") or each != f"{parts.scheme}://{parts.netloc}":
            raise InvalidInput(
                f"{each[:100]!r} is not an origin. Write --cors https://app.example.com."
            )
        yield each
