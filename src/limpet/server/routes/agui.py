"""AG-UI 1.0 at /agui: screens that talk to agents, with sessions as their threads.

One POST begins or rejoins a run, and is answered by a stream of its events. A thread is the session
of that id; its messages are recorded once, by their ids, so a request that is sent again, another
tab or a page that was reloaded finds the run under way and loses nothing. Runs are turns of a
worker, in this process or another: they go on when nobody looks.

What is streamed comes from the log and from the partials of a coming message. Pieces that were lost
are made up for by the recorded message; a message that was begun again is corrected by a snapshot
before the run ends. Requests for approval and questions are interrupts, which a later run resumes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute

from limpet.errors import (
    InvalidInput,
    LimpetError,
    RequestAnswered,
    RequestNotFound,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from limpet.model import Event, Key, thaw
from limpet.model.diff.changes import Change, Kind
from limpet.model.diff.diff import diff
from limpet.model.due import runnable_us
from limpet.model.facts.running.requests import Request
from limpet.model.limits import PAGE_MAX
from limpet.server.managed.stream import EventStream
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint, rfc3339
from limpet.server.openapi import STREAMED, describe
from limpet.server.service import Service
from limpet.session.conversation.pieces import ShownPieces
from limpet.session.conversation.shapes import Message
from limpet.session.life.tools import Tool
from limpet.session.limpet import Limpet
from limpet.session.session import Session

PROTOCOL: Final = "1.0"
CLIENT: Final = "agui"  # the name in state: the tools, context and properties that a screen sent
_SPOKEN: Final = {"user": "user.message", "system": "system.message", "developer": "system.message"}
_USES: Final = ("agent.tool_use", "agent.custom_tool_use")
_RESULTS: Final = ("agent.tool_result", "user.custom_tool_result")
_IDLE: Final = "session.status_idle"
_ERRORS: Final = ("retries_exhausted", "budget_reached", "terminated")
_STEPS: Final = ("step", "model", "tool")  # kinds of spans that a screen shows as steps
_ID_CHARS_MAX: Final = 200
_FAILED: Final = "failed"  # the status of a tool's result that is an error
_MEDIA: Final = ("image", "audio", "video", "document", "binary")  # parts as a screen sends them
_SCOPED: Final = ("app:", "user:", "temp:")  # names that other sessions read, or none
_SCHEMAS: Final[Mapping[str, Json]] = {
    "approval": {
        "type": "object",
        "required": ["allow"],
        "properties": {"allow": {"type": "boolean"}, "note": {"type": "string"}},
    },
    "question": {},
    "unknown_effect": {
        "type": "object",
        "required": ["decision"],
        "properties": {
            "decision": {"enum": ["happened", "run_again", "give_up"]},
            "output": {},
            "note": {"type": "string"},
        },
    },
    "mismatch": {
        "type": "object",
        "required": ["decision"],
        "properties": {"decision": {"enum": ["run_again", "give_up"]}},
    },
}


class AgUiResume(msgspec.Struct, rename="camel"):
    """The answer to an interrupt."""

    interrupt_id: str
    status: str
    payload: Any = None


class AgUiRun(msgspec.Struct, rename="camel"):
    """The body of a run: RunAgentInput of the protocol."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    protocol_version: str | None = None
    parent_run_id: str | None = None
    state: Any = None
    tools: list[dict[str, Any]] | None = None
    context: list[dict[str, Any]] | None = None
    forwarded_props: Any = None
    resume: list[AgUiResume] | None = None


def routes(service: Service) -> list[BaseRoute]:
    return [
        endpoint(service, "/agui", "POST", run),
        endpoint(service, "/agui", "GET", capabilities),
    ]


async def capabilities(call: WireCall) -> Answer:
    """The capabilities that a screen may rely on: AgentCapabilities of the protocol."""
    return {
        "identity": {"name": call.app, "type": "limpet", "version": PROTOCOL},
        "transport": {"streaming": True, "resumable": True},
        "tools": {"supported": True, "parallelCalls": True, "clientProvided": True},
        "state": {"snapshots": True, "deltas": True, "persistentState": True},
        "multiAgent": {"supported": True, "delegation": True},
        "humanInTheLoop": {"supported": True, "approvals": True, "interrupts": True},
    }


