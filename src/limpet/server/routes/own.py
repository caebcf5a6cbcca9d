"""Our own routes, for what the Managed Agents wire lacks: /limpet/v1/sessions/ID/… and more.

Their ids, pages and errors are those of the wire. Places in a history are written as on the command
line: 12 (a seq), 2026-05-01T10:00:00Z, #3 (a checkpoint).
"""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute

from limpet.errors import (
    BundleDamaged,
    BundleRefused,
    DocumentNotFound,
    IdempotencyKeyReused,
    InvalidInput,
    InvalidQuery,
    NoCheckpoint,
    SessionExists,
)
from limpet.model import Set, thaw
from limpet.model.diff.diff import diff as between
from limpet.model.diff.merge import Policy, Priority
from limpet.server import ids
from limpet.server.forms import (
    BisectForm,
    BlameForm,
    CheckpointForm,
    CheckpointRefForm,
    DiffForm,
    EventForm,
    ImportForm,
    LineageForm,
    MergeForm,
    OverviewForm,
    PageForm,
    PhaseForm,
    RewindForm,
    StateForm,
    TraceForm,
)
from limpet.server.managed.forms import WireSessionForm
from limpet.server.managed.sessions import MANAGED, form_of, load, managed_in, shown
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    from_token,
    page,
    place_in,
    plain,
    to_token,
    whole_number,
)
from limpet.server.openapi import describe
from limpet.server.routes.sessions import standing
from limpet.server.service import Service
from limpet.session.history.blame import path_of
from limpet.session.history.branches import shared_events
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.json_forms import (
    brief_event_form,
    changes_form,
    event_form,
    key_form,
    lineage_form,
)
from limpet.session.limpet import journal_of
from limpet.session.session import Session
from limpet.store.system import in_thread

_TAKEN: Final = "Read it, or create the session with another id"
_TEMP: Final = "temp:"  # names that are never stored
_STEPS: Final = ("activate", "suspend", "resume", "complete", "terminate", "archive")
_MERGES: Final[Mapping[str, Policy | None]] = {
    "refuse": None,
    "ours": Priority(a=1, b=0),
    "theirs": Priority(a=0, b=1),
}


class NewSession(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a new session. App and user may be left out if the key is of one. A member that
    would be ignored is refused: a session cannot be given it later."""

    app: str | None = None
    user: str | None = None
    id: str | None = None
    state: dict[str, Any] = {}
    labels: dict[str, str] = {}


class ForkSession(msgspec.Struct):
    """The body of a fork: its title on the wire; `set` gives fields of its state other values."""

    at: str | int | None = None
    title: str | None = None
    set: dict[str, Any] = {}


class RewindSession(msgspec.Struct):
    """The body of a rewind."""

    to: str | int
    messages: bool = True


class MergeSession(msgspec.Struct):
    """The body of a merge."""

    session_id: str
    policy: str = "refuse"


class BisectSession(msgspec.Struct, rename={"is_": "is"}):
    """The body of a bisect: a condition on the value at `path`, which held once."""

    path: str
    is_: str
    value: Any = None


class MakeCheckpoint(msgspec.Struct):
    """The body of a new checkpoint."""

    trigger: str = "manual"
    full: bool | None = None


class ChangePhase(msgspec.Struct):
    """The body of a step in a session's life."""

    reason: str | None = None
    output: Any = None


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any, operation: str | None = None) -> BaseRoute:
        return endpoint(service, f"/limpet/v1{path}", method, act, operation=operation)

    one = "/sessions/{session_id}"
    return [
        at("GET", f"{one}/state", state),
        at("GET", f"{one}/diff", diff),
        at("GET", f"{one}/blame", blame),
        at("GET", f"{one}/events", events),
        at("POST", f"{one}/fork", fork, "create"),
        at("POST", f"{one}/rewind", rewind),
        at("POST", f"{one}/merge", merge),
        at("GET", f"{one}/checkpoints", list_checkpoints),
        at("POST", f"{one}/checkpoints", make_checkpoint),
        at("POST", f"{one}/checkpoints/{{number}}/restore", restore),
        at("GET", f"{one}/traces", list_traces),
        at("GET", f"{one}/traces/{{wake_id}}", retrieve_trace),
        at("GET", f"{one}/export", export, "move"),
        at("POST", f"{one}/requeue", requeue),
        *[at("POST", f"{one}/{step}", _life(step), "lifecycle") for step in _STEPS],
        at("POST", f"{one}/unarchive", unarchive, "lifecycle"),
        at("POST", f"{one}/bisect", bisect),
        at("GET", f"{one}/lineage", lineage),
        at("POST", "/sessions", create, "create"),
        at("POST", "/import", import_session),
    ]


