"""Requests to an ASGI app without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


class AsgiReply(NamedTuple):
    """Status, body (parsed, if it is JSON) and headers of an answer."""

    status: int
    body: Any
    headers: dict[str, str]


async def ask(
    app: ASGIApp, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> AsgiReply:
    """One request. Of a stream only the beginning is taken: then the client leaves."""
    target, _, query = path.partition("?")
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(target),
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *named],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent, left = [{"type": "http.request", "body": data, "more_body": False}], asyncio.Event()
    status, came, answered = 0, b"", {}

    async def receive() -> Message:
        if sent:
            return sent.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status, came
        if message["type"] == "http.response.start":
            status = message["status"]
            answered.update({k.decode(): v.decode() for k, v in message["headers"]})
        elif message["type"] == "http.response.body":
            came += message.get("body", b"")
            if answered.get("content-type", "").startswith("text/event-stream"):
                left.set()

    await app(scope, receive, send)
    try:
        return AsgiReply(status, json.loads(came), answered)
    except ValueError:
        return AsgiReply(status, came, answered)
