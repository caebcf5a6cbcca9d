"""The Managed Agents wire: sessions, agents and all that belongs to them, under /v1.

The official `anthropic` client speaks it, pointed here by its base URL. `wire` parses requests and
forms answers and errors; each other module has the routes of one kind of thing. A session of the
wire is a session of the store, an agent a document; nothing is kept elsewhere. The routes have no
checks of their own: each request uses the Limpet of its principal.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from limpet.server.managed import (
    agents,
    catalog,
    events,
    files,
    memories,
    resources,
    sessions,
    stream,
    vaults,
    work,
)
from limpet.server.managed.wire import not_offered
from limpet.server.service import Service


def routes(service: Service) -> list[BaseRoute]:
    """Every route under /v1, those that are asked most first: a request is compared with one after
    another. What is not offered is answered in the form of the wire too."""
    return [
        *events.routes(service),
        *stream.routes(service),
        *sessions.routes(service),
        *agents.routes(service),
        *work.routes(service),
        *resources.routes(service),
        *vaults.routes(service),
        *files.routes(service),
        *memories.routes(service),
        *catalog.routes(service),
        *not_offered(service),
    ]
