"""One connection: uvicorn's HTTP protocol under our bounds, with fewer steps for each request.

uvicorn parses HTTP and hands requests to the app. Here a request whose headers or body do not come
is cut off, a client that reads nothing too, and most answers leave in one piece.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from limpet.errors import BodyTooLarge
from limpet.server.access import HEADERS
from limpet.server.limits import (
    BODY_SECONDS,
    CONNECTIONS_MAX,
    HEADER_BYTES_MAX,
    HEADER_SECONDS,
    JOINED_BYTES_MAX,
    KEEP_ALIVE_SECONDS,
    REFUSED_SECONDS,
    UNREAD_SECONDS,
)
from limpet.server.managed.stream import ABORT
from limpet.server.requests import body_bound

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_CLOSING: Final = b"connection: close\r\ncontent-length: 0\r\n\r\n"
_HEAD_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _CLOSING
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # but tabs and ends of lines


class JoinedWrites:
    """A transport that sends what one step of the event loop wrote in one piece: the head of an
    answer and its body, or all that a stream has to say.

    A client that takes nothing of it for UNREAD_SECONDS is cut off. Else an answer that nobody
    reads would stay in memory, also after its request has ended: closing waits for it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._sent_bytes = 0  # handed to the transport, all in all
        self._watch: asyncio.TimerHandle | None = None  # while something waits for the client
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > JOINED_BYTES_MAX:  # the transport says when its reader is too slow
            self._send()

    def write_last(self, data: bytes) -> None:
        """The end of an answer: it leaves at once, and what was written before it."""
        self._pieces.append(data)
        self._send()

    def _send(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._sent_bytes += len(data)
        self._transport.write(data)
        if self._watch is None and (left := self._transport.get_write_buffer_size()):
            self._wait(self._sent_bytes - left)

    def _wait(self, taken: int) -> None:
        self._watch = self._loop.call_later(UNREAD_SECONDS, self._look, taken)

    def _look(self, before: int) -> None:
        """Cut the connection off if the client has taken nothing since the last look."""
        self._watch = None
        left = self._transport.get_write_buffer_size()
        if not left:
            return
        taken = self._sent_bytes - left
        if taken == before:
            if (connected := self._transport.get_extra_info("socket")) is not None:
                # Reset it: the kernel would keep its part of the answer for minutes.
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()
        else:
            self._wait(taken)

    def end(self) -> None:
        """Send what was written, and that no more follows; the client may still send."""
        self._send()
        if self._transport.can_write_eof():  # TLS cannot
            self._transport.write_eof()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._pieces = []
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class RequestCycle(RequestResponseCycle):
    """A request and its answer. The head of an answer whose length is known waits for the first
    piece of its body, so that most answers are one write."""

    transport: JoinedWrites  # type: ignore[assignment]  # see `BoundedProtocol.connection_made`
    _head = b""

    def __init__(self, of: BoundedProtocol, *, keep_alive: bool) -> None:
        # All that the one above it sets, but its logs of requests: ours are `server.requests`.
        self.scope, self.transport, self.flow = of.scope, of.transport, of.flow  # type: ignore[assignment]
        self.logger = of.logger
        self.message_event = asyncio.Event()
        self.on_response = of.on_response_complete
        self._drop_body = of.drop_body
        self._too_long = False
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = of.expect_100_continue
        self.body = bytearray()
        self.more_body = True
        self.response_started = self.response_complete = False
        self.chunked_encoding: bool | None = None
        self.expected_content_length = 0

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            if not self.message_event.is_set():
                await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        if self._too_long:
            raise BodyTooLarge(body_bound(cast(Scope, self.scope)))
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def refuse_body(self) -> None:
        """Raise BodyTooLarge where the body is read, and close the connection after the answer."""
        self._too_long, self.keep_alive = True, False
        self.message_event.set()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message)
        elif not self.response_complete:
            self._go_on(message)
        else:
            raise RuntimeError(f"{message['type']} came after the end of the answer.")

    def _begin(self, message: Any) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"an answer begins with its head, not with {message['type']}.")
        self.response_started, self.waiting_for_100_continue = True, False
        status, closes, lines = message["status"], False, 1
        pieces = [STATUS_LINE[status]]
        for given, value in message.get("headers", ()):
            name = given.lower()
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
            pieces += (name, b": ", value, b"\r\n")
            lines += 1
        if not self.keep_alive and not closes:
            pieces.append(b"connection: close\r\n")
            lines += 1
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if self.chunked_encoding is None and has_body:
            self.chunked_encoding = True
            pieces.append(b"transfer-encoding: chunked\r\n")
            lines += 1
        head = b"".join(pieces)
        if head.count(b"\n") != lines or head.count(b"\r") != lines or _CONTROLS.search(head):
            raise RuntimeError("a header of an answer has a character that ends its line.")
        if self.chunked_encoding is False:
            self._head = head + b"\r\n"
        else:
            self.transport.write(head + b"\r\n")

    def _go_on(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"the head of an answer is followed by its body, not {message!r}.")
        body, more = message.get("body", b""), message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = body if more else body + b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body of an answer has another length than its head says.")
        if self._head:
            body, self._head = self._head + body, b""
        if more:
            self.transport.write(body)
            return
        self.transport.write_last(body)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and self.more_body:
            self._drop_body()
        elif not self.keep_alive:
            self.transport.close()
        self.on_response()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A client that sends too slowly, or too long headers or bodies, is cut off."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _body_bytes = 0
    _field_bytes = 0  # of the URL and headers, and of trailers after a body in chunks
    _in_head = True
    _seconds: float | None = None  # that the rest of a request may take; None: none is under way
    _refused = False  # what else comes is dropped
    _ended = False  # nothing more is sent
    _idle_since: float | None = None  # by the loop's clock; None: a request is under way
    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._seconds = HEADER_SECONDS
        self._wait_for(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # see `drop_body`
        if self._in_head:
            self._head_bytes += len(data)
        before = self._seconds
        super().data_received(data)
        # Most requests come whole, and need no timer. The head has one for all of it, a body one
        # for each piece.
        if self._timer is None or self._seconds != before or self._seconds == BODY_SECONDS:
            self._wait_for(self._seconds)
        if (
            self._in_head
            and self._head_bytes > HEADER_BYTES_MAX
            and not self.transport.is_closing()
        ):
            self._refuse(_HEAD_TOO_LONG)

    def on_message_begin(self) -> None:
        self._in_head, self._seconds = True, HEADER_SECONDS
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._first: dict[bytes, bytes] = {}
        scope: Scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": self.headers,
            "state": {},
            ABORT: self.transport.abort,
            HEADERS: self._first,
        }
        self.scope = cast(Any, scope)

    def on_url(self, url: bytes) -> None:
        self._field_bytes += len(url)
        if self._field_bytes > HEADER_BYTES_MAX:
            self._refuse(_HEAD_TOO_LONG)
        else:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value) + 4
        if self._field_bytes > HEADER_BYTES_MAX:
            self._refuse(_HEAD_TOO_LONG)
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        self._first.setdefault(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes, self._body_bytes = False, 0, 0
        self._seconds = BODY_SECONDS
        if self._refused:
            return
        parser, scope = self.parser, cast(Scope, self.scope)
        scope["method"] = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            return
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        before = self.cycle
        self.cycle = RequestCycle(self, keep_alive=version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # it was sent before the one before it was answered
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._ended or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE_SECONDS, self._look_idle)

    def _look_idle(self) -> None:
        """Close the connection if nothing came since the last answer. A timer for each answer would
        cost more than this look now and then."""
        self._idle_timer = None
        if self._idle_since is None:
            return  # the end of the answer that is under way begins it again
        left = self._idle_since + KEEP_ALIVE_SECONDS - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._look_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._body_bytes += len(body)
        if self._body_bytes < body_bound(cast(Scope, self.scope)):
            super().on_body(body)
            return
        cycle = cast(RequestCycle, self.cycle)
        if cycle.response_started:
            self._refuse(b"")
        else:  # its answer is the refusal, after those of earlier requests
            cycle.refuse_body()
            self._ignore_for(REFUSED_SECONDS)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes, self._field_bytes = True, 0, 0
        self._seconds = None
        if self._timer is not None:
            self._wait_for(None)
        if not self._refused:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._seconds = None
        self._wait_for(None)
        if not self._refused:
            super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._seconds = None
        self._wait_for(None)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def _wait_for(self, seconds: float | None) -> None:
        """Cut the connection off unless more comes in this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _refuse(self, answer: bytes) -> None:
        """Close the connection; with an answer, if none was begun."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(answer)
        self.transport.close()

    def drop_body(self) -> None:
        """Drop the rest of a body for a while: a client that is still sending when the connection
        is closed gets a reset, and not the answer."""
        self._ended = True
        cast(JoinedWrites, self.transport).end()
        self._ignore_for(REFUSED_SECONDS)

    def _ignore_for(self, seconds: float) -> None:
        """Take what comes, and do nothing with it; then cut the connection off."""
        self._refused = True
        self.flow.resume_reading()
        self._seconds = seconds
        self._wait_for(seconds)

    def _late(self) -> None:
        self._timer = None
        self.transport.abort()
