"""Our own routes, for what the Managed Agents wire lacks: /limpet/v1/sessions/ID/… and more.

Their ids, pages and errors are those of the wire. Places in a history are written as on the command
line: 12 (a seq), 2026-05-01T10:00:00Z, #3 (a checkpoint).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.background import BackgroundTask
from starlette.responses import FileResponse
from starlette.routing import BaseRoute

from limpet.errors import InvalidInput, InvalidQuery, NoCheckpoint
from limpet.model.diff.merge import Policy, Priority
from limpet.server.managed import ids
from limpet.server.managed.sessions import form_of, load, shown
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    from_token,
    page,
    to_token,
)
from limpet.server.service import Service
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.json_forms import event_form, head_form, key_form
from limpet.session.session import Session
from limpet.store.system import in_thread

_STEPS: Final = ("activate", "suspend", "resume", "complete", "terminate", "archive")
_MERGES: Final[Mapping[str, Policy | None]] = {
    "refuse": None,
    "ours": Priority(a=1, b=0),
    "theirs": Priority(a=0, b=1),
}


class ForkSession(msgspec.Struct):
    """The body of a fork."""

    at: str | int | None = None
    title: str | None = None


class RewindSession(msgspec.Struct):
    """The body of a rewind."""

    to: str | int
    messages: bool = True


class MergeSession(msgspec.Struct):
    """The body of a merge."""

    session_id: str
    policy: str = "refuse"


class MakeCheckpoint(msgspec.Struct):
    """The body of a new checkpoint."""

    trigger: str = "manual"
    full: bool | None = None


class ChangePhase(msgspec.Struct):
    """The body of a step in a session's life."""

    reason: str | None = None
    output: Any = None


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/limpet/v1{path}", method, act)

    one = "/sessions/{session_id}"
    return [
        at("GET", f"{one}/state", state),
        at("GET", f"{one}/diff", diff),
        at("GET", f"{one}/blame", blame),
        at("GET", f"{one}/events", events),
        at("POST", f"{one}/fork", fork),
        at("POST", f"{one}/rewind", rewind),
        at("POST", f"{one}/merge", merge),
        at("GET", f"{one}/checkpoints", list_checkpoints),
        at("POST", f"{one}/checkpoints", make_checkpoint),
        at("POST", f"{one}/checkpoints/{{number}}/restore", restore),
        at("GET", f"{one}/traces", list_traces),
        at("GET", f"{one}/traces/{{wake_id}}", retrieve_trace),
        at("GET", f"{one}/export", export),
        at("POST", f"{one}/requeue", requeue),
        *[at("POST", f"{one}/{step}", _life(step)) for step in _STEPS],
        at("POST", "/import", import_session),
        at("GET", "/inbox", inbox),
        at("GET", "/dead_letters", dead_letters),
        at("GET", "/audit", audit),
    ]


def _plain(value: Any) -> Json:
    """A struct of ours as JSON."""
    formed: Json = msgspec.to_builtins(value, enc_hook=str)
    return formed


# --- state and history ----------------------------------------------------------------------------


async def state(call: WireCall) -> Answer:
    """Of now, or at a place in the history."""
    session, when = await load(call), call.text("at")
    if when is not None:
        return {"at": when, "state": await session.history.at(when)}
    return {"version": session.version, "state": session.values}


async def diff(call: WireCall) -> Answer:
    session, before = await load(call), call.text("from")
    if before is None:
        raise InvalidQuery("name where it begins: ?from=12, and where it ends: &to=20")
    found = await session.history.diff(before, call.text("to"))
    return {"changes": [_plain(each) for each in found.changes]}


async def blame(call: WireCall) -> Answer:
    session, path = await load(call), call.text("path")
    if not path:
        raise InvalidQuery("name a place in the state: ?path=plan.steps.0")
    found = [
        {"event": event_form(each.event), "actor": each.actor, "op": _plain(each.op)}
        for each in await session.history.blame(path)
    ]
    return page(found, None)


async def events(call: WireCall) -> Answer:
    """Every event of the log as it is, the oldest first."""
    session, limit, token = await load(call), call.limit(), call.text("page")
    after = 0 if token is None else _number(from_token(token))
    found = await session.read(after=after, limit=limit)
    last = found[-1].seq if found else after
    more = to_token(str(last)) if last < session.version and found else None
    return page([event_form(each) for each in found], more)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidQuery("a number is expected: pass next_page, or that of a checkpoint")
    return int(text)


