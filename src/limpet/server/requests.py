"""What happens to every request: it is bounded, counted, and logged without its body.

`Requests` is the outermost part of the app. `admitted` stands before whoever decides who enters: it
notes the principal for the log, and holds each key to its share of the server.
"""

from __future__ import annotations

import time
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.errors import EntryRefused, InvalidInput, StoreBusy
from limpet.server.access import Caller, CallerOf
from limpet.server.answers import error_response
from limpet.server.limits import QUERY_BYTES_MAX, REQUESTS_PER_KEY_MAX
from limpet.server.loggers import ACCESS
from limpet.server.meter import Meter

Owner: TypeAlias = tuple[str | None, str]
_NOTE: Final = "limpet.request"
_PATH_SHOWN: Final = 200
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class RequestNote:
    """What is known of a request when it ends."""

    __slots__ = ("owner", "principal", "sent_bytes", "status")

    def __init__(self) -> None:
        self.principal: str | None = None
        self.owner: Owner | None = None  # whose share it takes
        self.status = 0  # 0: it was not answered
        self.sent_bytes = 0


class Requests:
    """The requests of one server process."""

    def __init__(self, app: ASGIApp, *, meter: Meter, share: KeyShare) -> None:
        self._app, self._meter, self._share = app, meter, share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        note = scope[_NOTE] = RequestNote()
        began = time.monotonic()
        self._meter.at_work += 1
        try:
            await self._answered(scope, receive, _noting(send, note))
        finally:
            self._meter.at_work -= 1
            if note.owner is not None:
                self._share.leave(note.owner)
            self._end(scope, note, time.monotonic() - began)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["query_string"]) > QUERY_BYTES_MAX:
            error = InvalidInput(f"the query is longer than {QUERY_BYTES_MAX:,} bytes.")
            await error_response(error, status=414)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _end(self, scope: Scope, note: RequestNote, seconds: float) -> None:
        method = scope.get("method", "WEBSOCKET")
        method = method if method in _METHODS or method == "WEBSOCKET" else "OTHER"
        route = getattr(scope.get("route"), "path", "none")  # of all paths that are served nowhere
        self._meter.request(method, route, note.status, seconds)
        address = scope.get("client")
        ACCESS.info(
            "request: method=%s path=%s status=%d seconds=%.6f bytes=%d principal=%s address=%s",
            method,
            _shown_path(scope),
            note.status,
            seconds,
            note.sent_bytes,
            note.principal or "-",
            address[0] if address else "-",
        )


class KeyShare:
    """How many requests of each principal are at work."""

    def __init__(self, most: int = REQUESTS_PER_KEY_MAX) -> None:
        self._most = most
        self._at_work: dict[Owner, int] = {}

    def enter(self, owner: Owner) -> None:
        """Raises StoreBusy if the key has all that it may have."""
        count = self._at_work.get(owner, 0)
        if count >= self._most:
            raise StoreBusy(
                "the server",
                f"this key has {count:,} requests and streams at work",
                "end some of them",
            )
        self._at_work[owner] = count + 1

    def leave(self, owner: Owner) -> None:
        count = self._at_work[owner] - 1
        if count:
            self._at_work[owner] = count
        else:
            del self._at_work[owner]


def admitted(caller_of: CallerOf, meter: Meter, share: KeyShare) -> CallerOf:
    """The same decision, counted; and each key has no more than its share."""

    async def enter(connection: HTTPConnection) -> Caller:
        try:
            caller = await caller_of(connection)
        except EntryRefused:
            meter.refused += 1
            raise
        note: RequestNote | None = connection.scope.get(_NOTE)
        if note is not None and note.owner is None:
            owner = (caller.app, caller.name)  # the same name in another app is somebody else
            share.enter(owner)
            note.owner, note.principal = owner, caller.name
        return caller

    return enter


def _noting(send: Send, note: RequestNote) -> Send:
    async def noting(message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            note.status = message["status"]
        elif kind == "websocket.accept":
            note.status = 101
        elif kind == "websocket.close" and not note.status:
            note.status = 403  # as the protocol answers what is closed before it is accepted
        elif kind in ("http.response.body", "websocket.http.response.body"):
            note.sent_bytes += len(message.get("body", b""))
        elif kind == "websocket.send":
            note.sent_bytes += len(message.get("bytes") or message.get("text") or b"")
        await send(message)

    return noting


def _shown_path(scope: Scope) -> str:
    """The path as it was sent, without the query, safe for one line of a log."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    text = raw.partition(b"?")[0][:_PATH_SHOWN].decode("latin-1")
    return "".join([each if "!" <= each <= "~" else "?" for each in text])