# --- creation -------------------------------------------------------------------------------------


@describe(response=OverviewForm, status=201)
async def create(call: WireCall) -> Answer:
    """Create a session: once under an Idempotency-Key. 409 if there is one of this id."""
    body, idempotency = await call.body(NewSession), call.idempotency_key()
    app, user = body.app or call.named_app, body.user or call.named_user
    if app is None or user is None:
        raise InvalidInput('name the app and the user: {"app": "support", "user": "ada"}.')
    id = body.id
    if id is None and idempotency is not None:
        id = call.id_under(ids.SESSION, app, user, idempotency)
    id = ids.new_id(ids.SESSION) if id is None else id
    try:
        session: Session[Any] = await call.lp.create(
            app, user, id, state=body.state, labels=body.labels
        )
    except SessionExists as error:
        if idempotency is None:
            raise SessionExists(error.key, _TAKEN) from None
        session = await call.lp.get((app, user, id), tail=0, archived=True)
        if not await _began_with(session, body, call.caller.name):
            if body.id is None:
                raise IdempotencyKeyReused(idempotency) from None
            raise SessionExists(error.key, _TAKEN) from None
    wire_id = ids.session_id(id)
    owner = {"app": app, "user": user}
    bound = {"app": call.caller.app, "user": call.caller.user}
    query = urlencode({name: owner[name] for name in owner if bound[name] is None})
    location = f"/limpet/v1/sessions/{wire_id}" + (f"?{query}" if query else "")
    content = msgspec.json.encode(standing(call, session))
    return Response(content, 201, {"location": location}, "application/json")


async def _began_with(session: Session[Any], body: NewSession, actor: str) -> bool:
    """True if a session was created by this principal, with this state and these
    labels."""
    (first,) = await session.read(limit=1)
    began = {op.path[0]: thaw(op.value) for op in first.ops if isinstance(op, Set)}
    asked = {name: value for name, value in body.state.items() if not name.startswith(_TEMP)}
    labels = (first.data or {}).get("labels", {})
    return first.actor == actor and began == asked and labels == body.labels


# --- state and history ----------------------------------------------------------------------------


@describe(response=StateForm)
async def state(call: WireCall) -> Answer:
    """The state now, or at a place in the history."""
    session, when = await load(call), call.text("at")
    if when is not None:
        return {"at": when, "state": await session.history.at(when)}
    return {"version": session.version, "state": session.values}


@describe(response=DiffForm)
async def diff(call: WireCall) -> Answer:
    """The changes between two places; or, with `other`, the differences to that session now, and
    the last event that both share."""
    session, before, other = await load(call), call.text("from"), call.text("other")
    if other is not None:
        key = (call.app, call.user, ids.session_key_id(other))
        compared = await call.lp.get(key, tail=0, archived=True)
        store, sides = journal_of(call.lp).store, (session, compared)
        shared = await shared_events(store, *[(each.key, each.version) for each in sides])
        return {"changes": changes_form(between(session.values, compared.values)), "shared": shared}
    if before is None:
        raise InvalidQuery("name where it begins: ?from=12, and where it ends: &to=20")
    return {"changes": changes_form(await session.history.diff(before, call.text("to")))}


@describe(response=PageForm[BlameForm])
async def blame(call: WireCall) -> Answer:
    session, path = await load(call), call.text("path")
    if not path:
        raise InvalidQuery("name a place in the state: ?path=plan.steps.0")
    changes = [
        {"event": event_form(each.event), "actor": each.actor, "op": plain(each.op)}
        for each in await session.history.blame(path)
    ]
    return page(changes, None)


