"""Who may use the Managed Agents wire: owners their own, viewers read, strangers find nothing."""

from __future__ import annotations

import asyncio
import json
import re
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
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
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


async def test_what_a_session_names_is_of_its_user(door: Door) -> None:
    """A vault, a file or a memory store of another is refused as one that there is not, when a
    session is created and when it is changed, and nothing is recorded."""
    vault = (await door("ada", "POST", "/v1/vaults", {"display_name": "mine"}))[1]["id"]
    store = (await door("ada", "POST", "/v1/memory_stores", {"name": "m"}))[1]["id"]
    file = await a_file(door)
    _, agent, _ = await door("admin", "POST", "/v1/agents", {"name": "a", "model": "m"})
    made = {"agent": agent["id"], "environment_id": "env_default"}
    belongings = {
        "vault": {"vault_ids": [vault]},
        "file": {"resources": [{"type": "file", "file_id": file}]},
        "store": {"resources": [{"type": "memory_store", "memory_store_id": store}]},
        "picture": {"initial_events": [showing(file)]},
        "rubric": {"initial_events": [graded_by(file)]},
    }
    _, theirs, _ = await door("bob", "POST", "/v1/sessions", made)
    session = f"/v1/sessions/{theirs['id']}"
    before = (await door("bob", "GET", session))[1]["updated_at"]
    for given in belongings.values():
        assert (await door("ada", "POST", "/v1/sessions", {**made, **given}))[0] == 200, given
        unknown = json.loads(json.dumps(given).translate(str.maketrans("0123456789", "9" * 10)))
        for resource in given.get("resources", ()):
            await foreign_as_unknown(
                door, f"{session}/resources", resource, unknown["resources"][0]
            )
        if "initial_events" in given:
            sent = [{"events": each["initial_events"]} for each in (given, unknown)]
            await foreign_as_unknown(door, f"{session}/events", *sent)
        if "vault_ids" in given:
            await foreign_as_unknown(door, session, given, unknown)
        await foreign_as_unknown(door, "/v1/sessions", {**made, **given}, {**made, **unknown})
    assert (await door("bob", "GET", session))[1]["updated_at"] == before
    assert len((await door("bob", "GET", "/v1/sessions"))[1]["data"]) == 1


async def foreign_as_unknown(door: Door, path: str, foreign: Any, unknown: Any) -> None:
    """Both bodies are refused, in the same words but for the id."""
    answers = []
    for body in (foreign, unknown):
        status, error, _ = await door("bob", "POST", path, body)
        said = error["error"]
        assert (status, said["type"]) == (404, "not_found_error"), (path, body, error)
        assert said["details"]["error_code"] == "document.not_found"
        answers.append(re.sub(r"'(vlt|file|memstore)_\w+'", r"'\1'", said["message"]))
    assert answers[0] == answers[1]


async def test_what_is_archived_or_no_id_is_not_attached(door: Door) -> None:
    """400, with a reason."""
    vault = (await door("ada", "POST", "/v1/vaults", {"display_name": "mine"}))[1]["id"]
    await door("ada", "POST", f"/v1/vaults/{vault}/archive", {})
    session = f"/v1/sessions/{await a_session(door)}"
    for body in ({"vault_ids": [vault]}, {"vault_ids": 5}, {"vault_ids": [5]}):
        status, error, _ = await door("ada", "POST", session, body)
        assert (status, error["error"]["type"]) == (400, "invalid_request_error"), error
    for resource in ({"type": "file", "file_id": 5}, {"type": "file"}, {"type": "other"}):
        assert (await door("ada", "POST", f"{session}/resources", resource))[0] == 400
    nameless: Any = {"type": "user.message", "content": [{"type": "image", "source": {}}]}
    nameless["content"][0]["source"] = {"type": "file", "file_id": [1]}
    assert (await door("ada", "POST", f"{session}/events", {"events": [nameless]}))[0] == 400


