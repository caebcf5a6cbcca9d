"""The way of every request: it is bounded, counted, and logged without its body.

`Requests` is the outermost part of the app. `admitted` stands before whoever decides who enters: it
notes the principal for the log, and holds each key to its share of the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limpet.errors import (
    AccessError,
    BodyTooLarge,
    EntryRefused,
    InvalidInput,
    LimpetError,
    RouteNotFound,
    TooManyRequests,
)
from limpet.server.access import Caller, CallerOf, first_headers, note_of
from limpet.server.answers import error_response
from limpet.server.limits import (
    BODY_BYTES_MAX,
    KEYS_KEPT_MAX,
    QUERY_BYTES_MAX,
    RATE_PER_KEY,
    RATE_SECONDS,
    REQUESTS_PER_KEY_MAX,
    STREAMS_PER_KEY_MAX,
    UPLOAD_BYTES_MIN,
    UPLOADS_PER_KEY_MAX,
)
from limpet.server.loggers import ACCESS
from limpet.server.meter import Meter
from limpet.server.rates import RequestRates
from limpet.store.remote.messages import MESSAGE_BYTES_MAX, PATH

Owner: TypeAlias = tuple[str | None, str]
_NOTE: Final = "limpet.request"
ROTATED_HEADER: Final = b"x-new-session-token"
REQUESTS: Final = "requests and streams at work"
STREAMS: Final = "streams at work"
UPLOADS: Final = "uploads at work"
_CLOSE: Final = {"connection": "close"}
_RETRY_SECONDS: Final = 1.0  # until something of the same key may have ended
_PATH_SHOWN: Final = 200
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class RequestNote:
    """The facts about a request that are known when it ends."""

    __slots__ = ("owner", "principal", "rotated", "sent_bytes", "status", "uses")

    def __init__(self) -> None:
        self.principal: str | None = None
        self.owner: Owner | None = None  # whose share it takes
        self.uses: list[str] = []  # of it
        self.rotated: str | None = None  # the session token that replaces the request's
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
        answer = _noting(send, note)
        try:
            if len(scope["query_string"]) > QUERY_BYTES_MAX and scope["type"] == "http":
                error = InvalidInput(f"the query is longer than {QUERY_BYTES_MAX:,} bytes.")
                await error_response(error, scope, status=414)(scope, receive, answer)
            else:
                _check_announced(scope)
                await self._app(scope, receive, answer)
        except (LimpetError, HTTPException) as error:
            if note.status or scope["type"] != "http":
                raise
            await _refusal(error, scope)(scope, receive, answer)
        finally:
            self._meter.at_work -= 1
            for what in note.uses:
                assert note.owner is not None
                self._share.leave(note.owner, what)
            self._end(scope, note, time.monotonic() - began)

    def _end(self, scope: Scope, note: RequestNote, seconds: float) -> None:
        method = scope.get("method", "WEBSOCKET")
        method = method if method in _METHODS or method == "WEBSOCKET" else "OTHER"
        route = getattr(scope.get("route"), "path", "none")  # of all paths that are served nowhere
        self._meter.request(method, route, note.status, seconds)
        if not ACCESS.isEnabledFor(logging.INFO):
            return
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
    """Each principal's use of the server: requests at work, requests a second, streams, uploads."""

    def __init__(
        self,
        most: int = REQUESTS_PER_KEY_MAX,
        *,
        streams: int = STREAMS_PER_KEY_MAX,
        uploads: int = UPLOADS_PER_KEY_MAX,
        rate: float | None = RATE_PER_KEY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = {REQUESTS: most, STREAMS: streams, UPLOADS: uploads}
        self._at_work: dict[tuple[Owner, str], int] = {}
        self._rates: RequestRates | None = None
        if rate is not None:
            self._rates = RequestRates(
                rate, burst=rate * RATE_SECONDS, most=KEYS_KEPT_MAX, clock=clock
            )

    def count(self, owner: Owner) -> None:
        """Count a request. Raises TooManyRequests if the key has used its rate."""
        if self._rates is not None and (wait := self._rates.take(owner)):
            burst = int(self._rates.burst)
            raise TooManyRequests(f"requests in {RATE_SECONDS:.0f} s", burst, wait)

    def enter(self, owner: Owner, what: str = REQUESTS) -> None:
        """Begin a request. Raises TooManyRequests if the key has all that it may have."""
        count = self._at_work.get((owner, what), 0)
        if count >= self._most[what]:
            raise TooManyRequests(what, count, _RETRY_SECONDS)
        self._at_work[owner, what] = count + 1

    def leave(self, owner: Owner, what: str = REQUESTS) -> None:
        count = self._at_work[owner, what] - 1
        if count:
            self._at_work[owner, what] = count
        else:
            del self._at_work[owner, what]


def body_bound(scope: Scope) -> int:
    """Return the length from which on the body of a request is too large."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return MESSAGE_BYTES_MAX + 1 if path == PATH else BODY_BYTES_MAX


def _check_announced(scope: Scope) -> None:
    """Raise BodyTooLarge if a request announces a body that is too long: before it is sent."""
    announced, most = first_headers(scope).get(b"content-length", b""), body_bound(scope)
    if scope["type"] == "http" and announced.isdigit() and int(announced) >= most:
        raise BodyTooLarge(most)


async def read_body(request: Request, share: KeyShare) -> bytes:
    """The body of a request. Raises BodyTooLarge, and TooManyRequests if the key sends too many
    large ones at once; nothing of it was stored then."""
    most, message = body_bound(request.scope), await request.receive()
    whole: bytes = message.get("body", b"")
    if not message.get("more_body", True) and len(whole) <= UPLOAD_BYTES_MIN:  # as most come
        if len(whole) >= most:
            raise BodyTooLarge(most)
        return whole
    note: RequestNote | None = request.scope.get(_NOTE)
    body, counted = bytearray(), False
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) >= most:
                raise BodyTooLarge(most)
            if not counted and len(body) > UPLOAD_BYTES_MIN and note is not None and note.owner:
                share.enter(note.owner, UPLOADS)
                counted = True
            if not message.get("more_body", False):
                return bytes(body)
            message = await request.receive()
    finally:
        if counted and note is not None and note.owner is not None:
            share.leave(note.owner, UPLOADS)


def admitted(caller_of: CallerOf, meter: Meter, share: KeyShare) -> CallerOf:
    """Return `caller_of` with counts: each key has no more than its share."""

    async def enter(connection: HTTPConnection) -> Caller:
        try:
            caller = await caller_of(connection)
        except (AccessError, EntryRefused):
            meter.refused += 1
            raise
        note: RequestNote | None = connection.scope.get(_NOTE)
        if note is not None and note.owner is None:
            owner = (caller.app, caller.name)  # the same name in another app is somebody else
            note.owner, note.principal, note.rotated = owner, caller.name, caller.rotated
            share.count(owner)
            streams = connection.scope["type"] == "websocket" or note_of(connection).streams
            for what in (REQUESTS, STREAMS) if streams else (REQUESTS,):
                share.enter(owner, what)
                note.uses.append(what)
        return caller

    return enter


def _refusal(error: LimpetError | HTTPException, scope: Scope) -> Response:
    """The answer to a request that no route has, or that failed."""
    if isinstance(error, LimpetError):
        answer = error_response(error, scope)
        if isinstance(error, BodyTooLarge):  # its client may still be sending
            answer.headers.update(_CLOSE)
        return answer
    route = RouteNotFound(f"{scope['method']} {_shown_path(scope)}")
    # 405: the path is there, by another method.
    answer = error_response(route, scope, status=error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def _noting(send: Send, note: RequestNote) -> Send:
    def noting(message: Message) -> Awaitable[None]:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            note.status = message["status"]
            if note.rotated is not None:  # also of a failed request: the old token ends soon
                rotated = (ROTATED_HEADER, note.rotated.encode())
                message = {**message, "headers": [*message.get("headers", ()), rotated]}
        elif kind == "websocket.accept":
            note.status = 101
        elif kind == "websocket.close" and not note.status:
            note.status = 403  # as the protocol answers what is closed before it is accepted
        elif kind in ("http.response.body", "websocket.http.response.body"):
            note.sent_bytes += len(message.get("body", b""))
        elif kind == "websocket.send":
            note.sent_bytes += len(message.get("bytes") or message.get("text") or b"")
        return send(message)

    return noting


def _shown_path(scope: Scope) -> str:
    """The path as it was sent, without the query, safe for one line of a log."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    text = raw.partition(b"?")[0][:_PATH_SHOWN].decode("latin-1")
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return "".join([each if "!" <= each <= "~" else "?" for each in text])
