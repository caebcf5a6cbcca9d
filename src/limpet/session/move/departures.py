"""Departures that nobody has settled: sessions that left here, and are not known to have arrived.

Each is a document of its user, written with the departure and removed once it is known to have
arrived, returned or been reclaimed. A sweep finishes what is left.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from limpet.errors import LimpetError
from limpet.model import EMPTY, Key
from limpet.model.facts.documents import VALUE
from limpet.model.keys import DEPARTURES
from limpet.session.documents import Internal
from limpet.session.journal import Journal
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.delegation import head_of
from limpet.store.pages import head_pages
from limpet.store.protocol import Query, Standing


class Departure(msgspec.Struct, frozen=True):
    """A session that has departed, and that nobody knows to have arrived or returned."""

    key: Key
    uid: str
    epoch: int
    to: str


class _DepartureForm(msgspec.Struct, frozen=True):
    owner: tuple[str, str]
    uid: str
    epoch: int
    to: str


def departures(journal: Journal, key: Key) -> Internal:
    """Return the documents of a session's user; the one of a session has its id."""
    return Internal(journal, DEPARTURES.removeprefix("$$"), owner=(key.app, key.user))


async def settle_departure(journal: Journal, key: Key, uid: str, epoch: int) -> bool:
    """Mark this departure as finished; False if it was. One that another mover has begun since
    stays open."""
    documents = departures(journal, key)
    log = await head_of(journal, documents.key(key.id))
    document = None if log is None else await documents.find(key.id)
    form = None if document is None else documents.decoded(document, _DepartureForm)
    if log is not None and form is not None and (form.uid, form.epoch) == (uid, epoch):
        at = Standing(log.uid, log.version)
        return await journal.store.delete(documents.key(key.id), ending="moved", at=at)
    return False


async def open_departures(journal: Journal, app: str | None = None) -> list[Departure]:
    """Return the departures, of an app or of all, that nobody has settled.

    They stand with their users, under a reserved app that no principal may list: a server does.
    """
    if (server := server_of(journal)) is not None:
        return list(await ask_server(server, "departures", app))
    query = Query(app=DEPARTURES, order="key", reverse=False)
    unsettled: list[Departure] = []
    async for page in head_pages(journal.store, query, states=True):
        for head in page.items:
            value = page.states.get(head.key, EMPTY).get(VALUE)
            with suppress(msgspec.ValidationError, LimpetError):
                form = msgspec.convert(value, _DepartureForm)
                key = Key(*form.owner, head.key.id)
                if app in (None, key.app):
                    unsettled.append(Departure(key, form.uid, form.epoch, form.to))
    return unsettled