@describe(media_type=STREAMED)
async def run(call: WireCall) -> Answer:
    """Begin a run of a thread, or rejoin the one under way; stream its events to the end.

    New messages of the thread are recorded before the first event is sent.
    """
    asked = await call.body(AgUiRun)
    if not asked.thread_id or not asked.run_id:
        raise InvalidInput("threadId and runId are texts that are not empty.")
    client_tools({CLIENT: {"tools": asked.tools or []}})  # refused now, not in the turn
    key = Key(call.app, call.user, asked.thread_id)
    try:
        session, history = await call.lp.get(key, tail=0), True
    except SessionNotFound:
        session, history = await _new_thread(call.lp, key, asked), False
    before = session.version if history else 1
    answered = await _record(session, asked)
    events = _events(session, asked, before, history=history, answered=answered)
    return AgUiStream(call, events)


def client_tools(state: Mapping[str, Any]) -> list[Tool]:
    """The tools that the screen of a thread offers, for a harness: `client_tools(turn.state)`.

    They have no function: the screen runs them, and its next run brings their results. Raises
    InvalidInput for one that no model can be offered.
    """
    return [_client_tool(each) for each in state.get(CLIENT, {}).get("tools", ())]


def _client_tool(offered: Mapping[str, Any]) -> Tool:
    parameters, said = offered.get("parameters") or {"type": "object"}, offered.get("description")
    if not isinstance(parameters, Mapping):
        raise InvalidInput("the parameters of a tool are a JSON schema: an object.")
    description = said if isinstance(said, str) else ""
    return Tool(offered.get("name", ""), "1.0.0", thaw(parameters), description=description)


class AgUiStream(EventStream[Json]):
    """The events of a run, as the protocol's clients read them."""

    heartbeat = b": ping\n\n"

    async def shown(self, event: Json) -> list[bytes]:
        """Return the frame of one event."""
        return [b"data: " + msgspec.json.encode(event) + b"\n\n"]

    async def ended(self, error: LimpetError) -> list[bytes]:
        """End the run by an event of the protocol: its clients refuse others."""
        return await self.shown({"type": "RUN_ERROR", "message": str(error), "code": error.code})


# --- what a request brings -----------------------------------------------------------------------


async def _new_thread(lp: Limpet, key: Key, asked: AgUiRun) -> Session[Any]:
    """Create the session of a thread with the first messages, in one commit."""
    spoken = [_spoken(each) for each in asked.messages if each.get("role") in _SPOKEN]
    changes = _client_changes({}, asked)
    try:
        async with lp.commit() as c:
            session = c.create(key.app, key.user, key.id)
            for type, content, id in spoken:
                c.append(session, type, content, id=id, set=changes)
                changes = {}
    except (SessionExists, SessionDeleted):  # another request was faster, or the id was used before
        return await lp.get_or_create(key.app, key.user, id=key.id)
    return session


async def _record(session: Session[Any], asked: AgUiRun) -> bool:
    """Record what is new: messages by their ids, results of the screen's tools, answers.

    The screen's state is set with the first of them. A request without any sets nothing: it may
    come from a page that has not seen what the agent changed since. True if something was answered.
    """
    spoken = [_spoken(each) for each in asked.messages if each.get("role") in _SPOKEN]
    known: set[str] = set()
    ids = [id for _, _, id in spoken]
    for first in range(0, len(ids), PAGE_MAX):
        events = await session.read_ids(ids[first : first + PAGE_MAX])
        known |= {event.id for event in events}
    changes = _client_changes(session.state, asked)
    for type, content, id in spoken:
        if id not in known:
            await session.append(type, content, id=id, set=changes)
            changes = {}
    answered = False
    for request, entry in _answers(asked, {each.id: each for each in session.blocked_on}):
        if changes:  # before the turn goes on, and reads it
            await session.append("screen.changed", set=changes)
            changes = {}
        await _resume(session, request, entry)
        answered = True
    return answered