EUROS = {"type": "limit", "max_list_cost": {"amount": "1", "currency": "EUR"}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/sessions", {"agent": {"type": "other", "id": "AGENT"}}, "agent_with_overrides"),
        ("/v1/sessions", {"agent": "AGENT", "budget": EUROS}, "USD"),
        ("SESSION", {"agent": {"model": "other"}}, "tools and mcp_servers"),
        ("SESSION", {"budget": None}, "not removed"),
        ("SESSION/resources", {"type": "github_repository", "url": ""}, "url"),
        ("SESSION/events", {"events": [{"type": "user.tool_confirmation"}]}, "tool_use_id"),
        ("SESSION/events", {"events": [{"type": "user.tool_result"}]}, "tool_use_id"),
        ("/v1/environments/env_default", {"name": "mine"}, "always there"),
        ("/v1/environments/env_default/archive", None, "always there"),
        ("/v1/vaults", {"display_name": ""}, "display_name"),
        ("/v1/memory_stores", {"name": "x" * 257}, "name"),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_refused_with_a_reason(
    door: Door, path: str, body: Any, said: str
) -> None:
    """400 that names the field, instead of an answer that passes it over."""
    _, agent, _ = await door("admin", "POST", "/v1/agents", {"name": "a", "model": "m"})
    made = {"agent": agent["id"], "budget": {"max_list_cost": {"amount": "1", "currency": "USD"}}}
    _, session, _ = await door("ada", "POST", "/v1/sessions", made)
    path = path.replace("SESSION", f"/v1/sessions/{session['id']}")
    body = json.loads(json.dumps(body).replace("AGENT", agent["id"]))
    who = "admin" if "environments" in path else "ada"
    status, error, _ = await door(who, "POST", path, body)
    assert (status, error["error"]["type"]) == (400, "invalid_request_error"), error
    assert said in error["error"]["message"]


async def test_a_secret_of_a_credential_never_comes_back(door: Door) -> None:
    """Under whatever name it was given, also when a part of it is changed and the rest stays."""
    vault = (await door("ada", "POST", "/v1/vaults", {"display_name": "mine"}))[1]["id"]
    credentials = f"/v1/vaults/{vault}/credentials"
    auth: Any = {"type": "mcp_oauth", "mcp_server_url": "https://x.test", "access_token": "s3cret"}
    auth |= {"api_key": "s3cret", "headers": [{"authorization": "s3cret"}], "expires_at": "later"}
    auth["refresh"] = {"client_id": "c", "refresh_token": "s3cret", "token_endpoint": "https://t"}
    auth["refresh"]["token_endpoint_auth"] = {
        "type": "client_secret_post",
        "client_secret": "s3cret",
    }
    _, made, _ = await door("ada", "POST", credentials, {"auth": auth})
    one = f"{credentials}/{made['id']}"
    part = {"type": "mcp_oauth", "refresh": {"refresh_token": "s3cret", "scope": "all"}}
    _, changed, _ = await door("ada", "POST", one, {"auth": part})
    answers = [made, changed, *[(await door("ada", "GET", each))[1] for each in (one, credentials)]]
    assert "s3cret" not in json.dumps(answers)
    shown = {"client_id": "c", "token_endpoint": "https://t"}
    shown |= {"token_endpoint_auth": {"type": "client_secret_post"}}
    assert made["auth"]["refresh"] == shown
    assert changed["auth"] == {**made["auth"], "refresh": {**shown, "scope": "all"}}
    none = {"type": "mcp_oauth", "refresh": {"token_endpoint_auth": {"type": "none"}}}
    _, open_, _ = await door("ada", "POST", one, {"auth": none})
    assert open_["auth"]["refresh"]["token_endpoint_auth"] == {"type": "none"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/vaults/vlt_x", "there is no vault 'vlt_x' here"),
        ("/v1/vaults/vlt_x/credentials/vcrd_x", "there is no credential 'vcrd_x' here"),
        ("/v1/files/file_x", "there is no file 'file_x' here"),
        ("/v1/sessions/sesn_x", "there is no session 'sesn_x' here"),
        ("/v1/environments/env_x", "there is no environment 'env_x' here"),
    ],
)
async def test_what_is_missing_is_named_as_the_client_named_it(
    door: Door, path: str, said: str
) -> None:
    """Without our names of collections, and verbs that the client does not have."""
    status, error, headers = await door("ada", "GET", path)
    assert (status, error["request_id"]) == (404, headers["request-id"])
    assert error["error"]["message"].startswith(said)


