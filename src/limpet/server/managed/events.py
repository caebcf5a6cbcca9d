"""Events of the wire, and ours: how one becomes the other; sending and listing them.

A send is one commit. With an `Idempotency-Key` the ids of its events are derived from the key, so
a repeat finds them, also after a restart. Of our events the wire shows those that it has a type
for; each keeps its id in lists and streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute

from limpet.errors import (
    AccessDenied,
    DocumentNotFound,
    IdempotencyKeyReused,
    InsufficientTokenBudget,
    InvalidEvent,
    InvalidInput,
    RequestAnswered,
    RequestNotFound,
    SessionConflict,
    SessionError,
)
from limpet.model import Draft, Event, Key, Trace
from limpet.model.events import CHILD_ENDED
from limpet.model.facts.outcomes import DEFINED, EVALUATED, outcome_defined
from limpet.model.facts.running.children import (
    CHILD_CREATED,
    DELEGATION_ENDED,
    parent_in,
)
from limpet.model.facts.running.requests import (
    CONFIRMATION,
    CUSTOM_RESULT,
    CUSTOM_TOOL_USE,
    RESOLUTION,
    asked_id,
    check_answer,
    requests_in,
)
from limpet.model.facts.running.runs import MAX_STEPS
from limpet.model.facts.running.spawned import CHILD_DONE, CHILD_SPAWNED
from limpet.server import ids
from limpet.server.forms import PageForm
from limpet.server.managed.files import content_of as content_of_file, find_file
from limpet.server.managed.forms import SentForm, WireEventForm
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    page,
    place_in,
    rfc3339,
    to_token,
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document
from limpet.session.journal import retrying
from limpet.session.limpet import append_to
from limpet.session.session import Session

_EVENTS_MAX: Final = 1_000  # in one send
_FILES_MAX: Final = 100  # that one request names
_RUBRIC_BYTES_MAX: Final = 128 * 1_024  # so many has the longest list of criteria
_LONG_RUBRIC: Final = f"a rubric has at most {_RUBRIC_BYTES_MAX:,} bytes."
_READ_AT_ONCE: Final = 200
_CALL: Final = re.compile(r"[0-9a-f]{32}-\d+")  # the request id of a call that a model made
# Answers of a client, and where each names the event that it answers.
_ANSWERS: Final = {
    CONFIRMATION: "tool_use_id",
    CUSTOM_RESULT: "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
# The fields of a block of content, by its type; and of its source, by the type of that.
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "search_result": ("source", "title", "content"),
    "redacted": (),
}
_SOURCES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "image": {"base64": ("data", "media_type"), "url": ("url",), "file": ("file_id",)},
    "document": {
        "base64": ("data", "media_type"),
        "text": ("data",),
        "url": ("url",),
        "file": ("file_id",),
    },
}
_SAID: Final = ("text", "image", "document", "redacted")
_RETURNED: Final = ("text", "image", "document", "search_result")
_TERMINAL: Final = frozenset(("session.completed", "session.terminated"))
_POLICIES: Final = {"allow": "always_allow", "ask": "always_ask"}  # by what they evaluate to
_ERRORS: Final = {InsufficientTokenBudget.code: "compaction_limit_reached_error"}  # else unknown
_STOP_REASONS: Final = ("end_turn", "retries_exhausted", "budget_reached", "requires_action")
_SENT: Final = "agent.thread_message_sent"
_RECEIVED: Final = "agent.thread_message_received"


class SendEvents(msgspec.Struct):
    """The body of events.send."""

    events: list[dict[str, Any]]


def routes(service: Service) -> list[BaseRoute]:
    path = "/v1/sessions/{session_id}/events"
    return [endpoint(service, path, "POST", send), endpoint(service, path, "GET", listed)]


# --- sending --------------------------------------------------------------------------------------


@describe(response=SentForm)
async def send(call: WireCall) -> Answer:
    """Record events of a client, all or nothing."""
    body = await call.body(SendEvents)
    if not 0 < len(body.events) <= _EVENTS_MAX:
        raise InvalidInput(f"events is a list of 1 to {_EVENTS_MAX:,} events.")
    if not all([isinstance(event.get("type"), str) for event in body.events]):
        raise InvalidInput("an event has a type.")
    key = call.key()
    idempotency = call.idempotency_key()
    if idempotency is None and not any([_has_place(event) for event in body.events]):
        drafts = [draft_of(await with_files(call, event)) for event in body.events]
        recorded, facts = await append_to(call.lp, key, drafts)
        if parent_in(facts) is None:
            return {"data": [_echo(event) for event in recorded]}
        session: Session[Any] = await call.lp.get(key, tail=0)
    else:
        session = call.lp.session(key)
        sent = CheckedSend(call, session, body.events, idempotency)
        return {"data": await retrying(sent.record, SessionConflict)}
    return {"data": [await form_of(session, event) for event in recorded]}


def _has_place(event: Json) -> bool:
    """True if the event is for a request or a thread, which has to be found first."""
    return event.get("type") in _ANSWERS or event.get("session_thread_id") is not None


class CheckedSend:
    """Events on their way into the log with answers, which a request takes once, or under a key,
    which is used once. They are recorded on the version that was looked at.

    Each is recorded in the session that it is for: an answer where the request was made, which may
    be a thread, and an interrupt where the client says.
    """

    def __init__(
        self, call: WireCall, session: Session[Any], events: Sequence[Json], key: str | None
    ) -> None:
        self._call, self._session, self._events, self._key = call, session, events, key
        self._fingerprint: str | None = None
        self._base = ""
        if key is not None:
            named = "\0".join([call.caller.name, session.app, session.user, session.id, key])
            self._base = sha256(named.encode()).hexdigest()[:32]
            digest = sha256(msgspec.json.encode(events, order="sorted")).hexdigest()
            self._fingerprint = f"send-{digest[:32]}"

    async def record(self) -> list[Json]:
        """Record them, and return them as the wire shows them. Raises SessionConflict if a session
        moved on."""
        await self._session.refresh(tail=0)
        self._threads: list[Session[Any]] | None = None
        if self._key is not None and (before := await self._recorded()):
            return before
        drafts = [await self._draft(place) for place in range(len(self._events))]
        for target, draft in drafts:
            if "request_id" in draft.data:
                await self._check_answer(target, draft)
        async with self._call.lp.commit() as c:
            for target, draft in drafts:
                trace = Trace(invocation_id=draft.invocation_id)
                c.append(target, draft.type, draft.data, id=draft.id, trace=trace)
                c.expect(target, target.version)
        pairs = zip(drafts, c.events, strict=True)
        return [await self._form(target, event) for (target, _), event in pairs]

    async def _form(self, target: Session[Any], event: Event) -> Json:
        form = await form_of(target, event)
        assert form is not None  # everything that a client may send is shown
        if target.key == self._session.key:
            return form
        return {**form, "session_thread_id": ids.thread_id(target.key)}

    async def _recorded(self) -> list[Json]:
        """Return the events recorded earlier under this key. Raises IdempotencyKeyReused."""
        wanted = [self._id(place) for place in range(len(self._events))]
        recorded: dict[str, tuple[Session[Any], Event]] = {}
        for session in (self._session, *await self._descendants()):
            recorded |= {event.id: (session, event) for event in await session.read_ids(wanted)}
            if len(recorded) == len(wanted):
                break
        if wanted[0] not in recorded:
            return []
        if recorded[wanted[0]][1].invocation_id != self._fingerprint:
            raise IdempotencyKeyReused(self._key or "")
        return [await self._form(*recorded[id]) for id in wanted]

    async def _descendants(self) -> list[Session[Any]]:
        """The threads of the session, loaded, without those that are gone."""
        if self._threads is None:
            self._threads = []
            for _, key in (await self._session.runs.tree()).edges:
                thread: Session[Any] | None = await self._call.lp.find(key, tail=0, archived=True)
                if thread is not None:
                    self._threads.append(thread)
        return self._threads

    def _id(self, place: int) -> str:
        return f"{self._base}n{place}"

    async def _draft(self, place: int) -> tuple[Session[Any], Draft]:
        """An event, and the session that it is for. Raises DocumentNotFound, RequestNotFound."""
        event = await with_files(self._call, self._events[place])
        field = _ANSWERS.get(str(event.get("type")))
        if field is not None:
            target, draft = await self._answer(event, field)
        else:
            target, draft = await self._thread(event), draft_of(event)
        if self._key is not None:
            draft = msgspec.structs.replace(
                draft, id=self._id(place), invocation_id=self._fingerprint
            )
        return target, draft

    async def _thread(self, event: Json) -> Session[Any]:
        """The thread that an interrupt is for. Raises DocumentNotFound."""
        named = event.get("session_thread_id")
        if named is None or event.get("type") != "user.interrupt":
            return self._session
        for session in (self._session, *await self._descendants()):
            if named == ids.thread_id(session.key):
                return session
        raise DocumentNotFound("threads", str(named)[:100])

    async def _answer(self, event: Json, field: str) -> tuple[Session[Any], Draft]:
        """An answer to the request of the event that the client names."""
        if not isinstance(event.get(field), str):
            raise InvalidInput(f"{field} of a {event['type']} is the id of the event that asks.")
        session, request = await self._request(event[field])
        if event["type"] != CONFIRMATION:
            data: Json = {"request_id": request, "output": output_of(event.get("content"))}
            if event.get("is_error"):
                data["is_error"] = True
            return session, Draft(type=CUSTOM_RESULT, data=data)
        if event.get("result") not in ("allow", "deny"):
            raise InvalidInput("result of a user.tool_confirmation is allow or deny.")
        allow = event["result"] == "allow"
        kinds = {each.id: each.kind for each in session.blocked_on}
        if kinds.get(request) in ("unknown_effect", "mismatch"):
            decision = "run_again" if allow else "give_up"
            data, type = {"request_id": request, "decision": decision}, RESOLUTION
        else:
            data, type = {"request_id": request, "allow": allow}, CONFIRMATION
        if event.get("deny_message"):
            data["note"] = str(event["deny_message"])
        return session, Draft(type=type, data=data)

    async def _request(self, id: str) -> tuple[Session[Any], str]:
        """The request that an event asked, and the session or thread that waits for the answer.
        Raises RequestNotFound."""
        asking = ids.from_wire(ids.EVENT, id)
        if (request := await _asked_by(self._session, asking)) is not None:
            return self._session, request
        for thread in await self._descendants():
            if (request := await _asked_by(thread, asking)) is not None:
                return thread, request
        raise RequestNotFound(self._session.key, id[:100])

    async def _check_answer(self, session: Session[Any], draft: Draft) -> None:
        """Check an answer. Raises RequestAnswered, RequestMismatch, RequestNotFound."""
        id = draft.data["request_id"]
        facts = session.head.facts
        if id not in requests_in(facts):
            asked = await session.read_ids([asked_id(id)])
            raise (RequestAnswered if asked else RequestNotFound)(session.key, id)
        check_answer(session.key, facts, draft.type, draft.data)


async def _asked_by(session: Session[Any], id: str) -> str | None:
    """The request that this event of the session asked; None if it is not one of it."""
    events = await session.read_ids([id])
    request = events[0].data.get("request_id") if events and events[0].data else None
    return request if isinstance(request, str) else None


async def with_files(call: WireCall, event: Json) -> Json:
    """The event, with the text of a rubric that is a file in its place. Raises DocumentNotFound if
    a file that it names is not one of this user, and InvalidInput."""
    content, rubric = event.get("content"), event.get("rubric")
    if isinstance(content, list):
        for block in content:
            source = block.get("source") if isinstance(block, Mapping) else None
            if isinstance(source, Mapping) and source.get("type") == "file":
                await _file(call, source)
    if not isinstance(rubric, Mapping) or rubric.get("type") != "file":
        return event
    file = await _file(call, rubric)
    if file.value["size_bytes"] > _RUBRIC_BYTES_MAX:
        raise InvalidInput(_LONG_RUBRIC)
    try:
        text = (await content_of_file(call, file)).decode()
    except UnicodeDecodeError:
        raise InvalidInput("the file of a rubric is text in UTF-8.") from None
    return {**event, "rubric": {"type": "text", "content": text}}


async def _file(call: WireCall, given: Mapping[str, Any]) -> Document:
    id = given.get("file_id")
    if not isinstance(id, str):
        raise InvalidInput("a file is named by its file_id.")
    if id not in call.files:
        if len(call.files) == _FILES_MAX:
            raise InvalidInput(f"a request names at most {_FILES_MAX} files.")
        call.files[id] = await find_file(call, id)
    return call.files[id]


def draft_of(event: Json) -> Draft:
    """A message, an interrupt or an outcome as an event of ours. Raises InvalidInput."""
    type = event.get("type")
    if type in ("user.message", "system.message"):
        return Draft(type=type, data=_said(type, event.get("content")))
    if type == "user.interrupt":
        return Draft(type=type, data={"at": "now"})
    if type == "user.define_outcome":
        return _outcome(event)
    raise InvalidInput(
        f"an event of the type {str(type)[:100]!r} cannot be sent. Send user.message, "
        "user.interrupt, user.tool_confirmation, user.custom_tool_result, user.tool_result, "
        "user.define_outcome or system.message."
    )


def _said(type: str, content: object) -> Json:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise InvalidInput(f"content of a {type} is a list of blocks that is not empty.")
    known = ("text",) if type == "system.message" else _SAID
    parts = [_part(block, known) for block in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"text": parts[0]["text"]}
    return {"content": parts}


def _outcome(event: Json) -> Draft:
    rubric = event.get("rubric")
    if not isinstance(rubric, Mapping) or not isinstance(event.get("description"), str):
        raise InvalidInput("an outcome has a description and a rubric.")
    if rubric.get("type") != "text" or not isinstance(rubric.get("content"), str):
        form = '{"type": "text", "content": …} or {"type": "file", "file_id": …}'
        raise InvalidInput(f"the rubric of an outcome is {form}.")
    if len(rubric["content"]) > _RUBRIC_BYTES_MAX:
        raise InvalidInput(_LONG_RUBRIC)
    tries = event.get("max_iterations")
    if not (tries is None or (type(tries) is int and 1 <= tries <= 20)):
        raise InvalidInput("max_iterations is a number from 1 to 20.")
    criteria = [line.strip() for line in rubric["content"].splitlines() if line.strip()]
    try:
        draft = outcome_defined(event["description"], None, criteria)
    except InvalidEvent as error:
        raise InvalidInput(f"{error.summary}: each line of the rubric is one.") from error
    more = {"rubric": rubric["content"], "max_iterations": 3 if tries is None else tries}
    return msgspec.structs.replace(draft, data={**draft.data, **more})


# --- contents -------------------------------------------------------------------------------------


def _part(block: object, known: Sequence[str]) -> Json:
    """A block of the wire as a part of ours. Raises InvalidInput unless it is one of these types
    and complete: the client refuses to read others."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or kind not in known:
        raise InvalidInput(f"a block of content is an object of a type among {', '.join(known)}.")
    assert isinstance(kind, str)
    sources, fields = _SOURCES.get(kind), _BLOCKS[kind]
    if missing := [name for name in fields if block.get(name) is None]:
        raise InvalidInput(f"a block of the type {kind} has {' and '.join(missing)}.")
    if kind == "text":
        return {"type": "text", "text": _checked_text(block, "text", kind)}
    if kind == "search_result":
        return {"type": "data", "data": _search_result(block)}
    if sources is None:
        return {"type": "data", "data": dict(block)}
    source = block["source"]
    named = str(source.get("type")) if isinstance(source, Mapping) else ""
    if named not in sources:
        raise InvalidInput(f"the source of a block of the type {kind} is {', '.join(sources)}.")
    for name in sources[named]:
        _checked_text(source, name, f"source of the type {named}")
    if kind == "image" and named != "file":
        return {"type": "image", **{each: source[each] for each in sources[named]}}
    if named == "text":  # the only one that there is
        source = {**source, "media_type": "text/plain"}
    return {"type": "data", "data": {**block, "source": dict(source)}}