def _answers(
    asked: AgUiRun, open_requests: dict[str, Request]
) -> Iterator[tuple[Request, AgUiResume]]:
    """Yield the answers to open requests: results of the screen's tools, and what is resumed.

    Others were given before, here or by another tab. A tool's result never approves anything.
    """
    for message in asked.messages:
        request = open_requests.get(str(message.get("toolCallId")))
        if message.get("role") == "tool" and request is not None and request.kind == "question":
            del open_requests[request.id]
            status = _FAILED if isinstance(message.get("error"), str) else "resolved"
            yield request, AgUiResume(request.id, status, _output(message.get("content")))
    for entry in asked.resume or ():
        request = open_requests.pop(entry.interrupt_id, None)
        if request is not None:
            yield request, entry


def _client_changes(state: Mapping[str, Any], asked: AgUiRun) -> Json:
    """The names that a screen changed: its own state, and what it offers."""
    given = asked.state if isinstance(asked.state, dict) else {}
    changes = {name: value for name, value in given.items() if state.get(name) != value}
    changes.pop(CLIENT, None)
    for name in changes:
        if name.startswith(_SCOPED):
            raise InvalidInput(
                f"state.{name} is not a field of the session: a screen sets no other."
            )
    offers = {
        "tools": asked.tools or [],
        "context": asked.context or [],
        "forwarded_props": asked.forwarded_props,
    }
    offered = {name: value for name, value in offers.items() if value}
    if offered != state.get(CLIENT, {}):
        changes[CLIENT] = offered
    return changes


async def _resume(session: Session[Any], request: Request, entry: AgUiResume) -> None:
    payload, cancelled = entry.payload, entry.status == "cancelled"
    fields = payload if isinstance(payload, dict) else {}
    note = fields.get("note") if isinstance(fields.get("note"), str) else None
    try:
        if request.kind == "approval":
            allowed = fields.get("allow", fields.get("approved", payload))
            if not cancelled and not isinstance(allowed, bool):
                raise InvalidInput("the payload of an approval is {allow: true} or {allow: false}.")
            await session.confirm(request.id, allow=allowed is True and not cancelled, note=note)
        elif request.kind == "question":
            output = "The user cancelled this." if cancelled else payload
            failed = cancelled or entry.status == _FAILED
            await session.answer(request.id, output, is_error=failed)
        elif cancelled or fields.get("decision") == "give_up":
            await session.resolve(request.id, give_up=True, note=note)
        elif fields.get("decision") == "happened" and request.kind == "unknown_effect":
            await session.resolve(request.id, happened=fields.get("output"), note=note)
        elif fields.get("decision") == "run_again":
            await session.resolve(request.id, run_again=True, note=note)
        else:
            raise InvalidInput("the payload says a decision: happened, run_again or give_up.")
    except (RequestAnswered, RequestNotFound):  # another tab was faster
        return


def _spoken(message: Mapping[str, Any]) -> tuple[str, Json, str]:
    """The type, the data and the id of a message's event."""
    return _SPOKEN[message["role"]], _content(message.get("content")), _id(message)


def _id(message: Mapping[str, Any]) -> str:
    id = message.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= _ID_CHARS_MAX:
        raise InvalidInput(f"a message has an id of 1 to {_ID_CHARS_MAX} characters.")
    return id


def _content(content: Any) -> Json:
    if isinstance(content, str):
        return {"text": content}
    if not isinstance(content, list):
        raise InvalidInput("the content of a message is a text, or a list of parts.")
    parts = [
        part if isinstance(part, dict) and part.get("type") == "text" else _media(part)
        for part in content
    ]
    return {"content": parts}


def _media(part: Any) -> Json:
    source = part.get("source") if isinstance(part, dict) else None
    if isinstance(source, dict) and part.get("type") == "image":
        name, value, media = source.get("type"), source.get("value"), source.get("mimeType")
        if name in ("data", "url") and isinstance(value, str):
            kind = {"media_type": media} if isinstance(media, str) else {}
            return {"type": "image", name: value, **kind}
    return {"type": "data", "data": part}


