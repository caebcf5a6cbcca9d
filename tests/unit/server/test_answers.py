"""Errors of a server: one form on every route, and the page that explains them."""

from __future__ import annotations

import json
import re
from urllib.parse import urldefrag, urljoin

import limpet
from limpet.server import build
from limpet.server.answers import error_response
from limpet.store.remote.forms import error_classes
from tests.support.asgi import ask

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


def test_an_answer_has_the_code_and_the_page_that_explains_it() -> None:
    """In `details`, as on the Managed Agents wire."""
    error = limpet.SessionNotFound(limpet.Key("a", "b", "c"))
    body = json.loads(error_response(error, SCOPE).body)
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    details = {"error_code": "session.not_found", "docs": "/errors#session.not_found"}
    assert body["error"]["details"] == details
    assert body["request_id"].startswith("req_")


async def test_every_route_refuses_in_the_same_form() -> None:
    """What no route has, another method, a query or a body that is too long, a bad key; and the
    page that each names is there, without a key, and explains its code."""
    length = {"content-length": "5000000000"}
    tried = {
        ("GET", "/nothing"): 404,
        ("GET", "/limpet/v1/nothing"): 404,
        ("DELETE", "/limpet/v1/sessions"): 405,
        ("GET", f"/limpet/v1/me?{'q' * 9_000}"): 414,
        ("POST", "/limpet/v1/import"): 413,
        ("GET", "/limpet/v1/sessions/x"): 401,
        ("GET", "/v1/sessions/x"): 401,
        ("GET", "/metrics"): 401,
        ("GET", "/openapi.json"): 401,
        ("GET", "/studio/nothing"): 404,
        ("POST", "/studio/sign_in"): 401,
        ("POST", "/limpet/v1/store"): 401,
        ("POST", "/agui"): 401,
    }
    async with limpet.open("memory://") as lp:
        app = build(lp)
        for (method, path), status in tried.items():
            reply = await ask(app, method, path, b"{}", length if status == 413 else {})
            assert reply.status == status, (method, path, reply)
            assert reply.body.keys() == {"type", "error", "request_id"}, path
            assert (reply.body["type"], reply.body["request_id"]) == (
                "error",
                reply.headers["request-id"],
            )
            error = reply.body["error"]
            assert {"type", "message", "details"} <= error.keys(), path
            code, docs = error["details"]["error_code"], error["details"]["docs"]
            page, fragment = urldefrag(urljoin(f"http://h{path}", docs))
            assert fragment == code
            explained = await ask(app, "GET", page.removeprefix("http://h"))
            assert explained.status == 200
            assert f'id="{code}"'.encode() in explained.body


async def test_the_page_of_errors_has_every_code_once() -> None:
    """Without a script, and with the same words for all who ask."""
    async with limpet.open("memory://") as lp:
        reply = await ask(build(lp), "GET", "/errors")
    assert sorted(re.findall(r'id="([^"]+)"', reply.body.decode())) == sorted(error_classes())
    assert reply.headers["content-type"].startswith("text/html")


async def test_the_page_of_errors_explains_every_code() -> None:
    """A link from an error never leads to an entry without a text."""
    async with limpet.open("memory://") as lp:
        reply = await ask(build(lp), "GET", "/errors")
    texts = re.findall(r"(?:a retry may help|fails again)\. (.*)", reply.body.decode())
    assert (len(texts), [text for text in texts if not text.strip()]) == (len(error_classes()), [])