@describe(response=BisectForm)
async def bisect(call: WireCall) -> Answer:
    """The first event after which a condition on a value does not hold any more."""
    session, body = await load(call), await call.body(BisectSession)
    if body.is_ not in _CONDITIONS:
        raise InvalidInput(f"is has to be one of {', '.join(_CONDITIONS)}.")
    path, holds = path_of(body.path), _CONDITIONS[body.is_]

    def good(state: Any) -> bool:
        return holds(_value_at(state, path), body.value)

    event = await session.history.bisect(good)
    return {"event": None if event is None else event_form(event)}


def _value_at(state: Any, path: Sequence[str | int]) -> Any:
    """Return the value at a path; UNSET if there is none."""
    for step in path:
        if isinstance(state, Mapping) and step in state:
            state = state[step]
        elif isinstance(state, Sequence) and not isinstance(state, str | bytes):
            at = int(step) if str(step).isdecimal() else -1
            if not 0 <= at < len(state):
                return UNSET
            state = state[at]
        else:
            return UNSET
    return state


def _compared(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """The test, false where two values cannot be compared."""

    def compare(value: Any, given: Any) -> bool:
        try:
            return value is not UNSET and test(value, given)
        except TypeError:
            return False

    return compare


_CONDITIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "equal": lambda value, given: value is not UNSET and bool(value == given),
    "not_equal": lambda value, given: value is UNSET or bool(value != given),
    "present": lambda value, given: value is not UNSET,
    "absent": lambda value, given: value is UNSET,
    "less": _compared(operator.lt),
    "less_or_equal": _compared(operator.le),
    "greater": _compared(operator.gt),
    "greater_or_equal": _compared(operator.ge),
    "contains": _compared(operator.contains),
}


@describe(response=LineageForm)
async def lineage(call: WireCall) -> Answer:
    return lineage_form(await (await load(call)).history.lineage())


@describe(response=PageForm[EventForm])
async def events(call: WireCall) -> Answer:
    """The log as it is: the oldest first, or the newest with order=desc; between seqs; with
    ?brief=true long texts are cut."""
    session, limit, token = await load(call), call.limit(), call.text("page")
    ascending, types = call.is_ascending(default=True), call.texts("types") or None
    after, before = call.place("after") or 0, call.place("before")
    if token is not None and ascending:
        after = place_in(token)
    elif token is not None:
        before = place_in(token)
    if before is not None and before <= after + 1:
        return page([], None)
    some = await session.read(
        after=after, before=before, limit=limit, reverse=not ascending, types=types
    )
    ended = not some or some[-1].seq == (session.version if ascending else after + 1)
    more = None if ended else to_token(str(some[-1].seq))
    form = brief_event_form if call.flag("brief") else event_form
    return page([form(each) for each in some], more)