def _search_result(block: Mapping[str, Any]) -> Json:
    """A result of a search. Raises InvalidInput."""
    content, citations = block["content"], block.get("citations")
    for name in ("source", "title"):
        _checked_text(block, name, "search_result")
    if not isinstance(content, list) or not all([_is_text(each) for each in content]):
        raise InvalidInput("content of a search_result is a list of blocks of text.")
    enabled = isinstance(citations, Mapping) and citations.get("enabled") is True
    return {**block, "citations": {"enabled": enabled}}


def _is_text(block: object) -> bool:
    if not isinstance(block, Mapping) or block.get("type") != "text":
        return False
    return isinstance(block.get("text"), str)


def _checked_text(block: Mapping[str, Any], name: str, of: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise InvalidInput(f"{name} of a {of} is a text.")
    return text


def _block(part: object) -> Json:
    """A part of ours as a block of the wire."""
    if not isinstance(part, Mapping):
        return {"type": "text", "text": _text(part)}
    if part.get("type") == "text":
        return {"type": "text", "text": str(part.get("text", ""))}
    if part.get("type") == "image" and isinstance(part.get("url"), str):
        return {"type": "image", "source": {"type": "url", "url": part["url"]}}
    if part.get("type") == "image" and isinstance(part.get("data"), str):
        media = part.get("media_type", "image/png")
        source = {"type": "base64", "media_type": media, "data": part["data"]}
        return {"type": "image", "source": source}
    inner = part.get("data")
    if isinstance(inner, Mapping) and inner.get("type") != "text":
        with suppress(InvalidInput):  # it is not a block, but somebody's data
            _part(inner, tuple(_BLOCKS))
            return dict(inner)
    return {"type": "text", "text": _text(part)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def content_of(data: Mapping[str, Any]) -> list[Json]:
    """Return the content of a message as blocks."""
    content = data.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_block(part) for part in content]
    text = content if isinstance(content, str) else data.get("text")
    return [{"type": "text", "text": text}] if isinstance(text, str) and text else []


def output_of(content: object) -> Any:
    """The output of a tool from the blocks that a client sent."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidInput("content of a result is a list of blocks.")
    parts = [_part(block, _RETURNED) for block in content]
    if all([part["type"] == "text" for part in parts]):
        return "\n".join([part["text"] for part in parts])
    return parts


def _result(output: object) -> list[Json]:
    is_parts = isinstance(output, Sequence) and not isinstance(output, str) and len(output) > 0
    if is_parts and all([isinstance(e, Mapping) and "type" in e for e in output]):  # type: ignore[attr-defined]
        return [_block(each) for each in output]  # type: ignore[attr-defined]
    return [] if output in (None, "") else [{"type": "text", "text": _text(output)}]


# --- events of ours as the wire shows them --------------------------------------------------------


def _echo(event: Event) -> Json:
    """The wire's form of a message, an interrupt or an outcome that was just sent."""
    assert event.data is not None
    if event.type == "user.message":
        return {**_named(event, event.type), "content": content_of(event.data)}
    return {**_named(event, event.type), **_FORMS[event.type](event, event.data)}


async def form_of(session: Session[Any], event: Event) -> Json | None:
    """The event on the wire; None if it has no type for it."""
    data = event.data
    if data is None:
        return None
    if (reading := _READING.get(event.type)) is not None:
        form: Json | None = await reading(session, event, data)
        return form
    shown = _FORMS.get(event.type)
    fields = None if shown is None else shown(event, data)
    return None if fields is None else {**_named(event, event.type), **fields}


def _named(event: Event, type: str) -> Json:
    at = event.at if event.processed is None else event.processed_at
    return {
        "id": ids.to_wire(ids.EVENT, event.id),
        "type": type,
        "processed_at": None if at is None else rfc3339(at),
    }


async def _blocking(session: Session[Any], requests: Iterable[str]) -> list[str]:
    """The events that a turn waits on an answer to."""
    wanted = list(requests)
    pairs = [id for request in wanted for id in (f"{request}/use", asked_id(request))]
    known = {event.id: event.type for event in await session.read_ids(pairs)} if pairs else {}
    blocking = []
    for request in wanted:
        use, asked = f"{request}/use", asked_id(request)
        is_use = use in known and known.get(asked) == "agent.tool_use"
        if asked in known:
            blocking.append(ids.to_wire(ids.EVENT, use if is_use else asked))
    return blocking


def _use_of(request: object) -> str:
    """The wire's id of the event that called a tool."""
    id = str(request)
    return ids.to_wire(ids.EVENT, f"{id}/use" if _CALL.fullmatch(id) else asked_id(id))


def _message(event: Event, data: Mapping[str, Any]) -> Json | None:
    if data.get("limit") == MAX_STEPS:  # the note of an agent that stopped there
        error = _error("tool_use_limit_reached_error", str(data.get("text", "")), "exhausted")
        return {"type": "session.error", "error": error}
    content = content_of(data)
    return {"content": content} if content or event.type != "agent.message" else None


def _confirmation(event: Event, data: Mapping[str, Any]) -> Json:
    form: Json = {"tool_use_id": _use_of(data.get("request_id"))}
    allow = data.get("allow", data.get("decision") != "give_up")
    form["result"] = "allow" if allow else "deny"
    if data.get("note") is not None:
        form["deny_message"] = data["note"]
    return {**form, "type": CONFIRMATION}


def _custom_result(event: Event, data: Mapping[str, Any]) -> Json:
    asked = ids.to_wire(ids.EVENT, asked_id(str(data.get("request_id"))))
    error = bool(data.get("is_error", False))
    return {"custom_tool_use_id": asked, "content": _result(data.get("output")), "is_error": error}


def _defined(event: Event, data: Mapping[str, Any]) -> Json:
    rubric = data.get("rubric") or "\n".join(data.get("criteria", ()))
    return {
        "description": data.get("title", ""),
        "rubric": {"type": "text", "content": rubric},
        "max_iterations": data.get("max_iterations", 3),
        "outcome_id": f"{ids.OUTCOME}{event.seq}",
        "processed_at": rfc3339(event.at),  # it is in force from then on
    }


def _tool_use(event: Event, data: Mapping[str, Any]) -> Json | None:
    """Show a model's call once on the wire: without the request for its approval, and one of a
    client's tool as the agent.custom_tool_use that follows."""
    if data.get("client") or ("awaits" in data and _CALL.fullmatch(str(data.get("request_id")))):
        return None
    permission = data.get("permission", "allow")
    input = data.get("input")
    form = {
        "name": data.get("name", ""),
        "input": input if isinstance(input, Mapping) else {"value": input},
        "evaluated_permission": permission,
    }
    policy = _POLICIES.get(permission)  # none: the call was refused before any applied
    return form if policy is None else {**form, "evaluation": {"type": policy}}


def _custom_use(event: Event, data: Mapping[str, Any]) -> Json:
    input = data.get("input")
    shown = input if isinstance(input, Mapping) else {"value": input}
    return {"name": data.get("name", ""), "input": shown}


async def _tool_result(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json | None:
    """The result of a tool of the agent's: that of a client's tool came as its answer."""
    request = str(data.get("request_id"))
    if [each.type for each in await session.read_ids([asked_id(request)])] == [CUSTOM_TOOL_USE]:
        return None
    form = {**_named(event, event.type), "tool_use_id": _use_of(request)}
    error = bool(data.get("is_error", False))
    return {**form, "content": _result(data.get("output")), "is_error": error}


def _changed(event: Event, data: Mapping[str, Any]) -> Json | None:
    types = {"running": "session.status_running", "rescheduling": "session.status_rescheduled"}
    type = types.get(str(data.get("to")))  # the end of a session is an event of its own
    return None if type is None else {"type": type}


async def _stopped(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json | None:
    reason = data.get("stop_reason")
    if reason in ("rescheduling", "terminated"):  # the change of status says so already
        return None
    stop: Json = {"type": reason if reason in _STOP_REASONS else "end_turn"}
    if reason == "requires_action":
        blocking = await _blocking(session, data.get("blocked_on", ()))
        if not blocking:  # it waits for its children, not for the client
            return None
        stop["event_ids"] = blocking
    elif reason == "end_turn" and await _is_at_max_steps(session, event):
        stop = {"type": "retries_exhausted"}
    return {**_named(event, event.type), "stop_reason": stop}


async def _is_at_max_steps(session: Session[Any], idle: Event) -> bool:
    """True if the turn that this event ended was stopped at the steps that its agent may take."""
    types = ["agent.message", "session.status_idle"]
    last = await session.read(before=idle.seq, types=types, limit=1, reverse=True)
    return bool(last) and (last[0].data or {}).get("limit") == MAX_STEPS


def _failed(event: Event, data: Mapping[str, Any]) -> Json:
    status = "retrying" if "retry_at" in data else "exhausted"
    code = data.get("code")
    error = _error(_ERRORS.get(str(code), "unknown_error"), data.get("message", ""), status)
    return {"error": {**error, "code": code}}


def _error(type: str, message: str, retry_status: str) -> Json:
    return {"type": type, "message": message, "retry_status": {"type": retry_status}}


def _span_started(event: Event, data: Mapping[str, Any]) -> Json | None:
    if data.get("kind") != "model":
        return None
    return {"type": "span.model_request_start", "id": _span(data)}


def _span(data: Mapping[str, Any]) -> str:
    """The wire's id of the beginning of a span: its end names it."""
    return ids.to_wire(ids.EVENT, str(data.get("span_id")))


async def _request_end(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json | None:
    """The end of a model call, with the usage that hangs on its message."""
    if data.get("kind") != "model":
        return None
    said = await session.read(before=event.seq, types=["agent.message"], limit=1, reverse=True)
    is_error = data.get("result") == "error"
    message = {} if is_error or not said or said[0].data is None else said[0].data
    usage = message.get("usage") or {}
    form = _named(event, "span.model_request_end")
    form |= {"model_request_start_id": _span(data), "is_error": is_error}
    form["model_usage"] = {
        "input_tokens": usage.get("input", 0),
        "output_tokens": usage.get("output", 0),
        "cache_creation_input_tokens": usage.get("cache_write", 0),
        "cache_read_input_tokens": usage.get("cache_read", 0),
    }
    return form


# --- messages between a session and its children --------------------------------------------------


async def _child_begun(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json:
    child = Key(data["app"], data["user"], data["child"])
    return _between(event, _SENT, child, await _task(session, child), child.app)


async def _child_ended(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json:
    child, output = Key(data["app"], data["user"], data["child"]), data.get("output")
    content = _result(data.get("summary") if output is None else output)
    return _between(event, _RECEIVED, child, content, child.app)


async def _input(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json:
    """A message of the client; the first one of a child is the task that its parent gave it."""
    content = content_of(data)
    if (parent := parent_in(session.head.facts)) is not None:
        (first,) = await session.read(types=["user.message"], limit=1)
        if first.id == event.id:
            return _between(event, _RECEIVED, parent, content)
    return {**_named(event, event.type), "content": content}


async def _delegation_ended(
    session: Session[Any], event: Event, data: Mapping[str, Any]
) -> Json | None:
    """The result of a child for its parent: the last message of its agent."""
    parent = parent_in(session.head.facts)
    if parent is None:
        return None
    said = await session.read(before=event.seq, types=["agent.message"], limit=1, reverse=True)
    return _between(event, _SENT, parent, content_of((said and said[0].data) or {}))


def _between(
    event: Event, type: str, other: Key, content: list[Json], agent: str | None = None
) -> Json:
    """A message to or from another thread, with its agent unless that is the first."""
    way = "to" if type == _SENT else "from"
    form = {**_named(event, type), "processed_at": rfc3339(event.at), "content": content}
    form[f"{way}_session_thread_id"] = ids.thread_id(other)
    return form if agent is None else {**form, f"{way}_agent_name": agent}


async def _task(session: Session[Any], child: Key) -> list[Json]:
    """Return what a child was asked to do; empty if it is gone, or is not the reader's to see."""
    from limpet.runtime.children import open_child  # what runs turns, a server may never need

    try:
        thread = await open_child(session, child)
        first = await thread.read(types=["user.message"], limit=1)
    except (SessionError, AccessDenied):
        return []
    return content_of(first[0].data or {}) if first else []


async def outcome_events(
    session: Session[Any], seq: int, before: int | None = None
) -> tuple[Event, ...]:
    """The event of this seq, which defines an outcome, and the verdicts on it; before a seq."""
    types = [DEFINED, EVALUATED]
    return await session.read(after=seq - 1, before=before, types=types, limit=_READ_AT_ONCE)


async def _evaluated(session: Session[Any], event: Event, data: Mapping[str, Any]) -> Json:
    """A verdict, on the outcome that was defined last before it."""
    (defined,) = await session.read(before=event.seq, types=[DEFINED], limit=1, reverse=True)
    results = {"pass": "satisfied", "fail": "failed"}  # nosec B105  # a verdict
    return {
        **_named(event, "span.outcome_evaluation_end"),
        "outcome_id": f"{ids.OUTCOME}{defined.seq}",
        "outcome_evaluation_start_id": ids.to_wire(ids.EVENT, event.id),
        "iteration": len(await outcome_events(session, defined.seq, event.seq)) - 1,
        "result": results.get(str(data.get("verdict")), "needs_revision"),
        "explanation": data.get("note") or "",
        "usage": {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


# The forms of events that say less than the wire shows: the rest is read.
_READING: Final[Mapping[str, Any]] = {
    "user.message": _input,
    "session.status_idle": _stopped,
    "agent.tool_result": _tool_result,
    "span.completed": _request_end,
    EVALUATED: _evaluated,
    CHILD_CREATED: _child_begun,
    CHILD_SPAWNED: _child_begun,
    CHILD_ENDED: _child_ended,
    CHILD_DONE: _child_ended,
    DELEGATION_ENDED: _delegation_ended,
}
_FORMS: Final[Mapping[str, Any]] = {
    "system.message": _message,
    "agent.message": _message,
    "user.interrupt": lambda event, data: {},
    CONFIRMATION: _confirmation,
    RESOLUTION: _confirmation,
    CUSTOM_RESULT: _custom_result,
    "user.define_outcome": _defined,
    "agent.tool_use": _tool_use,
    CUSTOM_TOOL_USE: _custom_use,
    "session.status_changed": _changed,
    "session.error": _failed,
    "span.started": _span_started,
    "managed.updated": lambda event, data: {"type": "session.updated"},
    **dict.fromkeys(_TERMINAL, lambda event, data: {"type": "session.status_terminated"}),
}


# --- listing --------------------------------------------------------------------------------------


@describe(response=PageForm[WireEventForm])
async def listed(call: WireCall) -> Answer:
    """The oldest first, unless order=desc."""
    session: Session[Any] = await call.lp.get(call.key(), tail=0, archived=True)
    return await listed_of(call, session)


async def listed_of(call: WireCall, session: Session[Any]) -> Json:
    """A page of the events of a session, in the order of its log."""
    limit, ascending = call.limit(), call.is_ascending(default=True)
    types, created = call.texts("types"), call.times()
    place = place_in(call.text("page"))
    items: list[Json] = []
    while True:
        if ascending:
            events = await session.read(after=place, limit=_READ_AT_ONCE)
        else:
            before = place or None
            events = await session.read(before=before, limit=_READ_AT_ONCE, reverse=True)
        if not events:
            return page(items, None)
        for event in events:
            form = await form_of(session, event)
            if form is not None and len(items) == limit:
                return page(items, to_token(str(place)))
            place = event.seq
            if form is None or (types and form["type"] not in types):
                continue
            if created(event.at_us):
                items.append(form)
        if not ascending and place == 1:
            return page(items, None)
