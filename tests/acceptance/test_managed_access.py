"""Who may use the Managed Agents wire: owners their own, viewers read, strangers find nothing."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import HTTPConnection

import limpet
from limpet.errors import EntryRefused
from limpet.server.access import Caller
from limpet.server.serve import serving

PRINCIPALS = {
    "ada": limpet.Principal("user:ada", role="owner", app="shop", user="ada"),
    "bob": limpet.Principal("user:bob", role="owner", app="shop", user="bob"),
    "eve": limpet.Principal("user:eve", role="owner", app="bank", user="ada"),
    "viewer": limpet.Principal("user:view", role="viewer", app="shop", user="ada"),
    "admin": limpet.Principal("key:admin", role="admin", app="shop"),
}


class Door:
    """Requests to a server, as one principal or another."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(
        self, who: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        return await asyncio.to_thread(self._ask, who, method, path, body, headers)

    def _ask(self, who: str, method: str, path: str, body: Any, headers: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        sent = {"x-api-key": who, **headers}
        request = urllib.request.Request(self._url + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read()), response.headers
        except urllib.error.HTTPError as error:
            body = error.read()  # none, where the connection was refused before a route was found
            return error.code, json.loads(body) if body else None, error.headers


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with limpet.open("memory://") as lp:

        async def caller_of(connection: HTTPConnection) -> Caller:
            principal = PRINCIPALS.get(connection.headers.get("x-api-key", ""))
            if principal is None:
                raise EntryRefused("this server", "the key is not known")
            acting = lp.acting_as(principal)
            return Caller(acting, principal.id, app=principal.app, user=principal.user)

        async with serving(lp, caller_of=caller_of) as url:
            yield Door(url)


MESSAGE = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "hi"}]}]}


async def a_session(door: Door) -> str:
    _, agent, _ = await door("admin", "POST", "/v1/agents", {"name": "a", "model": "m"})
    made = {"agent": agent["id"], "environment_id": "env_default"}
    status, session, _ = await door("ada", "POST", "/v1/sessions", made)
    assert status == 200, session
    return str(session["id"])


async def test_what_is_foreign_is_404_as_what_is_missing(door: Door) -> None:
    """Another user's session, and that of another app, on every route of a session."""
    id = await a_session(door)
    routes = [
        ("GET", "", None),
        ("POST", "", {"title": "x"}),
        ("DELETE", "", None),
        ("POST", "/archive", {}),
        ("GET", "/events", None),
        ("POST", "/events", MESSAGE),
        ("GET", "/events/stream", None),
        ("GET", "/resources", None),
        ("POST", "/resources", {"type": "file", "file_id": "file_1"}),
        ("GET", "/threads", None),
    ]
    for who in ("bob", "eve"):
        for method, path, body in routes:
            told = await door(who, method, f"/v1/sessions/{id}{path}", body)
            missing = await door(who, method, f"/v1/sessions/sesn_none{path}", body)
            for status, error, _ in (told, missing):
                assert status == 404, (who, method, path, error)
                assert error["error"]["type"] == "not_found_error"
        for path in ("state", "events", "export", "traces"):
            assert (await door(who, "GET", f"/limpet/v1/sessions/{id}/{path}"))[0] == 404
    assert (await door("ada", "GET", f"/v1/sessions/{id}"))[0] == 200
    listed = (await door("bob", "GET", "/v1/sessions"))[1]
    assert listed["data"] == []


async def test_a_viewer_reads_and_a_write_of_it_is_403(door: Door) -> None:
    """With the code of ours, and it is not sent again."""
    id = await a_session(door)
    for path in (f"/v1/sessions/{id}", f"/v1/sessions/{id}/events", "/v1/sessions", "/v1/agents"):
        assert (await door("viewer", "GET", path))[0] == 200
    writes = [
        ("POST", f"/v1/sessions/{id}", {"title": "x"}),
        ("POST", f"/v1/sessions/{id}/events", MESSAGE),
        ("DELETE", f"/v1/sessions/{id}", None),
        ("POST", f"/v1/sessions/{id}/archive", {}),
        ("POST", "/v1/agents", {"name": "a", "model": "m"}),
        ("POST", "/v1/vaults", {"display_name": "v"}),
        ("POST", "/v1/memory_stores", {"name": "m"}),
        ("POST", f"/limpet/v1/sessions/{id}/suspend", {}),
        ("POST", f"/limpet/v1/sessions/{id}/fork", {}),
    ]
    for method, path, body in writes:
        status, error, _ = await door("viewer", method, path, body)
        assert (status, error["error"]["type"]) == (403, "permission_error"), (path, error)
        assert error["error"]["details"]["error_code"] == "access.denied"


async def test_things_of_a_user_are_not_those_of_another(door: Door) -> None:
    """Vaults and memory stores by their ids, and an owner does not make agents of the app."""
    _, vault, _ = await door("ada", "POST", "/v1/vaults", {"display_name": "mine"})
    _, store, _ = await door("ada", "POST", "/v1/memory_stores", {"name": "m"})
    assert (await door("bob", "GET", f"/v1/vaults/{vault['id']}"))[0] == 404
    assert (await door("bob", "GET", f"/v1/memory_stores/{store['id']}"))[0] == 404
    assert (await door("ada", "GET", f"/v1/vaults/{vault['id']}"))[0] == 200
    assert (await door("ada", "POST", "/v1/agents", {"name": "a", "model": "m"}))[0] == 403


async def test_without_a_key_nobody_enters(door: Door) -> None:
    """401 in the form of the wire."""
    status, error, _ = await door("nobody", "GET", "/v1/sessions")
    assert (status, error["error"]["type"]) == (401, "authentication_error")


async def test_a_body_is_bounded_and_a_wrong_one_refused(door: Door) -> None:
    """413 beyond 30 MB, 400 for what is not JSON or not of the form."""
    id = await a_session(door)
    long = {"events": [{"type": "user.message", "content": "x" * 30_000_000}]}
    assert (await door("ada", "POST", f"/v1/sessions/{id}/events", long))[0] == 413
    for body in ([], "text", {"events": "x"}, {"events": []}, {"events": [1]}, {}):
        status, error, _ = await door("ada", "POST", f"/v1/sessions/{id}/events", body)
        assert status == 400, error
    for query in ("limit=0", "limit=x", "order=up", "page=%%%", "created_at[gt]=soon"):
        assert (await door("ada", "GET", f"/v1/sessions/{id}/events?{query}"))[0] == 400
