"""Answers that are the same on every route of ours: an error as JSON, with its stable code."""

from __future__ import annotations

from math import ceil

import msgspec
from starlette.responses import Response

from limpet.errors import LimpetError
from limpet.store.remote.forms import pack_error


def error_response(error: LimpetError, *, status: int | None = None) -> Response:
    """An error of ours: `{"error": {"code", "message", "retryable", "fields", "docs"}}`."""
    code, message, fields = pack_error(error)
    body = {"code": code, "message": message, "retryable": error.retryable, "fields": fields}
    wait = getattr(error, "retry_after_seconds", None)
    return Response(
        msgspec.json.encode({"error": {**body, "docs": error.page}}),
        status_code=error.status if status is None else status,
        headers=None if wait is None else {"retry-after": str(max(1, ceil(wait)))},
        media_type="application/json",
    )
