"""A session's resources and threads on the wire.

Resources are kept in the session's state. A thread is a session that a turn delegated work to; the
first thread is the session itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound, InvalidInput
from limpet.model import Key
from limpet.model.facts.phases import ARCHIVED, TERMINAL
from limpet.server import ids
from limpet.server.forms import PageForm
from limpet.server.managed.events import listed_of
from limpet.server.managed.forms import DeletedForm, ResourceForm, ThreadForm, WireEventForm
from limpet.server.managed.sessions import (
    MANAGED,
    UPDATED,
    check_count,
    check_idle,
    form_of,
    load,
    managed_in,
    resource_of,
    statuses_of,
)
from limpet.server.managed.stream import stream_of
from limpet.server.managed.wire import PAGE_MAX, Answer, Json, WireCall, endpoint, rfc3339
from limpet.server.openapi import STREAMED, describe
from limpet.server.service import Service
from limpet.session.session import Session


class ResourceUpdate(msgspec.Struct):
    """The body of resources.update: a new token for a repository."""

    authorization_token: str | None = None


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/v1/sessions/{{session_id}}{path}", method, act)

    return [
        at("POST", "/resources", add),
        at("GET", "/resources", listed),
        at("GET", "/resources/{id}", retrieve),
        at("POST", "/resources/{id}", update),
        at("DELETE", "/resources/{id}", delete),
        at("GET", "/threads", list_threads),
        at("GET", "/threads/{id}", retrieve_thread),
        at("POST", "/threads/{id}/archive", archive_thread),
        at("GET", "/threads/{id}/events", list_thread_events),
        at("GET", "/threads/{id}/stream", stream_thread),
    ]


# --- resources ------------------------------------------------------------------------------------


@describe(response=ResourceForm)
async def add(call: WireCall) -> Answer:
    await load(call)  # a session that is not there is refused before a file that is not
    resource = await resource_of(call, await call.body(dict[str, Any]))
    await _change(call, lambda now: [*now, resource])
    return resource


@describe(response=PageForm[ResourceForm])
async def listed(call: WireCall) -> Answer:
    session = await load(call)
    resources = form_of(call, session.head, session.values)["resources"]
    return call.part(resources, default=PAGE_MAX)


@describe(response=ResourceForm)
async def retrieve(call: WireCall) -> Answer:
    session = await load(call)
    resources = form_of(call, session.head, session.values)["resources"]
    return _named(resources, call.path("id"))


@describe(response=ResourceForm)
async def update(call: WireCall) -> Answer:
    """A token is not kept here, so there is only the time to change."""
    await call.body(ResourceUpdate)
    id, now = call.path("id"), rfc3339(call.lp.now())
    await _change(
        call,
        lambda all: [{**each, "updated_at": now} if each["id"] == id else each for each in all],
        id,
    )
    return await retrieve(call)


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    id = call.path("id")
    await _change(call, lambda all: [each for each in all if each["id"] != id], id)
    return {"id": id, "type": "session_resource_deleted"}


def _named(resources: list[Json], id: str) -> Json:
    for each in resources:
        if each["id"] == id:
            return each
    raise DocumentNotFound("resources", id[:100])


async def _change(call: WireCall, changed: Any, id: str | None = None) -> None:
    """Replace the resources of the session; with an id, only if it is there."""
    session = await load(call)

    def change(state: Mapping[str, Any]) -> Json:
        managed = managed_in(state, call.app)
        if id is not None:
            _named(managed["resources"], id)
        resources = changed(managed["resources"])
        check_count(resources)
        return {MANAGED: {**managed, "resources": resources}}

    await session.update(change, type=UPDATED, data={"changed": ["resources"]})


# --- threads --------------------------------------------------------------------------------------


@describe(response=PageForm[ThreadForm])
async def list_threads(call: WireCall) -> Answer:
    """The session itself, then all that it delegated to; of these statuses, if some are named."""
    session, statuses = await load(call), statuses_of(call)
    threads = [thread_form(call, session, session)]
    for key, parent in (await _parents(session)).items():
        child: Session[Any] | None = await call.lp.find(key, tail=0, archived=True)
        if child is not None:
            threads.append(thread_form(call, session, child, parent))
    kept = [each for each in threads if not statuses or each["status"] in statuses]
    return call.part(kept, default=PAGE_MAX)


@describe(response=ThreadForm)
async def retrieve_thread(call: WireCall) -> Answer:
    return thread_form(call, *await _thread(call))


@describe(response=ThreadForm)
async def archive_thread(call: WireCall) -> Answer:
    session, thread, _ = await _thread(call)
    check_idle(thread)
    if thread.key == session.key:
        raise InvalidInput("the first thread is the session itself. Archive the session.")
    if thread.phase not in TERMINAL:
        await thread.complete()
    if thread.phase != ARCHIVED:
        await thread.archive()
    return thread_form(call, *await _thread(call))


@describe(response=PageForm[WireEventForm])
async def list_thread_events(call: WireCall) -> Answer:
    return await listed_of(call, (await _thread(call))[1])


@describe(media_type=STREAMED)
async def stream_thread(call: WireCall) -> Answer:
    return await stream_of(call, (await _thread(call))[1])


async def _thread(call: WireCall) -> tuple[Session[Any], Session[Any], Key | None]:
    """The session of the path, the thread of it, and the key of its parent. Raises
    DocumentNotFound if it is none of this session."""
    session, text = await load(call), call.path("id")
    app, _, id = ids.from_wire(ids.THREAD, text).partition("\n")
    key = Key(app, call.user, id) if app and id else None
    parents = {session.key: None, **await _parents(session)}
    if key is None or key not in parents:
        raise DocumentNotFound("threads", text[:100])
    thread: Session[Any] = await call.lp.get(key, tail=0, archived=True)
    return session, thread, parents[key]


async def _parents(session: Session[Any]) -> dict[Key, Key]:
    """Every session that it or one of these delegated to, ended or not, with its parent."""
    return {child: parent for parent, child in (await session.runs.tree()).edges}


def thread_form(
    call: WireCall, session: Session[Any], thread: Session[Any], parent: Key | None = None
) -> Json:
    form = form_of(call, thread.head, thread.values)
    kept = ("status", "agent", "stats", "usage", "created_at", "updated_at", "archived_at")
    return {
        "id": ids.thread_id(thread.key),
        "type": "session_thread",
        "session_id": ids.session_id(session.id),
        "parent_thread_id": None if parent is None else ids.thread_id(parent),
        **{name: form[name] for name in kept},
    }
