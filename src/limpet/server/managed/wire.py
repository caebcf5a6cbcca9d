"""Requests and answers of the wire: who asks, the body, the query, pages and errors.

`endpoint` makes a route of a function that takes a `WireCall`. An error is answered as
`{"type": "error", "error": {"type", "message", "details": {"error_code"}}, "request_id"}` with the
stable code of ours. The official client repeats a request after 408, 409, 429 and 5xx, so these are
answered only where nothing was stored, or with `x-should-retry: false`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from math import ceil
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from limpet.errors import (
    AccessDenied,
    AccessError,
    DocumentConflict,
    DocumentNotFound,
    EntryRefused,
    HeartbeatRefused,
    InvalidCursor,
    InvalidInput,
    InvalidQuery,
    LimpetError,
    MemoryPathTaken,
    MemoryPreconditionFailed,
    RateLimited,
    RouteNotFound,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreBusy,
    TokenError,
    TokenReplayed,
    TooManyRequests,
)
from limpet.model import Key
from limpet.model.keys import known_key
from limpet.security.access import Resource
from limpet.server import ids
from limpet.server.access import NOTE, Caller, RouteNote, header_of
from limpet.server.limits import BODY_BYTES_MAX
from limpet.server.loggers import SERVER
from limpet.server.openapi import STREAMED, named_types
from limpet.server.requests import read_body
from limpet.server.service import Service
from limpet.session.documents import Document, Documents
from limpet.session.limpet import Limpet, journal_of

T = TypeVar("T")
Json = dict[str, Any]
Answer = Json | Response
Endpoint = Callable[["WireCall"], Awaitable[Answer]]

DEFAULT_APP: Final = "default"
DEFAULT_USER: Final = "default"
APP_HEADER: Final = b"limpet-app"  # for callers whose key is of no one app
USER_HEADER: Final = b"limpet-user"  # for callers whose key is of no one user
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 1_000
OF_APP: Final = "*"  # the owner of what all users of an app share
_GONE: Final = (SessionDeleted, SessionErased)
_CONFLICTS: Final = (MemoryPathTaken, MemoryPreconditionFailed, DocumentConflict, TokenReplayed)
# The wire's words for documents that are not there, by their collection.
_THINGS: Final = {
    "environments": "environment",
    "wire_vaults": "vault",
    "wire_credentials": "credential",
    "wire_files": "file",
    "wire_memory_stores": "memory store",
    "wire_memories": "memory",
    "memory_versions": "version of a memory",
    "wire_work": "work",
    "resources": "resource",
    "threads": "thread",
    "traces": "trace",
    "models": "model",
    "skills": "skill",
}
_LABEL: Final = "labels["
_LATEST_US: Final = 253_402_300_799_000_000  # the last second of the year 9999
_KEY_CHARS_MAX: Final = 255
_JSON: Final = (b"content-type", b"application/json")
_PROCESS: Final = secrets.token_hex(6)  # in the ids of its requests
_requests: Final = count(1)
_KEPT_STATUS: Final = frozenset((400, 401, 403, 404, 412, 413, 422, 429, 503, 507))


class WireCall:
    """One request, and what its sender may use."""

    def __init__(self, service: Service, request: Request, caller: Caller) -> None:
        self.service, self.request, self.caller = service, request, caller
        self.lp: Limpet = service.lp_of(caller)
        self.named_app = caller.app or self._named(APP_HEADER, "app")
        self.asked_user = self._named(USER_HEADER, "user")  # None: whoever the caller may list
        self.named_user = caller.user or self.asked_user
        self.app = self.named_app or DEFAULT_APP
        self.user = self.named_user or DEFAULT_USER
        self.files: dict[str, Document] = {}  # that the request names, each looked up once

    def _named(self, header: bytes, parameter: str) -> str | None:
        """The value of a header, or else of a parameter of the query."""
        value = header_of(self.request, header)
        if value or not self.request.scope["query_string"]:
            return value or None
        return self.text(parameter)

    async def check_owner(self) -> None:
        """Refuse a key of one app or user that names another. Raises AccessDenied, which
        the audit has."""
        of = (self.caller.app, self.caller.user)
        for bound, header, name in zip(of, (APP_HEADER, USER_HEADER), ("app", "user"), strict=True):
            if bound is None:
                continue
            named = self._named(header, name) or bound
            if named == bound:
                continue
            place = Resource("app", self.app)  # its own: a log for each name would fill the disk
            client = self.request.client
            await journal_of(self.service.lp).audit.record(
                self.caller.principal or self.caller.name,
                "read",
                place,
                allowed=False,
                code="access_denied",
                address=None if client is None else client.host,
            )
            raise AccessDenied("access_denied", "read", str(place))

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def key(self) -> Key:
        """The key of the session in the path. Raises InvalidInput."""
        return known_key(self.app, self.user, ids.session_key_id(self.path("session_id")))

    def idempotency_key(self) -> str | None:
        """The key under which a request is made once. Raises InvalidInput."""
        key = header_of(self.request, b"idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY_CHARS_MAX:
            raise InvalidInput(f"an Idempotency-Key has 1 to {_KEY_CHARS_MAX} characters.")
        return key

    def of_app(self, collection: str) -> Documents:
        """Documents that all users of the app share."""
        return self.lp.documents(collection, owner=(self.app, OF_APP))

    def of_user(self, collection: str) -> Documents:
        """Documents of this user."""
        return self.lp.documents(collection, owner=(self.app, self.user))

    def raw(self) -> Coroutine[Any, Any, bytes]:
        """The body. Raises BodyTooLarge."""
        return read_body(self.request, self.service.share, most=BODY_BYTES_MAX)

    async def body(self, form: type[T]) -> T:
        """The body as this form. Raises InvalidInput."""
        raw = await self.raw()
        try:
            return msgspec.json.decode(raw or b"{}", type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body is not as it should be: {error}.") from error

    # --- the query -------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        """One parameter of the query."""
        return self.request.query_params.get(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """All values of `name[]=`."""
        query = self.request.query_params
        return (*query.getlist(f"{name}[]"), *query.getlist(name))

    def number(self, name: str, default: int, *, most: int) -> int:
        """A number from 1 to `most`. Raises InvalidQuery."""
        text = self.text(name)
        if text is None:
            return default
        number = whole_number(text)
        if number is None or not 1 <= number <= most:
            raise InvalidQuery(f"{name} is a number from 1 to {most:,}")
        return number

    def place(self, name: str) -> int | None:
        """A seq, from 0; None if it is not named. Raises InvalidQuery."""
        text = self.text(name)
        if text is None:
            return None
        number = whole_number(text)
        if number is None:
            raise InvalidQuery(f"{name} is the seq of an event")
        return number

    def limit(self) -> int:
        return self.number("limit", PAGE_DEFAULT, most=PAGE_MAX)

    def part(self, items: Sequence[Json], *, default: int = PAGE_DEFAULT) -> Json:
        """The page of a list that is whole here. Raises InvalidQuery, InvalidCursor."""
        limit = self.number("limit", default, most=PAGE_MAX)
        start = place_in(self.text("page"))
        end = start + limit
        return page(items[start:end], to_token(str(end)) if end < len(items) else None)

    def view(self, default: str) -> str:
        """The view of a memory: "full" is with its content. Raises InvalidQuery."""
        text = self.text("view") or default
        if text not in ("basic", "full"):
            raise InvalidQuery("view is basic or full")
        return text

    def flag(self, name: str) -> bool:
        return self.text(name) in ("true", "True", "1")

    def times(self) -> Callable[[int], bool]:
        """A test of microseconds since 1970 against `created_at[gte]=` and so on."""
        bounds = {each: self.moment(f"created_at[{each}]") for each in ("gt", "gte", "lt", "lte")}
        tests: dict[str, Callable[[int, int], bool]] = {
            "gt": lambda at, bound: at > bound,
            "gte": lambda at, bound: at >= bound,
            "lt": lambda at, bound: at < bound,
            "lte": lambda at, bound: at <= bound,
        }
        given = [(tests[name], bound) for name, bound in bounds.items() if bound is not None]
        return lambda at: all([test(at, bound) for test, bound in given])

    def moment(self, name: str) -> int | None:
        """A time, in microseconds since 1970; None if it is not named. Raises InvalidQuery."""
        text = self.text(name)
        if text is None:
            return None
        try:
            at = datetime.fromisoformat(text.replace(" ", "+"))
        except ValueError:
            raise InvalidQuery(f"{name} is a time, as in 2026-11-17T12:00:00Z") from None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        # With its time zone it may lie outside of all years that there are.
        return max(0, min(int(seconds * 1_000_000), _LATEST_US))

    def labels(self) -> dict[str, str]:
        """The values of `labels[name]=`."""
        query = self.request.query_params
        return {
            name[len(_LABEL) : -1]: value
            for name, value in query.items()
            if name.startswith(_LABEL) and name.endswith("]")
        }

    def is_ascending(self, *, default: bool) -> bool:
        """True if `order=asc`. Raises InvalidQuery."""
        order = self.text("order")
        if order not in (None, "asc", "desc"):
            raise InvalidQuery("order is asc or desc")
        return default if order is None else order == "asc"


def whole_number(text: str) -> int | None:
    """A number that was sent as text; None if it is none, or one that nothing here counts to."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def place_in(token: str | None) -> int:
    """The place in a list that a token of ours names; 0 without one. Raises InvalidCursor."""
    if token is None:
        return 0
    number = whole_number(from_token(token))
    if number is None:
        raise InvalidCursor
    return number


