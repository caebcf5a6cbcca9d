"""The stream of a session's events, as server-sent events.

It is subscribed before the headers leave. A logged event carries its seq as `id:`, so a client that
comes back with `Last-Event-ID`, or `?after=`, goes on where it was, on any server of the store. The
stream of an archived session ends with its last event. An input that was processed is shown a
second time, without an id; so are pieces of what a model is saying (`event_start`, `event_delta`):
of a message, of the calls of tools, and that it thinks. They come from workers in any process, and
may be lost. A reader that takes nothing for five seconds is cut off: it can come back.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator, Mapping, Set
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from limpet.errors import (
    FollowerBehind,
    InvalidQuery,
    LimpetError,
    SessionArchived,
    SessionDeleted,
    StoreClosed,
)
from limpet.model import Event
from limpet.model.facts.phases import ARCHIVED
from limpet.model.facts.running.requests import CUSTOM_TOOL_USE, asked_id
from limpet.server import ids
from limpet.server.answers import error_form
from limpet.server.limits import HEARTBEAT_SECONDS, SLOW_READER_SECONDS, STREAM_PIECE_BYTES
from limpet.server.managed.events import form_of
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    rfc3339,
    whole_number,
)
from limpet.server.openapi import STREAMED, describe
from limpet.server.service import Service
from limpet.session.session import Session

ABORT: Final = "limpet.abort"  # in the scope: cuts the connection off
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy passes each event on at once
]
_READ_AT_ONCE: Final = 200
T = TypeVar("T")
MESSAGE: Final = "agent.message"
THINKING: Final = "agent.thinking"
TOOL_USE: Final = "agent.tool_use"
_PREVIEWED: Final = frozenset((MESSAGE, THINKING, TOOL_USE))


def routes(service: Service) -> list[BaseRoute]:
    path = "/v1/sessions/{session_id}/events/stream"
    return [endpoint(service, path, "GET", stream)]


@describe(media_type=STREAMED)
async def stream(call: WireCall) -> Answer:
    """Stream events from now on, or from the event that the client saw last."""
    session: Session[Any] = await call.lp.get(call.key(), tail=0, archived=True)
    return await stream_of(call, session)


async def stream_of(call: WireCall, session: Session[Any]) -> WireStream:
    """The stream of a session that was loaded just now."""
    after = await place_to_go_on(call, session)
    wanted = _PREVIEWED & {*call.texts("event_deltas")}
    following = session.follow(after=after, partials=bool(wanted))
    events = until_archived(call, session, after, following)
    return WireStream(call, session, events, previews=wanted)


async def until_archived(
    call: WireCall, session: Session[Any], after: int, following: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """Events as they come. Those of an archived session that are left are read, and it ends: there
    will not be more."""
    if session.phase != ARCHIVED:
        with suppress(SessionArchived):
            async with aclosing(following):
                async for event in following:
                    yield event
                    after = max(after, event.seq)
        session = await call.lp.get(session.key, tail=0, archived=True)
    while events := await session.read(after=after, limit=_READ_AT_ONCE):
        for event in events:
            yield event
        after = events[-1].seq


async def place_to_go_on(call: WireCall, session: Session[Any]) -> int:
    """The seq of the last event that the client has. Raises InvalidQuery."""
    text = call.request.headers.get("last-event-id") or call.text("after")
    if text is None:
        return session.version
    if (place := whole_number(text)) is not None:
        if place > session.version:  # the events up to there would be passed over when they come
            raise InvalidQuery(f"after={place} is beyond the last event, {session.version}")
        return place
    events = await session.read_ids([ids.from_wire(ids.EVENT, text)])
    if not events:
        raise InvalidQuery(f"after={text[:100]!r} is not an event of this session")
    return events[0].seq


class EventStream(Response, Generic[T]):
    """A response that goes on until the client leaves, what is followed ends or the server does."""

    heartbeat = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, call: WireCall, items: AsyncGenerator[T, None]) -> None:
        super().__init__()
        self._call, self._items = call, items
        # Reads on from where it begins whenever it is first asked: nothing in between is missed.
        self._next: asyncio.Future[T] | None = None

    @staticmethod
    def frame(form: Json, id: int | str | None = None) -> bytes:
        """One frame; with an id, a client can come back and go on after it."""
        named = b"" if id is None else f"id: {id}\n".encode()
        return b"event: message\n" + named + b"data: " + msgspec.json.encode(form) + b"\n\n"

    async def shown(self, item: T) -> list[bytes]:
        """The frames of what came."""
        raise NotImplementedError

    async def ended(self, error: LimpetError) -> list[bytes]:
        """The frames that say why nothing more comes."""
        if isinstance(error, SessionDeleted):
            now = rfc3339(self._call.lp.now())
            gone = {"id": ids.to_wire(ids.EVENT, "deleted"), "type": "session.deleted"}
            return [self.frame({**gone, "processed_at": now})]
        said = msgspec.json.encode(error_form(error, ""))
        return [b"event: error\ndata: " + said + b"\n\n"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [*self.raw_headers, *_HEADERS]
        kept = [(name, value) for name, value in headers if name != b"content-length"]
        if scope["method"] == "HEAD":  # nothing would ever come
            await self._items.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": kept})
            await send({"type": "http.response.body", "body": b""})
            return
        self._next = asyncio.ensure_future(anext(self._items))
        await asyncio.sleep(0)  # it is subscribed now, before the headers leave
        stopping = asyncio.ensure_future(self._call.service.stopping.wait())
        lapsing = asyncio.ensure_future(self._call.caller.lapsed.wait())  # its key was revoked
        leaving = asyncio.ensure_future(_left(receive))
        writing = asyncio.ensure_future(self._write(scope, send, kept))
        tasks = (stopping, lapsing, leaving, writing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if stopping.done() and not stopping.cancelled():
            with suppress(Exception):
                await _progress(scope, send, b": the server ends, come back\n\n")
        with suppress(Exception):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _progress(scope, send, b": open\n\n")
        try:
            async with aclosing(self._frames()) as frames:
                async for frame in frames:
                    await _progress(scope, send, frame)
        except (FollowerBehind, StoreClosed):
            return  # the client comes back, and reads on from what it has
        except LimpetError as error:
            for frame in await self.ended(error):
                await _progress(scope, send, frame)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Frames as they come, and heartbeats while nothing does."""
        waiting: asyncio.Future[T] | None = self._next
        try:
            while True:
                if waiting is None:
                    waiting = asyncio.ensure_future(anext(self._items))
                done, _ = await asyncio.wait((waiting,), timeout=HEARTBEAT_SECONDS)
                if not done:
                    yield self.heartbeat
                    continue
                item, waiting = waiting.result(), None
                for frame in await self.shown(item):
                    yield frame
        except StopAsyncIteration:
            return
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await self._items.aclose()


