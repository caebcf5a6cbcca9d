"""A stream of the Managed Agents wire and a reader that does not read."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import limpet
from limpet.server.app import build
from limpet.server.managed import stream
from limpet.server.managed.stream import ABORT
from limpet.server.serve import Server, listen

BLOCK = "x" * 500_000
EVENTS = 60  # more than all buffers on the way hold


async def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is aborted, so that its buffers are free; others go on."""
    monkeypatch.setattr(stream, "SLOW_READER_SECONDS", 0.2)
    cut = asyncio.Event()

    class Watched:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if abort := scope.get(ABORT):
                scope[ABORT] = lambda: (cut.set(), abort())
            await self._app(scope, receive, send)

    async with limpet.open("memory://") as lp:
        s = await lp.create("default", "default", "sesn_1", actor="user:ada")
        app = build(lp, dev=True)
        app.add_middleware(Watched)
        server, listening = Server(app), listen("127.0.0.1", 0)
        await server.start(listening)
        host, port = listening.getsockname()
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=2**10)
            path = "/v1/sessions/sesn_1/events/stream?after=0"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            await reader.readuntil(b": open")
            for _ in range(EVENTS):
                await s.append("user.message", {"text": BLOCK})
            await asyncio.wait_for(cut.wait(), 30)
            writer.close()
        finally:
            await server.stop()
