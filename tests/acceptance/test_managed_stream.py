"""Streams of the Managed Agents wire: a reader that does not read, and pieces of what is said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import limpet
from limpet.server.app import build
from limpet.server.limits import STREAM_PIECE_BYTES
from limpet.server.managed import stream
from limpet.server.managed.stream import ABORT
from limpet.server.serve import Server, listen, serving
from tests.support.asgi import ask
from tests.support.http_door import HttpDoor, frames

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


async def test_a_large_event_is_sent_in_pieces_that_each_have_their_own_time() -> None:
    """Else a reader on a slow line is cut off in the middle of it, and again when it comes back."""
    sizes: list[int] = []

    class Measured:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def measured(message: Message) -> None:
                sizes.append(len(message.get("body", b"")))
                await send(message)

            await self._app(scope, receive, measured)

    async with limpet.open("memory://") as lp:
        s = await lp.create("default", "default", "sesn_1", actor="user:ada")
        await s.append("user.message", {"text": BLOCK})
        app = build(lp, dev=True)
        app.add_middleware(Measured)
        server, listening = Server(app), listen("127.0.0.1", 0)
        await server.start(listening)
        host, port = listening.getsockname()
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=2**20)
            path = "/v1/sessions/sesn_1/events/stream?after=0"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            async with asyncio.timeout(20):
                await reader.readuntil(b": open")
                while sum(sizes) < len(BLOCK):
                    await reader.read(2**16)
            writer.close()
        finally:
            await server.stop()
    assert len(BLOCK) > STREAM_PIECE_BYTES >= max(sizes)


@pytest.mark.parametrize("route", ["/v1", "/limpet/v1"])
async def test_the_stream_of_a_session_ends_when_it_is_archived(tmp_path: Path, route: str) -> None:
    """Who follows it sees its last event, and so does who comes back later: each of them once."""
    store, archive = f"sqlite:///{tmp_path}/a.db", f"file://{tmp_path}/archive"
    async with limpet.open(store, archive=archive) as lp, serving(lp, dev=True) as url:
        s = await lp.create("default", "default", "sesn_1", actor="user:ada")
        loop, opened = asyncio.get_running_loop(), asyncio.Event()
        path = f"{route}/sessions/sesn_1/events/stream"

        def on_frame(_: Any) -> None:
            loop.call_soon_threadsafe(opened.set)

        following = asyncio.ensure_future(frames(url, f"{path}?after=1", 40, on_frame))
        await s.append("user.message", {"text": "hi"})
        await opened.wait()
        await s.complete()
        await s.archive()
        seen = await following
        ids = [int(each["id"]) for each in seen]
        door = HttpDoor(url)
        assert ids_in((await door.get(f"{path}?after=1")).body) == ids
        rest = await door.get(path, last_event_id=str(ids[0]))
        assert ids_in(rest.body) == ids[1:]
        assert ids_in((await door.get(path)).body) == []
        types = [each["data"]["type"] for each in seen]
        if route == "/v1":
            assert types == ["user.message", "session.status_terminated"]
        else:
            assert (ids, types[-1]) == (list(range(2, ids[-1] + 1)), "session.archived")


def ids_in(body: bytes) -> list[int]:
    lines = body.decode().splitlines()
    return [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]


async def test_a_place_beyond_the_last_event_is_refused() -> None:
    """Waiting for it would pass over the events before it, and nobody would know."""
    async with limpet.open("memory://") as lp:
        await lp.create("default", "default", "sesn_1", actor="user:ada")
        app, path = build(lp, dev=True), "sessions/sesn_1/events/stream?after="
        for route in (f"/v1/{path}", f"/limpet/v1/{path}"):
            refused = await ask(app, "GET", f"{route}2")
            assert (refused.status, refused.body["error"]["details"]["error_code"]) == (
                400,
                "query.invalid",
            )
            assert (await ask(app, "GET", f"{route}1")).status == 200


async def test_pieces_of_tool_calls_come_from_a_worker_elsewhere(tmp_path: Path) -> None:
    """Text, thinking and calls, each under the id of the event that follows, a call of a client's
    tool too; the worker is a client of the server, as in another process."""
    wanted = ("message", "tool_use", "thinking")
    asked = "&".join([f"event_deltas[]=agent.{each}" for each in wanted])
    loop, subscribed, all_seen = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    deltas_seen: list[Any] = []

    def on_frame(data: Any) -> None:
        loop.call_soon_threadsafe(subscribed.set)
        deltas_seen.extend([data] if data["type"] == "event_delta" else [])
        if len(deltas_seen) == 5:
            loop.call_soon_threadsafe(all_seen.set)

    async def model(request: Any) -> Any:
        async def pieces() -> Any:
            if len(request.messages) > 1:
                yield limpet.Piece(text="done")
                return
            yield limpet.Piece(reasoning="hm")
            yield limpet.Piece(text="I look ")
            yield limpet.Piece(text="it up")
            yield limpet.Piece(tool={"index": 1, "id": "p1", "name": "look", "arguments": '{"c'})
            yield limpet.Piece(tool={"index": 1, "arguments": 'ity": "Oslo"}'})
            yield limpet.Piece(tool={"index": 2, "id": "p2", "name": "hers", "arguments": "{}"})
            await all_seen.wait()  # what was recorded meanwhile would replace them

        return pieces()

    @limpet.tool
    async def look(city: str = "") -> str:
        """Look something up."""
        return city

    hers = limpet.Tool(name="hers", version="1.0.0", schema={"type": "object"})

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("main", model, tools=[look, hers])
        for call in reply.tool_calls:
            await turn.tool(call)

    url = f"sqlite:///{tmp_path / 'pieces.db'}"
    async with limpet.open(url) as lp, serving(lp, dev=True) as at:
        await lp.create("default", "default", "sesn_1")
        path = f"/v1/sessions/sesn_1/events/stream?after=0&{asked}"
        following = asyncio.ensure_future(
            frames(at, path, 40, on_frame, until="session.status_idle")
        )
        await lp.session("default", "default", "sesn_1").append(
            "user.message", {"text": "hi"}, actor="user:default"
        )
        await subscribed.wait()
        async with limpet.open(at) as elsewhere:
            await elsewhere.wake("default", "default", "sesn_1", harness)
        seen = [each["data"] for each in await following]
    started = [each["event"] for each in seen if each["type"] == "event_start"]
    kinds = [each["type"] for each in started]
    assert kinds == [f"agent.{e}" for e in ("thinking", "message", "tool_use", "custom_tool_use")]
    deltas: dict[str, str] = {}
    for each in seen:
        if each["type"] == "event_delta":
            delta = each["delta"]
            piece = delta["partial_json"] if "partial_json" in delta else delta["content"]["text"]
            deltas[each["event_id"]] = deltas.get(each["event_id"], "") + piece
    (message,) = [each for each in seen if each["type"] == "agent.message"]
    uses = [each for each in seen if each["type"].endswith("tool_use")]
    assert deltas[message["id"]] == message["content"][0]["text"] == "I look it up"
    assert [json.loads(deltas[each["id"]]) for each in uses] == [{"city": "Oslo"}, {}]
    assert [each["name"] for each in (*uses, *started[2:])] == ["look", "hers"] * 2
    before = [each["type"] for each in seen].index("agent.message")
    assert "event_delta" not in [each["type"] for each in seen[before:]]
