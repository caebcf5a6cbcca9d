"""Errors of the server's own routes."""

from __future__ import annotations

import json

import limpet
from limpet.server.answers import error_response
from limpet.server.managed.wire import error_form


def test_an_answer_names_the_page_that_explains_its_error() -> None:
    """On our routes as `docs`, on the wire within `details`."""
    error = limpet.SessionNotFound(limpet.Key("a", "b", "c"))
    assert json.loads(error_response(error).body)["error"]["docs"] == error.page
    assert error_form(error, "req_1")["error"]["details"]["docs"] == "errors/#session.not_found"
