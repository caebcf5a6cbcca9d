"""The ASGI app: its routes, and what stands before each of them.

`build` puts together a `Service` (the store, the door to it, who may enter) and the routes that
use it. A new route belongs into a module of `routes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from limpet.errors import InvalidInput
from limpet.server.access import CallerOf, DevGate, Gate, KeyGate, LinkGate, TokenGate
from limpet.server.limits import CORS_SECONDS, RATE_PER_KEY
from limpet.server.requests import Requests
from limpet.server.routes import routes
from limpet.server.routes.index import RouteIndex
from limpet.server.service import Service
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens

if TYPE_CHECKING:  # it loads numpy
    from limpet.analytics.analytics import Analytics


def build(
    lp: Limpet,
    *,
    dev: bool = False,
    caller_of: CallerOf | None = None,
    cors: Sequence[str] = (),
    tokens: Tokens | None = None,
    rate: float | None = RATE_PER_KEY,
    analytics: Analytics | None = None,
    folds: bool = False,
) -> Starlette:
    """Return the ASGI app that serves an open Limpet, which the caller closes afterwards.

    With `dev` everybody on this machine enters as an admin, without a key: never for a port that
    others reach. `caller_of` says who enters, in the place of keys. Pages of the
    origins in `cors` may use it from a browser; others may not. `tokens` issues and checks session
    tokens. A key may send `rate` requests a second, None: as many as it likes. `analytics` is what
    the dashboards show; its owner closes it, and runs it unless it `folds` when they are looked at.
    """
    if not isinstance(lp, Limpet):
        raise InvalidInput("build takes an open Limpet: limpet.server.build(lp).")
    gate: Gate | None = caller_of if isinstance(caller_of, LinkGate) else None
    if caller_of is None:
        gate = DevGate(lp) if dev else KeyGate(lp)
        caller_of = gate = gate if tokens is None else TokenGate(lp, tokens, gate)
    service = Service(
        lp, caller_of, gate, tokens=tokens, rate=rate, analytics=analytics, folds=folds
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    origins = list(_origins(cors))
    return ServedApp(service, origins=origins, routes=routes(service), lifespan=lifespan)


class ServedApp(Starlette):
    """The app, with as few layers around its routes as there can be: every request passes them."""

    def __init__(self, service: Service, *, origins: Sequence[str], **parts: Any) -> None:
        super().__init__(**parts)
        self.state.service = service
        self._origins = origins

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = RouteIndex(self.router)
        if self._origins:
            app = CORSMiddleware(
                app,
                allow_origins=self._origins,
                allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=("*",),
                expose_headers=("request-id", "x-new-session-token", "x-should-retry"),
                max_age=CORS_SECONDS,
            )
        service: Service = self.state.service
        app = Requests(app, meter=service.meter, share=service.share)
        for added in reversed(self.user_middleware):  # by whoever embeds it
            app = added.cls(app, *added.args, **added.kwargs)
        return app


def _origins(cors: Sequence[str]) -> Iterator[str]:
    """Origins that were named. Raises InvalidInput: `*` is not one."""
    for each in (cors,) if isinstance(cors, str) else cors:
        parts = urlsplit(each)
        if parts.scheme not in ("http", "https") or each != f"{parts.scheme}://{parts.netloc}":
            raise InvalidInput(
                f"{each[:100]!r} is not an origin. Write --cors https://app.example.com."
            )
        yield each
