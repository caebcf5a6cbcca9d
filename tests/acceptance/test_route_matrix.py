"""Every route of a server, for every role, on one's own things and on those of others.

Whoever may not is answered 403 or 404, and the audit has it. Whoever may is answered in the form
that /openapi.json names. A new route fails the first test until it stands in the table here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Route

import limpet
from limpet import Principal
from limpet.errors import EntryRefused
from limpet.server import build, ids
from limpet.server.access import Caller
from limpet.server.openapi import described
from tests.support.asgi import AsgiReply, ask

# --- who ----------------------------------------------------------------------------------------

PRINCIPALS = {
    "owner": Principal("user:ada", role="owner", app="shop", user="ada"),
    "agent": Principal("agent:main", role="agent", app="shop"),
    "bound": Principal("agent:ada", role="agent", app="shop", user="ada"),
    "viewer": Principal("user:ada", role="viewer", app="shop", user="ada"),
    "auditor": Principal("user:eve", role="auditor", app="shop"),
    "admin": Principal("user:root", role="admin", app="shop"),
}
AUTH = {"type": "static_bearer", "token": "t", "mcp_server_url": "https://x"}
PLACES = {"own": ("shop", "ada"), "neighbour": ("shop", "bob"), "foreign": ("bank", "ada")}
READERS = {"owner", "agent", "bound", "viewer", "admin"}
WRITERS = {"owner", "agent", "bound", "admin"}
OWNERS = {"owner", "admin"}
ROLES: dict[str, set[str]] = {
    "read": READERS,
    "inspect": {*READERS, "auditor"},
    "write": WRITERS,
    "erase": OWNERS,  # also export, and what sets the rules of an app
    "app": {"admin"},
    "read of all": {"agent", "admin"},  # what every user of an app did: for nobody of one user
    "audit": {"auditor", "admin"},
    "store": set(),  # what all apps share: for an admin of the whole store alone
    "anybody": {*PRINCIPALS},
}


# --- what ---------------------------------------------------------------------------------------


class Things:
    """One of everything, of one user."""

    def __init__(self, app: Starlette, place: str) -> None:
        self._app = app
        self.app, self.user = PLACES[place]
        self.names = {"app": self.app, "user": self.user}

    async def post(self, path: str, body: Any, **more: str) -> Any:
        headers = {"x-role": "root", "limpet-app": self.app, "limpet-user": self.user, **more}
        reply = await ask(self._app, "POST", path, body, headers)
        assert reply.status == 200, (path, reply)
        return reply.body

    async def make(self, lp: limpet.Limpet) -> None:
        names = self.names
        agent = await self.post("/v1/agents", {"name": "a", "model": "m", "skills": [_SKILL]})
        names["agent"], names["model"], names["skill"] = agent["id"], "m", "s1"
        names["env"] = (await self.post("/v1/environments", {"name": "e"}))["id"]
        made = {"agent": names["agent"], "environment_id": names["env"]}
        file = await self.post(
            "/v1/files", _FILE, **{"content-type": "multipart/form-data; boundary=b"}
        )
        names["file"] = file["id"]
        repository = {"type": "github_repository", "url": "https://x.test/o/r"}
        made["resources"] = [repository, {"type": "file", "file_id": file["id"]}]
        session = await self.post("/v1/sessions", made)
        names["session"] = session["id"]
        names["resource"] = session["resources"][0]["id"]
        names["thread"] = ids.to_wire(ids.THREAD, f"{self.app}\n{session['id']}")
        names["other"] = (await self.post("/v1/sessions", made))["id"]
        names["vault"] = (await self.post("/v1/vaults", {"display_name": "v"}))["id"]
        vault = f"/v1/vaults/{names['vault']}"
        names["credential"] = (await self.post(f"{vault}/credentials", {"auth": AUTH}))["id"]
        names["memstore"] = (await self.post("/v1/memory_stores", {"name": "m"}))["id"]
        store = f"/v1/memory_stores/{names['memstore']}"
        memory = await self.post(f"{store}/memories", {"path": "/a", "content": "b"})
        names["memory"], names["version"] = memory["id"], memory["memory_version_id"]
        await self.post(f"{store}/memories/{memory['id']}", {"content": "later"})
        one = f"/limpet/v1/sessions/{names['session']}"
        await self.post(f"{one}/checkpoints", {})
        names["fork"] = (await self.post(f"{one}/fork", {}))["id"]
        await lp.wake(self.app, self.user, names["session"], _harness)
        await self.post(f"/v1/sessions/{names['session']}/events", _MESSAGE)
        await lp.wake(self.app, self.user, names["session"], _harness)
        s: limpet.Session[Any] = await lp.get(self.app, self.user, names["session"])
        names["wake"] = (await s.runs.wakes())[0].wake_id or ""
        names["request"] = s.blocked_on[0].id
        proposed = await lp.propose("Be kind.", provenance=s.key, confidence=0.9, to="agent:main")
        names["proposal"] = proposed.id
        await self.post(f"/v1/sessions/{names['other']}/events", _MESSAGE)
        headers = {"x-role": "root", "limpet-app": self.app, "limpet-user": self.user}
        poll = f"/v1/environments/{names['env']}/work/poll"
        names["work"] = (await ask(self._app, "GET", poll, None, headers)).body["id"]
        due = (await self.post("/v1/sessions", made))["id"]
        await self.post(f"/v1/sessions/{due}/events", _MESSAGE)


_SKILL = {"type": "custom", "skill_id": "s1", "version": "1"}
_MESSAGE = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "hi"}]}]}
_FILE = (
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="f.txt"\r\n'
    b"content-type: text/plain\r\n\r\nhello\r\n--b--\r\n"
)


_REPOSITORY = {"type": "github_repository", "url": "https://git.example/x"}


async def _harness(turn: limpet.Turn) -> None:
    await turn.approve("pay", {"amount": 1})


class Case(NamedTuple):
    """How a route is asked, and which action it is."""

    action: str
    body: Any = None
    query: str = ""
    of_app: bool = False  # it is about what all users of the app share
    refused: int | None = None  # the status for those who may: what is asked cannot be done here
    done: int = 200  # the status of what can
    headers: dict[str, str] = {}


def asks(action: str, body: Any = None, **more: Any) -> Case:
    return Case(action, body, **more)


S, L = "/v1/sessions/{session_id}", "/limpet/v1/sessions/{session_id}"
V, M, E = "/v1/vaults/{vault_id}", "/v1/memory_stores/{store_id}", "/v1/environments/{env_id}/work"
Wish = Callable[["Things"], Any]
CASES: dict[tuple[str, str], Case] = {
    ("POST", "/v1/agents"): asks("app", {"name": "b", "model": "m"}, of_app=True),
    ("GET", "/v1/agents"): asks("read", of_app=True),
    ("GET", "/v1/agents/{id}"): asks("read", of_app=True),
    ("POST", "/v1/agents/{id}"): asks("app", {"name": "c"}, of_app=True),
    ("POST", "/v1/agents/{id}/archive"): asks("app", of_app=True),
    ("GET", "/v1/agents/{id}/versions"): asks("read", of_app=True),
    ("POST", "/v1/environments"): asks("app", {"name": "b"}, of_app=True),
    ("GET", "/v1/environments"): asks("read", of_app=True),
    ("GET", "/v1/environments/{id}"): asks("read", of_app=True),
    ("POST", "/v1/environments/{id}"): asks("app", {"name": "c"}, of_app=True),
    ("DELETE", "/v1/environments/{id}"): asks("app", of_app=True),
    ("POST", "/v1/environments/{id}/archive"): asks("app", of_app=True),
    ("GET", E): asks("read"),
    ("GET", f"{E}/poll"): asks("write"),
    ("GET", f"{E}/stats"): asks("read"),
    ("GET", f"{E}/{{id}}"): asks("read"),
    ("POST", f"{E}/{{id}}"): asks("write", {"metadata": {"a": "b"}}),
    ("POST", f"{E}/{{id}}/ack"): asks("write"),
    ("POST", f"{E}/{{id}}/heartbeat"): asks("write", query="?expected_last_heartbeat=NO_HEARTBEAT"),
    ("POST", f"{E}/{{id}}/stop"): asks("write"),
    ("POST", "/v1/sessions"): asks("write", {"agent": "{agent}", "environment_id": "{env}"}),
    ("GET", "/v1/sessions"): asks("read"),
    ("GET", S): asks("read"),
    ("POST", S): asks("write", {"title": "t"}),
    ("DELETE", S): asks("erase"),
    ("POST", f"{S}/archive"): asks("write"),
    ("POST", f"{S}/events"): asks("write", _MESSAGE),
    ("GET", f"{S}/events"): asks("read"),
    ("GET", f"{S}/events/stream"): asks("read", query="?after=0"),
    ("POST", f"{S}/resources"): asks("write", _REPOSITORY),
    ("GET", f"{S}/resources"): asks("read"),
    ("GET", f"{S}/resources/{{id}}"): asks("read"),
    ("POST", f"{S}/resources/{{id}}"): asks("write", {}),
    ("DELETE", f"{S}/resources/{{id}}"): asks("write"),
    ("GET", f"{S}/threads"): asks("read"),
    ("GET", f"{S}/threads/{{id}}"): asks("read"),
    ("POST", f"{S}/threads/{{id}}/archive"): asks("read", refused=400),  # the session itself
    ("GET", f"{S}/threads/{{id}}/events"): asks("read"),
    ("GET", f"{S}/threads/{{id}}/stream"): asks("read", query="?after=0"),
    ("POST", "/v1/vaults"): asks("write", {"display_name": "w"}),
    ("GET", "/v1/vaults"): asks("read"),
    ("GET", V): asks("read"),
    ("POST", V): asks("write", {"display_name": "w"}),
    ("DELETE", V): asks("write"),
    ("POST", f"{V}/archive"): asks("write"),
    ("POST", f"{V}/credentials"): asks("write", {"auth": AUTH}),
    ("GET", f"{V}/credentials"): asks("read"),
    ("GET", f"{V}/credentials/{{id}}"): asks("read"),
    ("POST", f"{V}/credentials/{{id}}"): asks("write", {"display_name": "w"}),
    ("DELETE", f"{V}/credentials/{{id}}"): asks("write"),
    ("POST", f"{V}/credentials/{{id}}/archive"): asks("write"),
    ("POST", "/v1/files"): asks(
        "write", _FILE, headers={"content-type": "multipart/form-data; boundary=b"}
    ),
    ("GET", "/v1/files"): asks("read"),
    ("GET", "/v1/files/{id}"): asks("read"),
    ("DELETE", "/v1/files/{id}"): asks("write"),
    ("GET", "/v1/files/{id}/content"): asks("read"),
    ("POST", "/v1/memory_stores"): asks("write", {"name": "n"}),
    ("GET", "/v1/memory_stores"): asks("read"),
    ("GET", M): asks("read"),
    ("POST", M): asks("write", {"name": "n"}),
    ("DELETE", M): asks("write"),
    ("POST", f"{M}/archive"): asks("write"),
    ("POST", f"{M}/memories"): asks("write", {"path": "/b", "content": "c"}),
    ("GET", f"{M}/memories"): asks("read"),
    ("GET", f"{M}/memories/{{id}}"): asks("read"),
    ("POST", f"{M}/memories/{{id}}"): asks("write", {"content": "c"}),
    ("DELETE", f"{M}/memories/{{id}}"): asks("write"),
    ("GET", f"{M}/memory_versions"): asks("read"),
    ("GET", f"{M}/memory_versions/{{id}}"): asks("read"),
    ("POST", f"{M}/memory_versions/{{id}}/redact"): asks("write"),
    ("GET", "/v1/models"): asks("read", of_app=True),
    ("GET", "/v1/models/{id}"): asks("read", of_app=True),
    ("GET", "/v1/skills"): asks("read", of_app=True),
    ("GET", "/v1/skills/{id}"): asks("read", of_app=True),
    ("GET", L): asks("read"),
    ("GET", f"{L}/state"): asks("read"),
    ("GET", f"{L}/diff"): asks("read", query="?from=1"),
    ("GET", f"{L}/blame"): asks("read", query="?path=managed"),
    ("GET", f"{L}/events"): asks("read"),
    ("GET", f"{L}/events/stream"): asks("read", query="?after=0"),
    ("GET", f"{L}/search"): asks("read", query="?q=hi"),
    ("GET", f"{L}/messages"): asks("read"),
    ("POST", f"{L}/fork"): asks("write", {}),
    ("POST", f"{L}/rewind"): asks("write", {"to": 1}, refused=400),  # in a turn that waits
    ("POST", f"{L}/merge"): asks("write", {"session_id": "{fork}"}),
    ("POST", f"{L}/bisect"): asks("read", {"path": "managed", "is": "present"}),
    ("GET", f"{L}/lineage"): asks("read"),
    ("GET", f"{L}/tree"): asks("read"),
    ("GET", f"{L}/relations"): asks("read"),
    ("POST", f"{L}/relations"): asks("write", {"session_id": "{other}", "kind": "peer"}),
    ("POST", f"{L}/relations/end"): asks("read", {"id": "never"}, refused=404),
    ("POST", f"{L}/citations"): asks(
        "write", {"session_id": "{other}", "fields": ["n"]}, refused=400
    ),
    ("GET", f"{L}/citations"): asks("read", query="?relation=never", refused=404),
    ("GET", f"{L}/graph"): asks("read"),
    ("GET", f"{L}/graph_run"): asks("read"),
    ("GET", f"{L}/checkpoints"): asks("read"),
    ("POST", f"{L}/checkpoints"): asks("write", {}),
    ("POST", f"{L}/checkpoints/{{number}}/restore"): asks("write", {}, refused=400),
    ("GET", f"{L}/traces"): asks("inspect"),
    ("GET", f"{L}/traces/{{wake_id}}"): asks("inspect"),
    ("GET", f"{L}/export"): asks("erase"),
    ("GET", f"{L}/verify"): asks("read"),
    ("GET", f"{L}/requests"): asks("read"),
    ("POST", f"{L}/confirm"): asks("write", {"request_id": "{request}", "allow": True}),
    # Of the wrong kind: that is said to whoever may read the request.
    ("POST", f"{L}/answer"): asks("read", {"request_id": "{request}", "output": 1}, refused=400),
    ("POST", f"{L}/resolve"): asks(
        "read", {"request_id": "{request}", "decision": "give_up"}, refused=400
    ),
    ("POST", f"{L}/decide"): asks(
        "store", {"request_id": "{proposal}", "accept": True, "note": "useful"}
    ),
    ("POST", f"{L}/interrupt"): asks("write", {}),
    ("POST", f"{L}/labels"): asks("write", {"labels": {"a": "b"}}),
    ("POST", f"{L}/activate"): asks("write", {}, refused=400),
    ("POST", f"{L}/suspend"): asks("write", {}),
    ("POST", f"{L}/resume"): asks("write", {}, refused=400),
    ("POST", f"{L}/complete"): asks("write", {}),
    ("POST", f"{L}/terminate"): asks("write", {}),
    ("POST", f"{L}/archive"): asks("write", {}, refused=400),
    ("POST", f"{L}/unarchive"): asks("write", {}, refused=400),
    ("POST", f"{L}/requeue"): asks("read", {}, refused=400),
    ("POST", f"{L}/tokens"): asks("read", {}, refused=400),  # without a signing key
    ("POST", f"{L}/tokens/rotate"): asks("anybody", {}, refused=400),
    ("POST", f"{L}/tokens/revoke"): asks("anybody", {}, refused=400),
    ("POST", "/limpet/v1/sessions"): asks("write", {"app": "{app}", "user": "{user}"}, done=201),
    ("POST", "/limpet/v1/import"): asks("erase", b"not an export", refused=400),
    ("GET", "/limpet/v1/me"): asks("anybody"),
    ("GET", "/limpet/v1/sessions"): asks("inspect"),
    ("GET", "/limpet/v1/status"): asks("inspect", of_app=True),
    ("GET", "/limpet/v1/inbox"): asks("read"),
    ("GET", "/limpet/v1/dead_letters"): asks("inspect", of_app=True),
    ("GET", "/limpet/v1/audit"): asks("audit", of_app=True),
    ("GET", "/limpet/v1/events/stream"): asks("read", of_app=True),
    ("GET", "/limpet/v1/analytics"): asks("read of all", of_app=True),
}
# The parameter {id} of a path means another thing on each of them.
_ID_OF = {
    "/v1/agents": "agent",
    "/v1/environments": "env",
    E: "work",
    f"{S}/resources": "resource",
    f"{S}/threads": "thread",
    f"{V}/credentials": "credential",
    "/v1/files": "file",
    f"{M}/memories": "memory",
    f"{M}/memory_versions": "version",
    "/v1/models": "model",
    "/v1/skills": "skill",
}


def routes_of(app: Starlette) -> set[tuple[str, str]]:
    """Everything under /v1 and /limpet/v1 but the store protocol, which has its own matrix."""
    shown = [each for each in app.routes if isinstance(each, Route) and ":path}" not in each.path]
    return {
        (method, route.path)
        for route in shown
        for method in (route.methods or set()) - {"HEAD"}
        if route.path.startswith(("/v1", "/limpet/v1")) and route.path != "/limpet/v1/store"
    }


@asynccontextmanager
async def world() -> AsyncIterator[tuple[limpet.Limpet, Starlette]]:
    async with limpet.open("memory://") as lp:

        async def caller_of(connection: HTTPConnection) -> Caller:
            role = connection.headers.get("x-role", "")
            if role == "root":
                return Caller(lp, "admin:root", admin=True)
            if role not in PRINCIPALS:
                raise EntryRefused("this server", "the key is not known")
            p = PRINCIPALS[role]
            admin = p.role == "admin"
            return Caller(lp.acting_as(p), p.id, p.app, p.user, admin=admin, principal=p)

        async with limpet.Analytics(lp, "memory://") as analytics:
            yield lp, build(lp, caller_of=caller_of, rate=None, analytics=analytics)


def filled(value: Any, names: dict[str, str]) -> Any:
    """A body with the names of things in the place of {agent} and such."""
    if isinstance(value, dict):
        return {name: filled(each, names) for name, each in value.items()}
    if isinstance(value, str) and value.startswith("{"):
        return names[value.strip("{}")]
    return value


def path_of(route: str, names: dict[str, str]) -> str:
    (of, *_) = [name for start, name in _ID_OF.items() if f"{start}/{{id}}" in route] or [""]
    params = {"session_id": names["session"], "vault_id": names["vault"]}
    params |= {"store_id": names["memstore"], "env_id": names["env"], "number": "1"}
    return route.format(id=names.get(of, ""), wake_id=names["wake"], **params)


def test_every_route_is_in_the_table() -> None:
    """And the table has no others."""

    async def found() -> set[tuple[str, str]]:
        async with world() as (_, app):
            return routes_of(app)

    assert asyncio.run(found()) == CASES.keys()


def may(case: Case, role: str, place: str) -> bool:
    if role not in ROLES[case.action]:
        return False
    if place == "foreign":
        return False
    return place == "own" or PRINCIPALS[role].user is None


class World:
    """A served store with one of everything of each place, and as many more as are changed."""

    def __init__(self, lp: limpet.Limpet, app: Starlette) -> None:
        self._lp, self._app = lp, app
        self._things: dict[str, Things] = {}
        self._known: dict[str, list[Any]] = {}  # denials of a role whose last request was denied

    async def things(self, place: str, *, fresh: bool) -> Things:
        if fresh or place not in self._things:
            things = Things(self._app, place)
            await things.make(self._lp)
            if fresh:
                return things
            self._things[place] = things
        return self._things[place]

    async def tried(
        self, method: str, route: str, role: str, place: str
    ) -> tuple[AsgiReply, list[Any]]:
        """The answer, and what the audit has of the principal's denials since, if it may not."""
        case = CASES[method, route]
        allowed = may(case, role, place)
        changes = allowed and (method != "GET" or route.endswith("/poll"))
        things = await self.things(place, fresh=changes)
        before = self._known.pop(role, None)
        if before is None and not allowed:
            before = await self._denials(role)
        named = {"limpet-app": things.app, "limpet-user": things.user, "x-role": role}
        path = path_of(route, things.names) + case.query
        body = filled(case.body, things.names)
        reply = await ask(self._app, method, path, body, {**case.headers, **named})
        if reply.status == case.done:
            _check_form(self._app, method, route, reply)
        if before is None or allowed:
            return reply, []
        self._known[role] = after = await self._denials(role)
        return reply, [each for each in after if each not in before]

    async def _denials(self, role: str) -> list[Any]:
        """With how often each was repeated within a second."""
        found = await self._lp.audit(denied=True, principal=PRINCIPALS[role].id, limit=1_000)
        return list(found.items)