def showing(file: str) -> Any:
    source = {"type": "file", "file_id": file}
    return {"type": "user.message", "content": [{"type": "document", "source": source}]}


def graded_by(file: str) -> Any:
    rubric = {"type": "file", "file_id": file}
    return {"type": "user.define_outcome", "description": "d", "rubric": rubric}


async def test_files_that_events_name_are_bounded(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small request must not make the server read much: so many files, and short rubrics."""
    monkeypatch.setattr("limpet.server.managed.events._FILES_MAX", 1)
    id = await a_session(door)
    one, other, blank = await a_file(door), await a_file(door), await a_file(door, b"\n" * 200_000)
    for events, said in (
        ([showing(one), showing(other)], "at most 1 files"),
        ([graded_by(blank)], "at most 131,072 bytes"),
        ([{**graded_by(one), "rubric": {"type": "text", "content": "\n" * 200_000}}], "131,072"),
    ):
        status, error, _ = await door(
            "ada", "POST", f"/v1/sessions/{id}/events", {"events": events}
        )
        assert status == 400
        assert said in error["error"]["message"]
    many = {"events": [showing(one), graded_by(one), showing(one)]}
    assert (await door("ada", "POST", f"/v1/sessions/{id}/events", many))[0] == 200


async def a_file(door: Door, content: bytes = b"short") -> str:
    """A file of Ada."""
    head = b'content-disposition: form-data; name="file"; filename="a"'
    form = b"--x\r\n" + head + b"\r\n\r\n" + content + b"\r\n--x--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=x"}
    status, file, _ = await door("ada", "POST", "/v1/files", form, **kind)
    assert status == 200, file
    return str(file["id"])


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


async def test_a_value_of_another_kind_is_refused(door: Door) -> None:
    """400 wherever an object, a type or an id has to be: nothing fails, now or when it is read."""
    value = ["x"]
    policy = {"permission_policy": {"type": value}}
    for given in (
        {"skills": [{"type": value, "skill_id": "s"}]},
        {"tools": [{"type": "agent_toolset_20260401", "default_config": policy}]},
        {"multiagent": {"type": "coordinator", "agents": [{"type": "advisor", "id": value}]}},
    ):
        body = {"name": "a", "model": "m", **given}
        status, error, _ = await door("admin", "POST", "/v1/agents", body)
        assert status == 400, error
    id = await a_session(door)
    for event in ({"type": value}, {"type": {"of": value}}):
        body = {"events": [event]}
        assert (await door("ada", "POST", f"/v1/sessions/{id}/events", body))[0] == 400
    _, vault, _ = await door("ada", "POST", "/v1/vaults", {"display_name": "v"})
    credentials = f"/v1/vaults/{vault['id']}/credentials"
    auth = {"type": "environment_variable", "secret_name": "S", "secret_value": "s"}
    _, made, _ = await door("ada", "POST", credentials, {"auth": auth})
    where = {"injection_location": value}
    for path, body in (
        (credentials, {"auth": {**auth, **where}}),
        (f"{credentials}/{made['id']}", {"auth": where}),
    ):
        assert (await door("ada", "POST", path, body))[0] == 400
    status, listed, _ = await door("ada", "GET", credentials)
    assert (status, len(listed["data"])) == (200, 1)
