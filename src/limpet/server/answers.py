"""Errors as every route of a server answers them, but for protocols that have a form of their own.

`{"type": "error", "error": {"type", "message", "details": {"error_code", "docs"}}, "request_id"}`:
the form of the Managed Agents wire, with the stable code of ours and the page of this server that
explains it. The official client repeats a request after 408, 409, 429 and 5xx, so these are
answered only where nothing was stored, or with `x-should-retry: false`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from html import escape
from itertools import count
from math import ceil
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from limpet.errors import (
    AccessDenied,
    AccessError,
    DocumentConflict,
    DocumentNotFound,
    EntryRefused,
    HeartbeatRefused,
    LimpetError,
    MemoryPathTaken,
    MemoryPreconditionFailed,
    RateLimited,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
    StoreBusy,
    TokenError,
    TokenReplayed,
    TooManyRequests,
)
from limpet.model import Key
from limpet.server import ids
from limpet.server.access import first_headers
from limpet.store.remote.forms import error_classes

Json = dict[str, Any]
ERRORS_PATH: Final = "/errors"  # of the page that explains the codes
_SAFE: Final = frozenset(("GET", "HEAD"))
_GONE: Final = (SessionDeleted, SessionErased)
_CONFLICTS: Final = (
    DocumentConflict,
    MemoryPathTaken,
    MemoryPreconditionFailed,
    SessionExists,
    TokenReplayed,
)
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
_KEPT_STATUS: Final = frozenset((400, 401, 403, 404, 412, 413, 422, 429, 503, 507))
_PROCESS: Final = secrets.token_hex(6)  # in the ids of its requests
_requests: Final = count(1)


def new_request_id() -> str:
    return f"req_{_PROCESS}{next(_requests):012x}"


def error_response(
    error: LimpetError,
    scope: Scope,
    *,
    status: int | None = None,
    request_id: str | None = None,
    more: Json | None = None,
) -> Response:
    """The answer to a request that failed, with `more` in its error."""
    status = error.status if status is None else status
    headers = {}
    if status in (408, 409, 429) or status >= 500:
        headers["x-should-retry"] = "true" if _is_repeatable(error, scope) else "false"
    wait = getattr(error, "retry_after_seconds", None)
    if wait is not None:
        headers["retry-after"] = str(max(1, ceil(wait)))
    headers["request-id"] = request_id = request_id or new_request_id()
    form = error_form(error, request_id, status=status)
    form["error"] |= more or {}
    return Response(msgspec.json.encode(form), status, headers, media_type="application/json")


def error_form(error: LimpetError, request_id: str, *, status: int | None = None) -> Json:
    """An error as it is shown in an answer, or on a stream."""
    status = wire_status(error) if status is None else status
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
    details["docs"] = f"{ERRORS_PATH}#{error.code}"
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


def _is_repeatable(error: LimpetError, scope: Scope) -> bool:
    """True if the request may be sent again: it stored nothing, or a repeat finds what it did."""
    if isinstance(error, StoreBusy | RateLimited | TooManyRequests):
        return True
    if not error.retryable:
        return False
    return scope.get("method") in _SAFE or b"idempotency-key" in first_headers(scope)


def wire_status(error: LimpetError) -> int:
    """Return the HTTP status of a route about sessions: 404 for foreign and missing alike, 400 for
    a conflict. A token that lacks a scope is of the session: 403."""
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


# --- the page that explains them --------------------------------------------------------------


def errors_page() -> str:
    """Every code with its status, its class, whether a retry helps, and its text."""
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><title>Errors of Limpet</title>",
            "<h1>Errors</h1>",
            "<p>An error says what happened and what to do. <code>{…}</code> stands for a value.",
            "<dl>",
            *_explained(),
            "</dl></html>",
        ]
    )


def _explained() -> Iterator[str]:
    for code, kind in sorted(error_classes().items()):
        again = "a retry may help" if kind.retryable else "the same request fails again"
        text = kind.template or " ".join((kind.__doc__ or "").split())
        yield f'<dt id="{escape(code)}"><code>{escape(code)}</code>'
        yield f"<dd>{escape(kind.__name__)}, {kind.status}; {again}. {escape(text)}"