def _output(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except ValueError:
        return content


# --- the events of a run --------------------------------------------------------------------------


async def _events(
    session: Session[Any], asked: AgUiRun, before: int, *, history: bool, answered: bool
) -> AsyncGenerator[Json, None]:
    """Yield the events of a run: where the thread stands, what happens, and how it ended."""
    started: Json = {"threadId": asked.thread_id, "runId": asked.run_id}
    yield {"type": "RUN_STARTED", **started, "protocolVersion": PROTOCOL}
    await session.refresh()
    # The events between were recorded by this request, or by a worker since: they are streamed.
    state = thaw(await session.history.at(before)) if before else {}
    if history:
        yield {"type": "MESSAGES_SNAPSHOT", "messages": await _messages(session, upto=before)}
    yield {"type": "STATE_SNAPSHOT", "snapshot": _visible(state)}
    shown = _Shown(session, state)
    # Messages wait while the session waits for an answer: no worker takes them before.
    if _is_over(session) and not answered:
        while events := await session.read(after=before, limit=PAGE_MAX):
            before = events[-1].seq
            for event in events:
                for form in await shown.events_of(event):
                    yield form
        async for each in _ending(session, asked, shown, stop_reason=session.stop_reason):
            yield each
        return
    async with aclosing(session.follow(after=before)) as following:
        async for event in following:
            for form in await shown.events_of(event):
                yield form
            if event.type != _IDLE or event.data.get("stop_reason") == "rescheduling":
                continue
            await session.refresh()
            if event.seq < session.version and not _is_over(session):
                continue  # a later input is being processed
            if _is_over(session):
                reason = event.data.get("stop_reason")
                async for each in _ending(session, asked, shown, stop_reason=reason):
                    yield each
                return


def _is_over(session: Session[Any]) -> bool:
    """True if no worker will go on before somebody says something."""
    head = session.head
    # Input that failed for good stays pending, and no worker takes it again.
    failed = session.stop_reason in _ERRORS and runnable_us(head) is None
    return session.status != "running" and (not head.pending or bool(session.blocked_on) or failed)


async def _ending(
    session: Session[Any], asked: AgUiRun, shown: _Shown, *, stop_reason: str | None
) -> AsyncGenerator[Json, None]:
    for each in shown.close():
        yield each
    if shown.needs_snapshot:
        messages = await _messages(session, upto=session.version)
        yield {"type": "MESSAGES_SNAPSHOT", "messages": messages}
    ended: Json = {"threadId": asked.thread_id, "runId": asked.run_id}
    usage = {"usage": [shown.usage]} if shown.usage else {}
    if stop_reason in _ERRORS:
        failure = session.runs.failure
        message = f"The run ended: {stop_reason}." if failure is None else failure.message
        yield {"type": "RUN_ERROR", "message": message, "code": stop_reason, **usage}
        return
    outcome: Json = {"type": "success"}
    if stop_reason == "interrupted":
        outcome = {"type": "cancelled"}
    elif requests := session.blocked_on:
        offered = {each.get("name") for each in asked.tools or ()}
        calls = [r.id for r in requests if r.kind == "question" and r.name in offered]
        if len(calls) == len(requests):  # the screen runs them, and brings the results
            outcome["pendingToolCallIds"] = calls
        else:
            outcome = {"type": "interrupt", "interrupts": [_interrupt(r) for r in requests]}
    yield {"type": "RUN_FINISHED", **ended, "outcome": outcome, **usage}


def _interrupt(request: Request) -> Json:
    texts = {
        "approval": f"May {request.name} be used?",
        "question": f"{request.name} asks.",
        "unknown_effect": f"{request.name} may have happened: its result is not known.",
        "mismatch": f"The program changed while {request.name} waited.",
    }
    interrupt: Json = {
        "id": request.id,
        "reason": request.kind,
        "message": texts[request.kind],
        "responseSchema": _SCHEMAS[request.kind],
        "metadata": {"name": request.name, "input": request.input},
    }
    if request.kind in ("approval", "question"):
        interrupt["toolCallId"] = request.id
    if request.deadline is not None:
        interrupt["expiresAt"] = rfc3339(request.deadline)
    return interrupt


class _Shown:
    """The part of a run that a stream has shown: the open message, open steps and the state."""

    def __init__(self, session: Session[Any], state: Json) -> None:
        self._session, self._state = session, state
        self._pieces = ShownPieces()
        self._said: str | None = None  # the id of the last recorded message
        self._ended: str | None = None  # the message whose text was ended by a call of a tool
        self._calls: dict[str, str] = {}  # calls that are being streamed, and their arguments
        self._steps: dict[str, str] = {}  # open spans and their names
        self._thought: str | None = None  # the id of the reasoning that is being streamed
        self._thoughts = 0
        self.usage: Json = {}
        self.needs_snapshot = False

    async def events_of(self, event: Event) -> list[Json]:
        """Return what one event of the log, or one partial, is to a screen."""
        if event.partial:
            return self._piece(event)
        shown: list[Json] = []
        if isinstance(event.data, Mapping):
            if event.type == "agent.message":
                shown += [*self._end_thought(), *self._recorded(event)]
            elif event.type in _USES:
                shown += self._call(event)
            elif event.type in _RESULTS:
                shown.append(_result(event))
            elif event.type in ("span.started", "span.completed"):
                shown += self._step(event)
            elif event.type.startswith("session.child_"):
                shown += _subagent(event)
        if event.ops:
            shown += await self._delta()
        return shown

    def close(self) -> list[Json]:
        """Return what ends everything that is open."""
        ends = [{"type": "STEP_FINISHED", "stepName": name} for name in self._steps.values()]
        ends += [{"type": "TOOL_CALL_END", "toolCallId": id} for id in self._calls]
        self.needs_snapshot |= bool(self._calls)  # they were begun, and never recorded
        self._steps.clear()
        self._calls.clear()
        return [*self._end_thought(), *ends, *self._end_message(self._pieces.id)]

    def _piece(self, event: Event) -> list[Json]:
        before = self._pieces.id
        text = self._pieces.add(event)
        data = event.data if isinstance(event.data, Mapping) else {}
        fragment, thought = data.get("tool"), data.get("reasoning")
        if isinstance(thought, str) and thought and self._pieces.follows(event):
            return self._think(event.id, thought)
        if isinstance(fragment, Mapping) and self._pieces.follows(event):
            return [*self._end_thought(), *self._fragment(event.id, fragment)]
        if text and self._ended == event.id:
            self.needs_snapshot = True  # said behind a call of a tool, when its text was ended
        if not text or self._ended == event.id:
            return []
        content = {"type": "TEXT_MESSAGE_CONTENT", "messageId": event.id, "delta": text}
        if before == event.id:
            return [*self._end_thought(), content]
        return [*self._end_thought(), *self._end_message(before), _start(event.id), content]

    def _think(self, message: str, text: str) -> list[Json]:
        """Return what a piece of reasoning is. It is shown as it comes, and not recorded."""
        shown: list[Json] = []
        if self._thought is None:
            self._thoughts += 1
            self._thought = f"{message}/reasoning-{self._thoughts}"
            shown += [
                {"type": "REASONING_START", "messageId": self._thought},
                {
                    "type": "REASONING_MESSAGE_START",
                    "messageId": self._thought,
                    "role": "reasoning",
                },
            ]
        content = {"type": "REASONING_MESSAGE_CONTENT", "messageId": self._thought, "delta": text}
        return [*shown, content]

    def _end_thought(self) -> list[Json]:
        id, self._thought = self._thought, None
        if id is None:
            return []
        return [{"type": f"REASONING_{end}", "messageId": id} for end in ("MESSAGE_END", "END")]

    def _fragment(self, message: str, fragment: Mapping[str, Any]) -> list[Json]:
        """Return what a piece of a call's arguments is. Its id is that of the coming call."""
        id, name = fragment.get("request_id"), fragment.get("name")
        if not isinstance(id, str) or not isinstance(name, str) or not name:
            return []
        shown: list[Json] = []
        if id not in self._calls:
            if self._pieces.id == message != self._ended:
                shown.append({"type": "TEXT_MESSAGE_END", "messageId": message})
            self._ended = message
            self._calls[id] = ""
            shown.append(_call_start(id, name, message))
        if delta := str(fragment.get("arguments") or ""):
            self._calls[id] += delta
            shown.append({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": delta})
        return shown

    def _end_message(self, id: str | None) -> list[Json]:
        """End a message that was not recorded as it was begun: a snapshot says what was."""
        if id is None or id == self._ended:
            return []
        self.needs_snapshot = True
        return [{"type": "TEXT_MESSAGE_END", "messageId": id}]

    def _recorded(self, event: Event) -> list[Json]:
        self._said = event.id
        self._add_usage(event.data)
        before = self._pieces.id
        rest, replaces = self._pieces.finish(event)
        if self._ended == event.id:  # its text was ended when it began to call tools
            self._ended = None
            self.needs_snapshot |= bool(rest.strip()) or replaces
            return []
        shown = [] if before in (None, event.id) else self._end_message(before)
        if before != event.id:
            if not rest.strip():
                return shown
            shown.append(_start(event.id))
        if replaces:
            self.needs_snapshot = True  # it was begun again, and went another way
        elif rest:
            content = {"type": "TEXT_MESSAGE_CONTENT", "messageId": event.id, "delta": rest}
            shown.append(content)
        return [*shown, {"type": "TEXT_MESSAGE_END", "messageId": event.id}]

    def _add_usage(self, data: Mapping[str, Any]) -> None:
        usage = data.get("usage")
        if not isinstance(usage, Mapping):
            return
        names = {
            "input": "inputTokens",
            "output": "outputTokens",
            "cache_read": "cachedInputTokens",
        }
        for ours, theirs in names.items():
            if type(count := usage.get(ours)) is int:
                self.usage[theirs] = self.usage.get(theirs, 0) + count
        if isinstance(model := data.get("model"), str):
            self.usage["model"] = model

    def _call(self, event: Event) -> list[Json]:
        id, name = event.data.get("request_id"), event.data.get("name")
        if not isinstance(id, str) or not isinstance(name, str) or "awaits" in event.data:
            return []
        whole, end = json.dumps(thaw(event.data.get("input") or {})), {"type": "TOOL_CALL_END"}
        streamed = self._calls.pop(id, None)
        shown = [_call_start(id, name, self._said)] if streamed is None else []
        if whole.startswith(streamed or ""):
            rest = whole.removeprefix(streamed or "")
            shown += [{"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": rest}] if rest else []
        elif _output(streamed) != json.loads(whole):
            self.needs_snapshot = True  # pieces were lost, or the model was asked again
        return [*shown, {**end, "toolCallId": id}]

    def _step(self, event: Event) -> list[Json]:
        id = event.data.get("span_id")
        if event.type == "span.started":
            if event.data.get("kind") not in _STEPS or not isinstance(id, str):
                return []
            self._steps[id] = str(event.data.get("name"))
            return [{"type": "STEP_STARTED", "stepName": self._steps[id]}]
        name = self._steps.pop(id, None) if isinstance(id, str) else None
        return [] if name is None else [{"type": "STEP_FINISHED", "stepName": name}]

    async def _delta(self) -> list[Json]:
        await self._session.refresh()
        state = thaw(self._session.state)
        patch = list(json_patch(_visible(self._state), _visible(state)))
        self._state = state
        return [{"type": "STATE_DELTA", "delta": patch}] if patch else []


def _start(id: str) -> Json:
    return {"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}


def _call_start(id: str, name: str, message: str | None) -> Json:
    parent = {} if message is None else {"parentMessageId": message}
    return {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name, **parent}


def _result(event: Event) -> Json:
    output = event.data.get("output")
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": event.id,
        "toolCallId": str(event.data.get("request_id")),
        "content": output if isinstance(output, str) else json.dumps(thaw(output)),
        "role": "tool",
    }


def _subagent(event: Event) -> list[Json]:
    child = event.data.get("child")
    if not isinstance(child, str):
        return []
    if event.type == "session.child_created":
        name = str(event.data.get("title") or child)
        return [{"type": "SUBAGENT_STARTED", "subagentRunId": child, "name": name}]
    if event.type != "session.child_ended":
        return []
    reason = event.data.get("stop_reason")
    if reason in _ERRORS:
        message = str(event.data.get("summary") or f"It ended: {reason}.")
        return [{"type": "SUBAGENT_ERROR", "subagentRunId": child, "message": message}]
    result = thaw(event.data.get("output"))
    ended: Json = {"type": "SUBAGENT_FINISHED", "subagentRunId": child}
    return [{**ended, "result": result, "outcome": {"type": "success"}}]


# --- messages and state ---------------------------------------------------------------------------


async def _messages(session: Session[Any], *, upto: int) -> list[Json]:
    """The conversation up to an event, as the protocol has it."""
    said = [each for each in await session.messages() if each.event.seq <= upto]
    return [form for each in said if (form := _message(each)) is not None]


def _message(message: Message) -> Json | None:
    part = message.parts[0] if message.parts else {}
    form: Json = {"id": message.event.id, "role": message.role}
    if part.get("type") == "tool_use":
        function = {"name": part["name"], "arguments": json.dumps(thaw(part["input"]))}
        call = {"id": part["request_id"], "type": "function", "function": function}
        return {**form, "toolCalls": [call]}
    if part.get("type") == "tool_result":
        output = part["output"]
        content = output if isinstance(output, str) else json.dumps(thaw(output))
        return {**form, "toolCallId": part["request_id"], "content": content}
    if message.role == "user" and any(part.get("type") != "text" for part in message.parts):
        inputs = [each for part in message.parts if (each := _input(part)) is not None]
        return {**form, "content": inputs}
    if message.role in ("user", "system", "assistant") and message.text:
        return {**form, "content": message.text}
    return None


def _input(part: Mapping[str, Any]) -> Json | None:
    """A part of what a user said, as a screen sends it; None if the protocol has no word for it."""
    kind, data = part.get("type"), part.get("data")
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    if kind == "image":
        media = {"mimeType": part["media_type"]} if part.get("media_type") else {}
        if isinstance(data, str):
            source = {"type": "data", "value": data, "mimeType": "image/png", **media}
        else:
            source = {"type": "url", "value": str(part.get("url")), **media}
        return {"type": "image", "source": source}
    if kind == "data" and isinstance(data, Mapping) and data.get("type") in _MEDIA:
        return dict(thaw(data))
    return None


def _visible(state: Mapping[str, Any]) -> Json:
    """Return the state shared with a screen: the session's fields without what the screen sent."""
    return {n: v for n, v in state.items() if n != CLIENT and not n.startswith(_SCOPED)}


def json_patch(old: Json, new: Json) -> Iterator[Json]:
    """The operations of RFC 6902 that turn one state into another."""
    for change in diff(old, new).changes:
        yield from _operations(change)


def _operations(change: Change) -> Iterator[Json]:
    if change.length is not None:  # a run of items of a list
        *place, first = change.path
        assert isinstance(first, int)
        if change.kind is Kind.ADD:
            for n, item in enumerate(change.new):
                yield {"op": "add", "path": _pointer((*place, first + n)), "value": thaw(item)}
        else:
            for _ in change.old:
                yield {"op": "remove", "path": _pointer(change.path)}
    elif change.kind is Kind.DELETE:
        yield {"op": "remove", "path": _pointer(change.path)}
    else:
        op = "add" if change.kind is Kind.ADD else "replace"
        yield {"op": op, "path": _pointer(change.path), "value": thaw(change.new)}


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(each).replace("~", "~0").replace("/", "~1") for each in path)
