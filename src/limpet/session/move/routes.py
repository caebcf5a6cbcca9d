"""Routes: where sessions went whose rows were removed here.

The head of a session that departed says where it is. A day later its rows go, and this document of
its user stays, until the session is here again or is erased.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from limpet.errors import AccessDenied, SessionDeleted, SessionMoved
from limpet.model import DefaultActor, Head, Key, is_reserved
from limpet.model.facts.moves import departure
from limpet.model.keys import ROUTES
from limpet.session.documents import Internal
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.delegation import head_of

if TYPE_CHECKING:
    from limpet.session.services import Services

MOVER: Final = DefaultActor("system:move")


class Home(msgspec.Struct, frozen=True):
    """The node that owns a session, and since which epoch (0: it has never moved)."""

    node: str
    epoch: int


def _routes(services: Services, key: Key) -> Internal:
    return Internal(services.journal, ROUTES.removeprefix("$$"), owner=(key.app, key.user))


def route_key(services: Services, key: Key) -> Key:
    """Return the key of the document that says where a session went."""
    return _routes(services, key).key(key.id)


async def keep_route(services: Services, head: Head) -> None:
    """Remember where a session went whose rows are about to go."""
    away = departure(head.facts)
    assert away is not None
    value = {"to": away["to"], "epoch": away["epoch"], "uid": head.uid}
    await _routes(services, head.key).put(head.key.id, value, actor=MOVER)


async def forget_route(services: Services, key: Key) -> None:
    """The session is here again."""
    if await head_of(services.journal, route_key(services, key)) is not None:
        await _routes(services, key).purge(key.id)


class _Route(msgspec.Struct, frozen=True):
    to: str
    epoch: int
    uid: str


async def route_of(services: Services, key: Key) -> Home | None:
    """Return where a session went whose rows were removed; None if nothing is known."""
    if (server := server_of(services.journal)) is not None:
        home: Home | None = await ask_server(server, "home", key)
        return home
    routes = _routes(services, key)
    document = await routes.find(key.id)
    route = None if document is None else routes.decoded(document, _Route)
    return None if route is None else Home(route.to, route.epoch)


async def refuse_moved(services: Services, key: Key) -> None:
    """Raise SessionMoved if what seems deleted here is at another node."""
    if is_reserved(key.app) or await head_of(services.system.journal, key) is not None:
        return  # a session that was created later has its key
    with suppress(AccessDenied):  # then the server says no more than that it is not there
        route = await route_of(services.system, key)
        if route is not None:
            raise SessionMoved(key, route.node, route.epoch)


async def refuse_departed(services: Services, key: Key) -> None:
    """Raise SessionMoved if the session that has a key here has departed."""
    head = await head_of(services.journal, key)
    if head is not None:
        head.check_here()


@asynccontextmanager
async def gone_or_moved(services: Services) -> AsyncIterator[None]:
    """Raise SessionMoved, instead of SessionDeleted, for a session that is at another node."""
    try:
        yield
    except SessionDeleted as gone:
        if isinstance(gone.key, Key):
            await refuse_moved(services, gone.key)
        raise