async def fork(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(ForkSession)
    made: Session[Any] = await session.fork(
        body.at, id=ids.new_id(ids.SESSION), labels=dict(session.labels)
    )
    return await shown(call, made.key)


async def rewind(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(RewindSession)
    done = await session.rewind(body.to, messages=body.messages)
    return _rewound(done)


def _rewound(done: Any) -> Json:
    event = None if done.event is None else event_form(done.event)
    return {"event": event, "left": list(done.left)}


async def merge(call: WireCall) -> Answer:
    """Where both sides changed a place: refused, or the change of one side."""
    session, body = await load(call), await call.body(MergeSession)
    if body.policy not in _MERGES:
        raise InvalidInput(f"policy is one of {', '.join(_MERGES)}.")
    other = (call.app, call.user, ids.session_key_id(body.session_id))
    merged = await session.merge(other, policy=_MERGES[body.policy])
    event = None if merged.event is None else event_form(merged.event)
    return {"event": event, "session": await shown(call, session.key)}


async def list_checkpoints(call: WireCall) -> Answer:
    session, token = await load(call), call.text("page")
    cursor = None if token is None else from_token(token)
    found = await session.history.checkpoints(limit=call.limit(), cursor=cursor)
    items = [_plain(each) for each in found.items]
    return page(items, None if found.cursor is None else to_token(found.cursor))


async def make_checkpoint(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(MakeCheckpoint)
    return _plain(await session.checkpoint(body.trigger, full=body.full))


async def restore(call: WireCall) -> Answer:
    """Verify a checkpoint, and go back to it."""
    session, number = await load(call), _number(call.path("number"))
    return _rewound(await session.history.restore(await _checkpoint(session, number)))


async def _checkpoint(session: Session[Any], number: int) -> CheckpointRef:
    cursor: str | None = None
    while True:
        found = await session.history.checkpoints(limit=100, cursor=cursor)
        for each in found.items:
            if each.ref.number == number:
                return each.ref
        cursor = found.cursor
        if cursor is None:
            raise NoCheckpoint(session.key, number)


async def list_traces(call: WireCall) -> Answer:
    session = await load(call)
    return page([event_form(each) for each in await session.runs.wakes(limit=call.limit())], None)


async def retrieve_trace(call: WireCall) -> Answer:
    return _plain(await (await load(call)).runs.trace(call.path("wake_id")))


# --- lifecycle ------------------------------------------------------------------------------------


def _life(step: str) -> Any:
    async def act(call: WireCall) -> Answer:
        session, body = await load(call), await call.body(ChangePhase)
        if step in ("suspend", "terminate"):
            await getattr(session, step)(body.reason)
        elif step == "complete":
            await session.complete(body.output)
        else:
            await getattr(session, step)()
        after: Session[Any] = await call.lp.get(session.key, tail=0, archived=True)
        return {"phase": after.phase, "session": form_of(call, after.head, after.values)}

    return act


async def requeue(call: WireCall) -> Answer:
    return event_form(await call.lp.work.requeue(call.key()))


async def export(call: WireCall) -> Answer:
    """The file that `limpet export` writes."""
    session = await load(call)
    folder = Path(await in_thread(tempfile.mkdtemp))
    try:
        file = folder / "session.limpet"
        await call.lp.export(session.key, file)
    except BaseException:
        await in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
        raise
    cleanup = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(file, media_type="application/octet-stream", background=cleanup)


async def import_session(call: WireCall) -> Answer:
    """Adopt the session of such a file."""
    data = await call.raw()
    folder = Path(await in_thread(tempfile.mkdtemp))
    try:
        file = folder / "session.limpet"
        await in_thread(partial(file.write_bytes, data))
        key = await call.lp.import_(file)
    finally:
        await in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
    return {"session_id": ids.session_id(key.id), "session": key_form(key)}


# --- over all sessions ----------------------------------------------------------------------------


async def inbox(call: WireCall) -> Answer:
    """Requests that wait for an answer, the oldest first."""
    token, kind = call.text("page"), call.text("kind")
    cursor = None if token is None else from_token(token)
    known: Any = kind
    found = await call.lp.inbox(
        call.app, user=call.caller.user, kind=known, limit=call.limit(), cursor=cursor
    )
    items = [{"session_id": ids.session_id(each.key.id), **_plain(each)} for each in found.items]
    return page(items, None if found.cursor is None else to_token(found.cursor))


async def dead_letters(call: WireCall) -> Answer:
    token = call.text("page")
    cursor = None if token is None else from_token(token)
    found = await call.lp.work.dead_letters(app=call.app, limit=call.limit(), cursor=cursor)
    items = [{"session_id": ids.session_id(h.key.id), **head_form(h)} for h in found.items]
    return page(items, None if found.cursor is None else to_token(found.cursor))


async def audit(call: WireCall) -> Answer:
    """For auditors and admins."""
    token, denied = call.text("page"), call.text("denied")
    found = await call.lp.audit(
        principal=call.text("principal"),
        denied=None if denied is None else call.flag("denied"),
        app=call.caller.app,
        limit=call.limit(),
        cursor=None if token is None else from_token(token),
    )
    items = [_plain(each) for each in found.items]
    return page(items, None if found.cursor is None else to_token(found.cursor))
