"""Requests to a server without a client library: what came back, as it is."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import Any, NamedTuple

_SECONDS_MAX = 60


class Reply(NamedTuple):
    """An answer: its status, its body (parsed, if it is JSON), and its headers."""

    status: int
    body: Any
    headers: Message


class HttpDoor:
    """A server, and what is sent with every request."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url, self._headers = url, headers

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.ask("GET", path, None, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.ask("POST", path, {} if body is None else body, **headers)

    async def ask(self, method: str, path: str, body: Any, **headers: str) -> Reply:
        """`body` is sent as JSON, unless it is bytes."""
        return await asyncio.to_thread(self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        names = {**self._headers, **headers}
        sent = {name.replace("_", "-"): value for name, value in names.items()}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS_MAX) as response:
                return Reply(response.status, _parsed(response.read()), response.headers)
        except urllib.error.HTTPError as error:
            return Reply(error.code, _parsed(error.read()), error.headers)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


async def frames(
    url: str,
    path: str,
    count: int,
    on_frame: Callable[[Any], object] = lambda _: None,
    *,
    until: str = "no such type",
    **headers: str,
) -> list[dict[str, Any]]:
    """The first `count` frames of a stream that are no heartbeats, each with its id if it has one;
    fewer if the stream ends, or after one whose type is `until`. `on_frame` is called with the data
    of each, in another thread."""
    return await asyncio.to_thread(_frames, url + path, count, on_frame, until, headers)


def _frames(
    url: str, count: int, on_frame: Callable[[Any], object], until: str, headers: dict[str, str]
) -> list[dict[str, Any]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    found: list[dict[str, Any]] = []
    request = urllib.request.Request(url, headers=sent)
    with urllib.request.urlopen(request, timeout=_SECONDS_MAX) as response:
        id = None
        for line in response:
            name, _, value = line.decode().strip().partition(": ")
            if name == "id":
                id = value
            elif name == "data" and json.loads(value) != {"type": "ping"}:
                found.append({"id": id, "data": json.loads(value)})
                id = None
                on_frame(found[-1]["data"])
                if len(found) == count or found[-1]["data"].get("type") == until:
                    return found
    return found