@describe(response=WireSessionForm)
async def fork(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(ForkSession)
    made: Session[Any] = await session.fork(
        body.at, id=ids.new_id(ids.SESSION), labels=dict(session.labels)
    )

    def changed(state: Mapping[str, Any]) -> Json:
        if body.title is None:
            return body.set
        return {MANAGED: {**managed_in(state, call.app), "title": body.title}, **body.set}

    if body.set or body.title is not None:
        await made.update(changed)
    return await shown(call, made.key)


@describe(response=RewindForm)
async def rewind(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(RewindSession)
    done = await session.rewind(body.to, messages=body.messages)
    return _rewound(done)


def _rewound(done: Any) -> Json:
    event = None if done.event is None else event_form(done.event)
    return {"event": event, "left": list(done.left)}


@describe(response=MergeForm)
async def merge(call: WireCall) -> Answer:
    """Merge another session; where both changed a place, refuse or take one side's change."""
    session, body = await load(call), await call.body(MergeSession)
    if body.policy not in _MERGES:
        raise InvalidInput(f"policy is one of {', '.join(_MERGES)}.")
    other = (call.app, call.user, ids.session_key_id(body.session_id))
    merged = await session.merge(other, policy=_MERGES[body.policy])
    event = None if merged.event is None else event_form(merged.event)
    return {"event": event, "session": await shown(call, session.key)}


@describe(response=PageForm[CheckpointForm])
async def list_checkpoints(call: WireCall) -> Answer:
    session, token = await load(call), call.text("page")
    cursor = None if token is None else from_token(token)
    checkpoints = await session.history.checkpoints(limit=call.limit(), cursor=cursor)
    items = [plain(each) for each in checkpoints.items]
    return page(items, None if checkpoints.cursor is None else to_token(checkpoints.cursor))


@describe(response=CheckpointRefForm)
async def make_checkpoint(call: WireCall) -> Answer:
    session, body = await load(call), await call.body(MakeCheckpoint)
    return plain(await session.checkpoint(body.trigger, full=body.full))


@describe(response=RewindForm)
async def restore(call: WireCall) -> Answer:
    """Verify a checkpoint, and go back to it."""
    session, number = await load(call), whole_number(call.path("number"))
    if number is None:
        raise InvalidQuery("a checkpoint is named by its number")
    return _rewound(await session.history.restore(await _checkpoint(session, number)))


async def _checkpoint(session: Session[Any], number: int) -> CheckpointRef:
    cursor: str | None = None
    while True:
        checkpoints = await session.history.checkpoints(limit=100, cursor=cursor)
        for each in checkpoints.items:
            if each.ref.number == number:
                return each.ref
        cursor = checkpoints.cursor
        if cursor is None:
            raise NoCheckpoint(session.key, number)


async def _inspected(call: WireCall) -> Session[Any]:
    """The session of the path, from the archive if need be; to an auditor, who loads none, its
    object."""
    principal = call.caller.principal
    if principal is not None and principal.role == "auditor":
        return call.lp.session(call.key())
    return await load(call)


@describe(response=PageForm[EventForm])
async def list_traces(call: WireCall) -> Answer:
    """The beginnings of its wakes, the newest first; with `before`, those of smaller seqs."""
    runs, limit, token = (await _inspected(call)).runs, call.limit(), call.text("page")
    before = call.place("before") if token is None else place_in(token)
    wakes = await runs.wakes(limit=limit, before=before)
    more = to_token(str(wakes[-1].seq)) if len(wakes) == limit else None
    return page([event_form(each) for each in wakes], more)


@describe(response=TraceForm)
async def retrieve_trace(call: WireCall) -> Answer:
    runs, id = (await _inspected(call)).runs, call.path("wake_id")
    try:
        trace = await runs.trace(id)
    except InvalidInput:
        raise DocumentNotFound("traces", id[:100]) from None
    form = {"wake_id": trace.wake_id, "turn_id": trace.turn_id, "attempt": trace.attempt}
    form |= {"worker": trace.worker, "spans": [plain(each) for each in trace.spans]}
    form["events"] = [event_form(each) for each in trace.events]
    return {**form, "activation": plain(trace.activation)}


# --- lifecycle ------------------------------------------------------------------------------------


def _life(step: str) -> Any:
    @describe(response=PhaseForm)
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


@describe(response=PhaseForm)
async def unarchive(call: WireCall) -> Answer:
    """Bring it back from the archive."""
    await call.lp.unarchive(call.key())
    after: Session[Any] = await call.lp.get(call.key(), tail=0)
    return {"phase": after.phase, "session": form_of(call, after.head, after.values)}


@describe(response=EventForm)
async def requeue(call: WireCall) -> Answer:
    return event_form(await call.lp.work.requeue(call.key()))


@describe(media_type="application/octet-stream")
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


@describe(request=bytes, response=ImportForm, request_media_type="application/octet-stream")
async def import_session(call: WireCall) -> Answer:
    """Adopt the session of such a file."""
    data = await call.raw()
    folder = Path(await in_thread(tempfile.mkdtemp))
    try:
        file = folder / "session.limpet"
        await in_thread(partial(file.write_bytes, data))
        key = await call.lp.import_(file)
    except (BundleDamaged, BundleRefused) as error:  # where it lay is nobody's business
        raise type(error)("the body of this request", error.reason) from None
    finally:
        await in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
    return {"session_id": ids.session_id(key.id), "session": key_form(key)}
