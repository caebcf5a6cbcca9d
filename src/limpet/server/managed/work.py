"""The work queue of an environment: sessions of it that are due, under leases of ours.

A poll leases a session and hands it out as work. It has to be acknowledged, or its lease ends and
another poll gets it; heartbeats renew the lease. What is known of a piece of work is a document of
the session's user.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from limpet.errors import (
    DocumentConflict,
    DocumentNotFound,
    HeartbeatRefused,
    InvalidInput,
    SessionFenced,
    SessionLocked,
)
from limpet.model import Head, Key, Lease, runnable_us, to_time
from limpet.model.lease import status_at
from limpet.server import ids
from limpet.server.forms import PageForm
from limpet.server.managed import shelf
from limpet.server.managed.agents import find_environment
from limpet.server.managed.forms import HeartbeatForm, WorkForm, WorkStatsForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint, rfc3339
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document, Documents

WORK: Final = "wire_work"
NO_HEARTBEAT: Final = "NO_HEARTBEAT"
_PREFIX: Final = "work_"
_UNACKNOWLEDGED_MS: Final = 5_000
_TTL_SECONDS: Final = 30
_TTL_SECONDS_MAX: Final = 3_600
_LOOK_SECONDS: Final = 0.05  # between looks while a poll waits
_ENDED: Final = ("stopping", "stopped")


class WorkUpdate(msgspec.Struct):
    """The body of work.update."""

    metadata: dict[str, str | None]


class WorkStop(msgspec.Struct):
    """The body of work.stop."""

    force: bool = False


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/v1/environments/{{env_id}}/work{path}", method, act)

    return [
        at("GET", "", listed),
        at("GET", "/poll", poll),
        at("GET", "/stats", stats),
        at("GET", "/{id}", retrieve),
        at("POST", "/{id}", update),
        at("POST", "/{id}/ack", ack),
        at("POST", "/{id}/heartbeat", heartbeat),
        at("POST", "/{id}/stop", stop),
    ]


@describe(response=WorkForm | None)
async def poll(call: WireCall) -> Answer:
    """A piece of work, or null."""
    environment = (await find_environment(call, call.path("env_id")))["id"]
    until = time.monotonic() + call.number("block_ms", 1, most=999) / 1_000
    while True:
        async for head in _due(call, environment):
            if (work := await _take(call, environment, head)) is not None:
                return _form(work)
        if time.monotonic() >= until:
            return Response(b"null", media_type="application/json")
        await asyncio.sleep(_LOOK_SECONDS)


async def _due(call: WireCall, environment: str) -> Any:
    """Heads of sessions of the environment that nobody works on and that are due."""
    labels = {"environment_id": environment}
    async for head in call.lp.each(app=call.app, labels=labels, reverse=False):
        if _is_due(call, head):
            yield head


def _is_due(call: WireCall, head: Head) -> bool:
    now_us = int(call.lp.now().timestamp() * 1_000_000)
    due_us = runnable_us(head)
    return due_us is not None and due_us <= now_us and status_at(head, now_us) != "running"


async def _take(call: WireCall, environment: str, head: Head) -> Document | None:
    """Lease the session and hand it out; None if somebody was faster."""
    unacknowledged = call.number("reclaim_older_than_ms", _UNACKNOWLEDGED_MS, most=3_600_000)
    worker = call.request.headers.get("anthropic-worker-id") or call.caller.name
    try:
        lease = await call.lp.work.lock(
            head.key, worker=worker[:100], lease_seconds=max(1.0, unacknowledged / 1_000)
        )
    except SessionLocked:
        return None
    session: Any = await call.lp.get(head.key, tail=0)
    if runnable_us(session.head) is None:  # its work was done meanwhile
        await call.lp.work.release(lease)
        return None
    now = rfc3339(call.lp.now())
    value: Json = {
        "environment_id": environment,
        "session_id": ids.session_id(head.key.id),
        "state": "queued",
        "created_at": now,
        "acknowledged_at": None,
        "started_at": None,
        "latest_heartbeat_at": None,
        "stop_requested_at": None,
        "stopped_at": None,
        "metadata": {},
        "lease": _packed(lease),
    }
    return await _documents(call, head.key).put(_id(head.key, lease.fence), value)


@describe(response=WorkForm)
async def ack(call: WireCall) -> Answer:
    """Acknowledge work: the lease is extended. Repeating it changes nothing."""
    documents, document = await _find(call)
    if document.value["acknowledged_at"] is not None:
        return _form(document)
    renewed = await _renew(call, document, _TTL_SECONDS)
    now = rfc3339(call.lp.now())
    more = {"state": "starting", "acknowledged_at": now, "lease": _packed(renewed)}
    return _form(await _put(documents, document, {**document.value, **more}))


@describe(response=HeartbeatForm)
async def heartbeat(call: WireCall) -> Answer:
    """Hold the lease for longer, if the last heartbeat is the one that the worker knows of."""
    documents, document = await _find(call)
    seconds = call.number("desired_ttl_seconds", _TTL_SECONDS, most=_TTL_SECONDS_MAX)
    value, expected = document.value, call.text("expected_last_heartbeat")
    if value["state"] in _ENDED:
        return {"type": "work_heartbeat", **_lease_form(value, extended=False, seconds=0)}
    last = value["latest_heartbeat_at"] or NO_HEARTBEAT
    if expected is not None and expected != last:
        raise HeartbeatRefused(document.name, _lease_form(value, extended=False, seconds=0))
    renewed = await _renew(call, document, seconds)
    now = rfc3339(call.lp.now())
    more = {"state": "active", "latest_heartbeat_at": now, "lease": _packed(renewed)}
    more["started_at"] = value["started_at"] or now
    put = await _put(documents, document, {**value, **more})
    return {"type": "work_heartbeat", **_lease_form(put.value, extended=True, seconds=seconds)}


@describe(response=WorkForm)
async def stop(call: WireCall) -> Answer:
    """Release the lease. Repeating it changes nothing."""
    await call.body(WorkStop)
    documents, document = await _find(call)
    if document.value["state"] == "stopped":
        return _form(document)
    await call.lp.work.release(_lease(document))
    now = rfc3339(call.lp.now())
    more = {"state": "stopped", "stop_requested_at": now, "stopped_at": now}
    return _form(await _put(documents, document, {**document.value, **more}))


@describe(response=WorkForm)
async def retrieve(call: WireCall) -> Answer:
    return _form((await _find(call))[1])


@describe(response=WorkForm)
async def update(call: WireCall) -> Answer:
    body = await call.body(WorkUpdate)
    documents, document = await _find(call)

    def changed(value: Json) -> Json:
        return {**value, "metadata": shelf.patched(value["metadata"], body.metadata)}

    return _form(await shelf.change(documents, document.name, changed))


@describe(response=PageForm[WorkForm])
async def listed(call: WireCall) -> Answer:
    """Return the work items handed out for this user's sessions."""
    environment = (await find_environment(call, call.path("env_id")))["id"]

    def keep(document: Document) -> bool:
        return bool(document.value["environment_id"] == environment)

    return await shelf.listed(call, call.of_user(WORK), _form, keep=keep)


