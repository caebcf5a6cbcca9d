"""Somebody between a client and a server, who reads and changes the messages of the protocol.

No websocket passes, so every message is one POST, as it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from limpet.store.remote import messages

Change: TypeAlias = Callable[[Any], Any]


class Relay:
    """A proxy: all that passed, and the errors that the server has answered."""

    def __init__(self, url: str, on_calls: Change, on_answers: Change) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._on_calls, self._on_answers = on_calls, on_answers
        self.url = ""
        self.seen: list[bytes] = []
        self.refused: list[messages.Answer] = []
        self.more = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._pass(reader, writer)
        finally:
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"upgrade" in head.lower():
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            return
        body = await reader.readexactly(_size(head))
        self.seen.append(body)
        body = messages.encode(self._on_calls(messages.decode_calls(body)))
        answers, server = await asyncio.open_connection(self._host, self._port)
        server.write(_sized(head, body) + body)
        head = await answers.readuntil(b"\r\n\r\n")
        body = await answers.readexactly(_size(head))
        server.close()
        self.seen.append(body)
        found = messages.decode_answers(body)
        self.refused += [answer for answer in found.answers if not answer.ok]
        self.more.set()
        body = messages.encode(self._on_answers(found))
        writer.write(_sized(head, body) + body)


def _size(head: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", head.lower())
    assert found is not None
    return int(found[1])


def _sized(head: bytes, body: bytes) -> bytes:
    return re.sub(rb"(?i)content-length: \d+", b"content-length: %d" % len(body), head)


@asynccontextmanager
async def relayed(
    url: str, *, on_calls: Change = lambda sent: sent, on_answers: Change = lambda sent: sent
) -> AsyncIterator[Relay]:
    """A proxy before the server at this URL."""
    relay = Relay(url, on_calls, on_answers)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
