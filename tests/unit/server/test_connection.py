"""HTTP as it is spoken on one connection: answers to requests, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from limpet.server import connection
from limpet.server.serve import Server, listen

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def answering(*pieces: bytes, headers: list[tuple[bytes, bytes]]) -> Any:
    """An app that answers every request with these pieces."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1]})

    return app


@asynccontextmanager
async def connected(app: Any) -> AsyncIterator[Connected]:
    server = Server(app)
    listening = listen("127.0.0.1", 0)
    await server.start(listening)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        assert server._listening is not None
        server._listening.close()
        for each in tuple(server._state.connections):
            each.transport.abort()


async def read_answer(reader: asyncio.StreamReader, *, body: bool = True) -> tuple[bytes, bytes]:
    """The head of an answer whose length is known, and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length) if body else b""


KNOWN = [(b"Content-Length", b"4")]


async def test_an_answer_of_known_length_comes_as_it_was_sent() -> None:
    """One request after another on one connection, and two that were sent at once."""
    async with connected(answering(b"ab", b"cd", headers=KNOWN)) as (reader, writer):
        for sent in (GET, GET + GET):
            writer.write(sent)
            for _ in range(sent.count(b"GET")):
                head, body = await read_answer(reader)
                assert (head.splitlines()[0], body) == (b"HTTP/1.1 200 OK", b"abcd")


async def test_an_answer_of_unknown_length_comes_in_chunks() -> None:
    async with connected(answering(b"ab", b"", b"cd", headers=[])) as (reader, writer):
        writer.write(GET)
        assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"


async def test_head_has_no_body() -> None:
    async with connected(answering(b"abcd", headers=KNOWN)) as (reader, writer):
        writer.write(GET.replace(b"GET", b"HEAD"))
        await read_answer(reader, body=False)
        writer.write(GET)
        assert (await read_answer(reader))[1] == b"abcd"


async def test_whoever_expects_it_is_told_to_go_on() -> None:
    """A body that waits for that is read then."""
    async with connected(answering(b"abcd", headers=KNOWN)) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await read_answer(reader))[1] == b"abcd"


@pytest.mark.parametrize(("version", "header"), [(b"1.0", b""), (b"1.1", b"connection: close\r\n")])
async def test_who_asks_for_one_answer_gets_one(version: bytes, header: bytes) -> None:
    async with connected(answering(b"abcd", headers=KNOWN)) as (reader, writer):
        writer.write(b"GET / HTTP/" + version + b"\r\nhost: x\r\n" + header + b"\r\n")
        head, _ = await read_answer(reader)
        assert b"connection: close" in head
        assert await reader.read() == b""


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\0b"], ids=repr)
async def test_no_header_ends_its_line(value: bytes) -> None:
    """Whoever gets a text of theirs into a header of an answer adds no other header to it."""
    headers = [*KNOWN, (b"x-name", value)]
    async with connected(answering(b"abcd", headers=headers)) as (reader, writer):
        writer.write(GET)
        assert b"set-cookie" not in await reader.read()


@pytest.mark.parametrize("body", [b"abc", b"abcde"])
async def test_a_body_of_another_length_is_not_taken_for_the_whole(body: bytes) -> None:
    """The connection ends; the next answer would begin in the middle of this one."""
    async with connected(answering(body, headers=KNOWN)) as (reader, writer):
        writer.write(GET + GET)
        assert len(await reader.read()) < len(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd")


async def test_a_quiet_connection_is_closed_but_not_one_that_waits_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_SECONDS", 0.3)
    quick, goes_on = answering(b"abcd", headers=KNOWN), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await goes_on.wait()
        await quick(scope, receive, send)

    async with connected(app) as (reader, writer):
        for path in (b"/", b"/slow"):
            writer.write(GET.replace(b"/ ", path + b" "))
            if path == b"/slow":  # longer than a quiet connection is kept
                asyncio.get_running_loop().call_later(0.7, goes_on.set)
            assert (await read_answer(reader))[1] == b"abcd"
        assert await asyncio.wait_for(reader.read(), 20) == b""