def _check_form(app: Starlette, method: str, route: str, reply: AsgiReply) -> None:
    """The answer is of the type that the document names."""
    (found,) = [
        each
        for each in app.routes
        if isinstance(each, Route) and each.path == route and method in (each.methods or ())
    ]
    of = described(found.endpoint)
    kind = reply.headers["content-type"].partition(";")[0]
    if of.response is not None:
        assert kind == of.media_type
        msgspec.convert(reply.body, of.response, strict=True)
    else:
        assert kind in (of.media_type, "text/plain")  # a file is what it was uploaded as


GROUP = 10  # routes that share a store
GROUPS = [sorted(CASES)[at : at + GROUP] for at in range(0, len(CASES), GROUP)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: " ".join(group[0]))
async def test_each_role_gets_what_it_may_and_the_audit_has_the_rest(
    group: list[tuple[str, str]],
) -> None:
    """Own things, a neighbour's, and those of another app."""
    wrong = []
    async with world() as (lp, app):
        of = World(lp, app)
        for method, route in group:
            case = CASES[method, route]
            for role in PRINCIPALS:
                for place in PLACES:
                    reply, denied = await of.tried(method, route, role, place)
                    allowed = may(case, role, place)
                    expected = (case.refused or case.done,) if allowed else (403, 404)
                    if reply.status not in expected or not (denied or allowed):
                        said = "audited" if denied else "not audited"
                        wrong.append((method, route, role, place, reply.status, said, reply.body))
    assert not wrong, "\n".join(map(str, wrong))


async def test_nobody_enters_without_a_key() -> None:
    """401, whatever is asked."""
    async with world() as (_, app):
        names = dict.fromkeys((*_ID_OF.values(), "session", "vault", "memstore", "wake"), "x")
        for method, route in CASES:
            reply = await ask(app, method, path_of(route, names), None, {})
            assert (reply.status, reply.body["error"]["type"]) == (401, "authentication_error")