@describe(response=WorkStatsForm)
async def stats(call: WireCall) -> Answer:
    environment = (await find_environment(call, call.path("env_id")))["id"]
    since = [(runnable_us(head) or 0, head) async for head in _due(call, environment)]
    oldest = min([due_us for due_us, _ in since], default=None)
    pending = 0
    async for document in call.of_user(WORK).each():
        value = document.value
        pending += value["environment_id"] == environment and value["state"] == "queued"
    shown = None if oldest is None else rfc3339(to_time(oldest))
    form = {"type": "work_queue_stats", "depth": len(since), "pending": pending}
    return {**form, "oldest_queued_at": shown, "workers_polling": None}


# --- the lease ------------------------------------------------------------------------------------


async def _renew(call: WireCall, document: Document, seconds: int) -> Lease:
    """Renew the lease. Raises HeartbeatRefused if another has it."""
    try:
        return await call.lp.work.renew(_lease(document), lease_seconds=float(seconds))
    except SessionFenced:
        state = _lease_form(document.value, extended=False, seconds=0)
        raise HeartbeatRefused(document.name, state) from None


async def _put(documents: Documents, document: Document, value: Json) -> Document:
    """Store a heartbeat. Raises HeartbeatRefused if another was faster."""
    try:
        return await documents.put(document.name, value, expect=document.version)
    except DocumentConflict:
        state = _lease_form(document.value, extended=False, seconds=0)
        raise HeartbeatRefused(document.name, state) from None


def _packed(lease: Lease) -> str:
    return msgspec.json.encode(lease).decode()


def _lease(document: Document) -> Lease:
    return msgspec.json.decode(document.value["lease"], type=Lease)


def _lease_form(value: Json, *, extended: bool, seconds: int) -> Json:
    return {
        "last_heartbeat": value["latest_heartbeat_at"] or "",
        "lease_extended": extended,
        "state": value["state"],
        "ttl_seconds": seconds,
    }


async def _find(call: WireCall) -> tuple[Documents, Document]:
    """Return a piece of work. Raises DocumentNotFound."""
    name = call.path("id")
    try:
        user, _, _ = ids.from_wire(_PREFIX, name).partition("\n")
    except InvalidInput:
        raise DocumentNotFound(WORK, name[:100]) from None
    documents = call.lp.documents(WORK, owner=(call.app, user or call.user))
    document = await shelf.find(documents, name)
    if document.value["environment_id"] != call.path("env_id"):
        raise DocumentNotFound(WORK, name[:100])
    return documents, document


def _documents(call: WireCall, key: Key) -> Documents:
    return call.lp.documents(WORK, owner=(call.app, key.user))


def _id(key: Key, fence: int) -> str:
    """Return the id of the work under one lease; the next lease has another."""
    return ids.to_wire(_PREFIX, f"{key.user}\n{key.id}\n{fence}")


def _form(document: Document) -> Json:
    value = dict(document.value)
    session = value.pop("session_id")
    del value["lease"]
    # A key of an app hands out work of any user: it names the user in the header limpet-user.
    user, _, _ = ids.from_wire(_PREFIX, document.name).partition("\n")
    data = {"type": "session", "id": session, "user": user}
    return {"id": document.name, "type": "work", **value, "data": data, "secret": None}  # nosec B105
