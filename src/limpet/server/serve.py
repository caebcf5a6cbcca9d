"""Running a server: uvicorn's protocols under our bounds, and an orderly end.

uvicorn parses HTTP and websockets. When it listens, what it refuses and how it ends is decided
here: a request whose headers or body do not come is cut off; on SIGTERM the server listens no more,
what is at work is finished, clients are told, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from limpet.errors import InvalidInput, StoreUnopened
from limpet.runtime.worker import Worker
from limpet.server.access import CallerOf, is_loopback
from limpet.server.app import build
from limpet.server.limits import (
    BODY_BYTES_MAX,
    BODY_SECONDS,
    CONNECTIONS_MAX,
    DRAIN_SECONDS,
    HEADER_BYTES_MAX,
    HEADER_SECONDS,
    JOINED_BYTES_MAX,
    KEEP_ALIVE_SECONDS,
    RATE_PER_KEY,
    UNREAD_SECONDS,
)
from limpet.server.loggers import SERVER
from limpet.server.managed.stream import ABORT
from limpet.server.service import Service
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens
from limpet.store.remote.messages import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, PATH

if TYPE_CHECKING:  # it loads numpy
    from limpet.analytics.analytics import Analytics

_UVICORN: Final = logging.getLogger("uvicorn.error")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_CLOSING: Final = b"connection: close\r\ncontent-length: 0\r\n\r\n"
_HEAD_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _CLOSING
_BODY_TOO_LONG: Final = b"HTTP/1.1 413 Content Too Large\r\n" + _CLOSING


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

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._pieces = []
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Whoever sends headers or a body too slowly, or too long ones, is cut off."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _body_bytes = 0
    _field_bytes = 0  # of the URL and headers, and of trailers after a body in chunks
    _in_head = True
    _seconds: float | None = None  # that the rest of a request may take; None: none is under way
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._seconds = HEADER_SECONDS
        self._wait_for(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
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
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]

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
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes, self._body_bytes = False, 0, 0
        self._seconds = BODY_SECONDS
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._body_bytes += len(body)
        most = MESSAGE_BYTES_MAX if self.scope["path"].endswith(PATH) else BODY_BYTES_MAX
        if self._body_bytes > most:
            self._refuse(_BODY_TOO_LONG)
            return
        super().on_body(body)

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

    def _late(self) -> None:
        self._timer = None
        self.transport.abort()


class Server:
    """One listening server."""

    def __init__(self, app: Starlette, *, tls: ssl.SSLContext | None = None) -> None:
        self._app, self._tls = app, tls
        self._config = uvicorn.Config(
            app,
            loop="none",
            http=BoundedProtocol,
            ws="websockets-sansio",
            ws_max_size=FRAME_BYTES_MAX,
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,  # a client can write them too; policies and the audit believe it
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        _UVICORN.addFilter(_is_failure)
        self._state = ServerState()
        self._listening: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshake = None if self._tls is None else HEADER_SECONDS  # before it no protocol counts
        self._listening = await loop.create_server(
            self._protocol, sock=listening, ssl=self._tls, ssl_handshake_timeout=handshake
        )

    def _protocol(self) -> asyncio.Protocol:
        return BoundedProtocol(self._config, self._state, {}, asyncio.get_running_loop())

    async def stop(self) -> None:
        """Listen no more, finish what is at work, tell the clients, and end."""
        assert self._listening is not None
        self._listening.close()
        service: Service = self._app.state.service
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await service.close()
        except TimeoutError:
            SERVER.warning("drain cut short: seconds=%.0f", DRAIN_SECONDS)
        for connection in tuple(self._state.connections):
            with suppress(Exception):  # a websocket that is just closing refuses it
                connection.shutdown()
        tasks: list[asyncio.Task[Any]] = list(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._state.connections):
            connection.transport.abort()


def _is_failure(record: logging.LogRecord) -> bool:
    """False of a websocket that was answered with a refusal, which uvicorn takes for a failure."""
    return "without completing handshake" not in record.msg


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises StoreUnopened if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, TypeError, UnicodeError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or "it is not the name of a host"
        raise StoreUnopened(
            f"{host!r}, port {port},", f"{reason}; choose another host or port"
        ) from error
    return listening


@asynccontextmanager
async def serving(
    lp: Limpet,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    dev: bool = False,
    caller_of: CallerOf | None = None,
    tls: ssl.SSLContext | None = None,
    cors: Sequence[str] = (),
    tokens: Tokens | None = None,
    rate: float | None = RATE_PER_KEY,
    analytics: Analytics | None = None,
    folds: bool = False,
) -> AsyncIterator[str]:
    """Serve an open Limpet from this event loop; the URL. Port 0: any that is free.

    On leaving, what is at work is finished; the Limpet stays open.
    """
    if dev and not is_loopback(host):
        raise InvalidInput("--dev lets everybody in: it listens on 127.0.0.1 or ::1 only.")
    app = build(
        lp,
        dev=dev,
        caller_of=caller_of,
        cors=cors,
        tokens=tokens,
        rate=rate,
        analytics=analytics,
        folds=folds,
    )
    server = Server(app, tls=tls)
    listening = listen(host, port)
    await server.start(listening)
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    try:
        yield f"{scheme}://{shown}:{listening.getsockname()[1]}"
    finally:
        await server.stop()


@asynccontextmanager
async def working(lp: Limpet, harnesses: Sequence[tuple[str | None, Any]]) -> AsyncIterator[None]:
    """Run the turns of apps beside the server; on leaving, they are finished or given back.

    Each harness has its app, None for every app that is not reserved.
    """
    workers = [Worker(lp, harness, app=app, signals=False) for app, harness in harnesses]
    tasks = [asyncio.ensure_future(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


def freeze_start() -> None:
    """Take what was made at the start out of garbage collection. It lives as long as the server,
    and to look at all of it again and again takes a sixth of the time of a request."""
    gc.collect()
    gc.freeze()


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Catch SIGTERM and SIGINT: the event is set by the first one. A second one ends the process at
    once, as it would without us."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def release() -> None:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)

    def stop(number: signal.Signals) -> None:
        SERVER.info("stopping: signal=%s", number.name)
        stopped.set()
        release()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        release()