def page(items: Sequence[Json], next_page: str | None) -> Json:
    return {"data": list(items), "next_page": next_page}


def plain(value: Any) -> Json:
    """A struct of ours as JSON."""
    formed: Json = msgspec.to_builtins(value, enc_hook=str)
    return formed


def to_token(place: str) -> str:
    """A place in a list, as a client hands it back."""
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def from_token(text: str) -> str:
    """Parse the token of a page. Raises InvalidCursor."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        raise InvalidCursor from None


def rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def endpoint(
    service: Service, path: str, method: str, act: Endpoint, *, operation: str | None = None
) -> BaseRoute:
    """A route that answers in the form of the wire. Its `operation` is the action of the guard that
    it is: that of a session token has to be covered by its scope."""

    return Route(path, WireEndpoint(service, path, method, act, operation), methods=[method])


class WireEndpoint:
    """Answers the requests of one route. It is an ASGI app: nothing stands around it."""

    def __init__(
        self, service: Service, path: str, method: str, act: Endpoint, operation: str | None
    ) -> None:
        self._service, self._path, self._method, self._act = service, path, method, act
        self.__wrapped__ = act  # for the OpenAPI document
        streams = named_types(act).media_type == STREAMED
        does = operation or ("read" if method == "GET" else "write")
        setattr(self, NOTE, RouteNote(does, streams))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id = f"req_{_PROCESS}{next(_requests):012x}"
        answer: Answer
        try:
            caller = await self._service.caller_of(request)
            call = WireCall(self._service, request, caller)
            if caller.app is not None or caller.user is not None:
                await call.check_owner()
            answer = await self._act(call)
        except LimpetError as error:
            answer = _refused(error, request, request_id)
        except ClientDisconnect:
            answer = Response(status_code=400)  # nobody reads it
        except Exception:
            SERVER.exception("request failed: method=%s path=%s", self._method, self._path)
            unknown = LimpetError("the server failed. Its log says more.")
            answer = _refused(unknown, request, request_id)
        if isinstance(answer, Response):
            answer.headers["request-id"] = request_id
            await answer(scope, receive, send)
            return
        body = msgspec.json.encode(answer)
        length = (b"content-length", b"%d" % len(body))
        headers = [length, _JSON, (b"request-id", request_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def not_offered(service: Service) -> list[BaseRoute]:
    """Everything else under /v1 is 404, in the form of the wire."""

    async def missing(call: WireCall) -> Answer:
        raise RouteNotFound(f"{call.request.method} {call.request.url.path[:200]}")

    methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
    return [endpoint(service, "/v1/{rest:path}", method, missing) for method in methods]


# --- errors ---------------------------------------------------------------------------------------


def error_form(error: LimpetError, request_id: str) -> Json:
    """An error as the wire shows it, in an answer or on a stream."""
    status = _status(error)
    details: Json = {"error_code": error.code}
    if isinstance(error, HeartbeatRefused):
        details = {"error_code": "heartbeat_precondition_failed", "code": error.code}
        details["current_state"] = error.current_state
    if isinstance(error, MemoryPathTaken):
        details |= {"conflicting_memory_id": error.memory, "conflicting_path": error.path}
    if isinstance(error, TokenError):
        details["audit_code"] = error.audit_code
    if isinstance(error, AccessDenied) and error.scope is not None:
        details["scope"] = error.scope
    details["docs"] = error.page
    said: Json = {"type": _type(error, status), "message": _message(error), "details": details}
    return {"type": "error", "error": said, "request_id": request_id}


def _message(error: LimpetError) -> str:
    """The text of an error; one about a thing that is missing has the wire's word for the thing."""
    if isinstance(error, DocumentNotFound) and error.collection in _THINGS:
        missing = f"{_THINGS[error.collection]} {error.name.rpartition('/')[2]!r}"
    elif isinstance(error, SessionNotFound) and isinstance(error.key, Key):
        missing = f"session {ids.session_id(error.key.id)!r}"
    else:
        return str(error)
    return f"there is no {missing} here. List them to see their ids."


