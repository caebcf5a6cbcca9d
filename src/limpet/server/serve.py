"""Running a server: where it listens, and an orderly end.

uvicorn parses HTTP and websockets (see `connection`). On SIGTERM the server listens no more, what
is at work is finished, clients are told, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from limpet.errors import InvalidInput, StoreUnopened
from limpet.runtime.worker import Worker
from limpet.server.access import CallerOf
from limpet.server.app import build
from limpet.server.connection import BoundedProtocol
from limpet.server.limits import (
    CANCEL_SECONDS,
    COLLECTED_AFTER,
    DRAIN_SECONDS,
    HEADER_SECONDS,
    KEEP_ALIVE_SECONDS,
    RATE_PER_KEY,
    TURNS_SECONDS,
)
from limpet.server.loggers import SERVER
from limpet.server.service import Service
from limpet.session.limpet import Limpet
from limpet.session.tokens import Tokens
from limpet.store.logs import SHOWN
from limpet.store.remote.address import PLAIN_HTTP, is_loopback
from limpet.store.remote.messages import FRAME_BYTES_MAX

if TYPE_CHECKING:  # it loads numpy
    from limpet.analytics.analytics import Analytics

_UVICORN: Final = logging.getLogger("uvicorn.error")
_IN_PLAIN: Final = (
    f"{PLAIN_HTTP}: this server is reached from other machines without TLS. Keys and sessions can "
    "be read on the way: pass --tls-cert and --tls-key, or --behind-proxy if a proxy has TLS."
)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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
        self._left_at = float("inf")

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshake = None if self._tls is None else HEADER_SECONDS  # before it no protocol counts
        self._listening = await loop.create_server(
            self._protocol, sock=listening, ssl=self._tls, ssl_handshake_timeout=handshake
        )

    def _protocol(self) -> asyncio.Protocol:
        return BoundedProtocol(self._config, self._state, {}, asyncio.get_running_loop())

    def leave(self) -> None:
        """Listen no more, and be unready on the connections that there are. Calls, streams and
        turns go on until `stop`."""
        assert self._listening is not None
        self._listening.close()
        service: Service = self._app.state.service
        service.leaving = True
        self._left_at = min(self._left_at, time.monotonic())

    async def stop(self) -> None:
        """Listen no more, finish what is at work, tell the clients, and end."""
        self.leave()
        service: Service = self._app.state.service
        left = self._left_at + DRAIN_SECONDS - time.monotonic()
        try:
            async with asyncio.timeout(max(left, DRAIN_SECONDS - TURNS_SECONDS)):
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
    """Return a listening socket. Raises InvalidInput, StoreUnopened if the address is not free."""
    if not host:  # a socket would take it for every address of the machine
        raise InvalidInput("the host is empty. Name one: 127.0.0.1, or 0.0.0.0 for every address.")
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
    behind_proxy: bool = False,
    cors: Sequence[str] = (),
    tokens: Tokens | None = None,
    rate: float | None = RATE_PER_KEY,
    analytics: Analytics | None = None,
    folds: bool = False,
    stopped: asyncio.Event | None = None,
) -> AsyncIterator[str]:
    """Serve an open Limpet from this event loop; the URL. Port 0: any that is free.

    On leaving, what is at work is finished; the Limpet stays open. Once `stopped` is set nobody
    can connect any more, so that what still goes on beside the server ends without new work.
    Without TLS beyond this machine it logs a warning, unless a proxy before it has TLS.
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
    if tls is None and not (behind_proxy or is_loopback(host)):
        SERVER.warning("plain HTTP: host=%s code=%s", host, PLAIN_HTTP, extra={SHOWN: _IN_PLAIN})
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    leaving = None if stopped is None else asyncio.create_task(_leave(server, stopped))
    try:
        yield f"{scheme}://{shown}:{listening.getsockname()[1]}"
    finally:
        if leaving is not None:
            leaving.cancel()
        await server.stop()


async def _leave(server: Server, stopped: asyncio.Event) -> None:
    await stopped.wait()
    server.leave()


@asynccontextmanager
async def working(lp: Limpet, harnesses: Sequence[tuple[str | None, Any]]) -> AsyncIterator[None]:
    """Run the turns of apps beside the server; on leaving, they are finished or given back.

    Each harness has its app, None for every app that is not reserved. A turn that does not end when
    it is cancelled is left alone: its session is free again when its lease ends.
    """
    workers = [
        Worker(lp, harness, app=app, grace_seconds=TURNS_SECONDS, signals=False)
        for app, harness in harnesses
    ]
    tasks = [asyncio.ensure_future(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        if tasks:
            ended, late = await asyncio.wait(tasks, timeout=TURNS_SECONDS + CANCEL_SECONDS)
            if late:
                SERVER.warning("drain cut short: seconds=%.0f", TURNS_SECONDS + CANCEL_SECONDS)
            for task in ended:
                task.result()


def freeze_start() -> None:
    """Take what was made at the start out of garbage collection. It lives as long as the server,
    and to look at all of it again and again takes a sixth of the time of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)  # what requests leave behind is mostly freed without it


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
