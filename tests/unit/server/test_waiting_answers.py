"""Answers that a client does not take are bounded: its further calls are not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.websockets import WebSocketState

import limpet
from limpet.server import store_door
from limpet.server.access import Caller
from limpet.server.service import Service
from limpet.server.store_door import AnswerMemory, Client, Connection
from limpet.store.remote.messages import Calls, encode
from tests.acceptance.test_serving import call

ADA = ("support", "ada", "c1")


class DeafSocket:
    """A websocket whose other side sends calls and takes nothing after the greeting."""

    application_state = WebSocketState.DISCONNECTED

    def __init__(self) -> None:
        self.read, self.greeted = 0, False
        self.takes, self.deaf = asyncio.Event(), asyncio.Event()

    async def receive_bytes(self) -> bytes:
        self.read += 1
        for _ in range(20):  # the call before is answered
            await asyncio.sleep(0)
        return encode(Calls(0, (call(self.read, "head", ADA),)))

    async def send_bytes(self, data: bytes) -> None:
        if self.greeted:
            self.deaf.set()
            await self.takes.wait()
        self.greeted = True


async def test_no_call_is_read_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read on once the client takes what it asked for."""
    monkeypatch.setattr(store_door, "ANSWERS_WAITING_BYTES_MAX", 1_000)
    async with limpet.open("memory://") as lp:
        await lp.create(*ADA)
        caller = Caller(lp, "admin:dev", admin=True)

        async def entering(_: Any) -> Caller:
            return caller

        service, socket = Service(lp, entering), DeafSocket()
        client = Client("me", AnswerMemory(), (None, "admin:dev"))
        connection = Connection(service.door, socket, caller, client)  # type: ignore[arg-type]
        running = asyncio.ensure_future(connection.run())
        async with asyncio.timeout(60):
            await socket.deaf.wait()
            before = -1
            while before != socket.read:  # until it reads no more
                before = socket.read
                for _ in range(100):
                    await asyncio.sleep(0)
            assert 1 <= socket.read < 100
            socket.takes.set()
            while socket.read < before + 100:  # noqa: ASYNC110  # it reads on by itself
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