def _refused(error: LimpetError, request: Request, request_id: str) -> Response:
    status = _status(error)
    headers = {}
    if status in (408, 409, 429) or status >= 500:
        again = _is_repeatable(error, request)
        headers["x-should-retry"] = "true" if again else "false"
        if isinstance(error, RateLimited | TooManyRequests):
            headers["retry-after"] = str(max(1, ceil(error.retry_after_seconds)))
    body = msgspec.json.encode(error_form(error, request_id))
    return Response(body, status, headers, media_type="application/json")


def _is_repeatable(error: LimpetError, request: Request) -> bool:
    """True if the request may be sent again: it stored nothing, or a repeat finds what it did."""
    if isinstance(error, StoreBusy | RateLimited | TooManyRequests):
        return True
    if not error.retryable:
        return False
    return request.method == "GET" or "idempotency-key" in request.headers


def _status(error: LimpetError) -> int:
    """Return the HTTP status: 404 for foreign and missing alike, 400 for a conflict. A token that
    lacks a scope is of the session: 403."""
    if isinstance(error, AccessDenied):
        hides = error.action in ("read", "inspect") and error.scope is None
        return 404 if hides else 403
    if isinstance(error, _GONE):
        return 404
    if isinstance(error, _CONFLICTS):
        return 409
    if error.status == 500:
        return 500
    return error.status if error.status in _KEPT_STATUS else 400


def _type(error: LimpetError, status: int) -> str:
    if isinstance(error, MemoryPreconditionFailed):
        return "memory_precondition_failed_error"
    if isinstance(error, MemoryPathTaken):
        return "memory_path_conflict_error"
    if isinstance(error, EntryRefused) or (isinstance(error, AccessError) and status == 401):
        return "authentication_error"
    names = {403: "permission_error", 404: "not_found_error", 409: "conflict_error"}
    names |= {429: "rate_limit_error", 503: "overloaded_error", 500: "api_error"}
    names |= {507: "api_error"}
    return names.get(status, "invalid_request_error")
