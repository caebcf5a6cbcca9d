"""The routes of a server, one module for each kind; `routes` lists them all."""

from __future__ import annotations

from starlette.routing import BaseRoute

from limpet.server import managed
from limpet.server.routes import agui, fleet, operation, own, sessions, store, studio
from limpet.server.service import Service


def routes(service: Service) -> list[BaseRoute]:
    """Every route, the busiest first: a request is compared with one after another."""
    return [
        *managed.routes(service),
        *operation.routes(service),
        *store.routes(service),
        *own.routes(service),
        *sessions.routes(service),
        *fleet.routes(service),
        *agui.routes(service),
        *studio.routes(service),
    ]