class WireStream(EventStream[Event]):
    """The events of a session in the form of the wire."""

    def __init__(
        self,
        call: WireCall,
        session: Session[Any],
        events: AsyncGenerator[Event, None],
        *,
        previews: Set[str],
    ) -> None:
        super().__init__(call, events)
        self._session, self._previews = session, previews
        self._message: tuple[str, int] | None = None  # whose pieces come: its id and attempt
        self._begun: set[str] = set()  # the events of it whose previews were begun
        self._calls: list[int] = []  # the indexes of its calls, in their order

    async def shown(self, event: Event) -> list[bytes]:
        """The frames of an event, in the form of the wire."""
        if event.partial:
            return self._preview(event)
        frames = []
        processed = () if event.data is None else event.data.get("processed", ())
        if event.type.startswith("session.") and processed:
            for seq in processed:
                for read in await self._session.read(after=seq - 1, before=seq + 1):
                    if (form := await form_of(self._session, read)) is not None:
                        frames.append(self.frame(form))
        if (form := await form_of(self._session, event)) is not None:
            frames.append(self.frame(form, event.seq))
        return frames

    def _preview(self, event: Event) -> list[bytes]:
        """A piece of a message that is not recorded yet, or of a call that it makes."""
        if event.type != MESSAGE:
            return []
        if self._message != (event.id, event.attempt):  # it is begun again after a failure
            self._message = (event.id, event.attempt)
            self._begun, self._calls = set(), []
        data = event.data
        text, tool, reasoning = data.get("text"), data.get("tool"), data.get("reasoning")
        if isinstance(text, str) and MESSAGE in self._previews:
            piece = {"type": "text", "text": text}
            delta: Json = {"type": "content_delta", "index": 0, "content": piece}
            return self._pieces(MESSAGE, event.id, {}, delta)
        if isinstance(tool, Mapping) and TOOL_USE in self._previews:
            delta = {"type": "input_delta", "partial_json": tool.get("arguments", "")}
            call, type = self._call_id(event.id, tool), TOOL_USE
            id = f"{call}/use"
            if tool.get("client"):
                type, id = CUSTOM_TOOL_USE, asked_id(call)
            return self._pieces(type, id, _named_tool(tool), delta)
        if isinstance(reasoning, str) and THINKING in self._previews:
            return self._pieces(THINKING, f"{event.id}/thinking", {}, None)
        return []

    def _call_id(self, message: str, tool: Mapping[str, Any]) -> str:
        """The id that a call will have: calls are numbered in the order of indexes."""
        index = tool.get("index", 0)
        if index not in self._calls:
            insort(self._calls, index)
        return f"{message}-{self._calls.index(index)}"

    def _pieces(self, type: str, id: str, more: Json, delta: Json | None) -> list[bytes]:
        frames, wire_id = [], ids.to_wire(ids.EVENT, id)
        if id not in self._begun:
            self._begun.add(id)
            event = {"type": type, "id": wire_id, **more}
            frames.append(self.frame({"type": "event_start", "event": event}))
        if delta is not None:
            frames.append(self.frame({"type": "event_delta", "event_id": wire_id, "delta": delta}))
        return frames


def _named_tool(tool: Mapping[str, Any]) -> Json:
    name = tool.get("name")
    return {"name": name} if isinstance(name, str) else {}


async def _progress(scope: Scope, send: Send, body: bytes) -> None:
    """Send, or cut the connection off if the reader does not take anything.

    In pieces, each with its own time: a reader on a slow line takes long for all of a large event,
    and would be cut off at the same place whenever it came back.
    """
    try:
        for first in range(0, len(body), STREAM_PIECE_BYTES):
            piece = body[first : first + STREAM_PIECE_BYTES]
            async with asyncio.timeout(SLOW_READER_SECONDS):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        if abort := scope.get(ABORT):
            abort()
        raise


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
