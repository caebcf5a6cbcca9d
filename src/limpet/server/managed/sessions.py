"""Sessions of the wire: sessions of the store, with title, metadata and agent in their state.

The field `managed` of a session's state holds what the wire has and a session has not: the agent as
it was when the session began, its environment, title, metadata, resources and vaults. A session
that was made otherwise is shown too, without these.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.routing import BaseRoute

from limpet.errors import (
    IdempotencyKeyReused,
    InvalidCursor,
    InvalidInput,
    InvalidQuery,
    SessionError,
    SessionExists,
)
from limpet.model import FrozenDict, Head, Key, to_time
from limpet.model.facts.phases import ARCHIVED, TERMINAL
from limpet.model.facts.running.budgets import MILLION, Budget, granted
from limpet.model.facts.running.runs import STATUSES
from limpet.model.lease import status_at
from limpet.server import ids
from limpet.server.managed import parts, shelf
from limpet.server.managed.agents import (
    DEFAULT_ENVIRONMENT,
    SERVICE_ACCOUNT,
    agent_form,
    agent_named,
    checked_agent,
    find_agent,
    find_environment,
    skill_form,
    tool_form,
)
from limpet.server.managed.events import draft_of, outcome_events, with_files
from limpet.server.managed.files import find_file
from limpet.server.managed.forms import DeletedForm, SessionPageForm, WireSessionForm
from limpet.server.managed.memories import open_store
from limpet.server.managed.vaults import open_vault
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    page,
    rfc3339,
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.session import Session

MANAGED: Final = "managed"
UPDATED: Final = "managed.updated"
_INITIAL_EVENTS_MAX: Final = 50
_RESOURCES_MAX: Final = 100
_VAULTS_MAX: Final = 50
_PAGES_BACK_MAX: Final = 100  # that a place in a list remembers
_PLACE_BYTES_MAX: Final = 256 * 1_024
_SNAPSHOT: Final = (
    *("id", "type", "version", "name", "description", "model", "system", "tools"),
    *("mcp_servers", "skills", "multiagent", "execution_identity"),
)
_OVERRIDES: Final = frozenset(("model", "system", "tools", "mcp_servers", "skills"))
_CHANGEABLE: Final = frozenset(("tools", "mcp_servers"))  # of the agent, in a session


class Managed(msgspec.Struct):
    """The field `managed` of a session's state."""

    agent: dict[str, Any]
    environment_id: str
    title: str | None
    metadata: dict[str, str]
    resources: list[dict[str, Any]]
    vault_ids: list[str]
    budget: dict[str, Any] | None = None
    # The digest of the request that made it under an Idempotency-Key.
    request: str | None = None


class SessionCreate(msgspec.Struct):
    """The body of sessions.create."""

    agent: str | dict[str, Any]
    environment_id: str = DEFAULT_ENVIRONMENT
    title: str | None = None
    metadata: dict[str, str] = {}
    resources: list[dict[str, Any]] = []
    vault_ids: list[str] = []
    initial_events: list[dict[str, Any]] = []
    budget: dict[str, Any] | None = None


class SessionUpdate(msgspec.Struct):
    """The body of sessions.update."""

    title: str | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType | None = UNSET
    agent: dict[str, Any] | UnsetType = UNSET
    vault_ids: list[str] | UnsetType = UNSET
    budget: dict[str, Any] | UnsetType | None = UNSET


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any, operation: str | None = None) -> BaseRoute:
        return endpoint(service, f"/v1/sessions{path}", method, act, operation=operation)

    return [
        at("POST", "", create),
        at("GET", "", listed),
        at("GET", "/{session_id}", retrieve),
        at("POST", "/{session_id}", update),
        at("DELETE", "/{session_id}", delete, "erase"),
        at("POST", "/{session_id}/archive", archive, "lifecycle"),
    ]


@describe(response=WireSessionForm)
async def create(call: WireCall) -> Answer:
    """The session and its first events are recorded in one commit: once under an
    Idempotency-Key."""
    body, key = await call.body(SessionCreate), call.idempotency_key()
    if key is None:
        return await shown(call, await _created(call, body, ids.new_id(ids.SESSION), None))
    id = call.id_under(ids.SESSION, call.app, call.user, key)
    digest = sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:32]
    made = Key(call.app, call.user, id)
    before: Session[Any] | None = await call.lp.find(made, tail=0, archived=True)
    if before is None:
        try:
            return await shown(call, await _created(call, body, id, digest))
        except SessionExists:  # by the same request, at the same time
            before = await call.lp.get(made, tail=0, archived=True)
    if managed_in(before.values, call.app).get("request") != digest:
        raise IdempotencyKeyReused(key)
    return await shown(call, made)


async def _created(call: WireCall, body: SessionCreate, id: str, digest: str | None) -> Key:
    """Create a session. Raises SessionExists, DocumentNotFound, InvalidInput."""
    agent = await _agent(call, body.agent)
    environment = await find_environment(call, body.environment_id)
    if environment["archived_at"] is not None:
        raise InvalidInput(f"the environment {body.environment_id} is archived.")
    if len(body.initial_events) > _INITIAL_EVENTS_MAX:
        raise InvalidInput(f"initial_events has at most {_INITIAL_EVENTS_MAX} events.")
    managed: Json = {
        "agent": agent,
        "environment_id": body.environment_id,
        "title": body.title,
        "metadata": shelf.check_metadata(body.metadata),
        "resources": await resources_of(call, body.resources),
        "vault_ids": await _vaults(call, body.vault_ids),
        "budget": None,
        "request": digest,
    }
    budget = None
    if body.budget is not None:
        budget, managed["budget"] = _checked_budget(body.budget)
    labels = {"agent_id": agent["id"], "agent_version": str(agent["version"])}
    labels["environment_id"] = body.environment_id
    events = [draft_of(await with_files(call, each)) for each in body.initial_events]
    async with call.lp.commit() as c:
        new = c.create(call.app, call.user, id, state={MANAGED: managed}, labels=labels)
        if budget is not None:
            c.record(new, granted(budget))
        for draft in events:
            c.append(new, draft.type, draft.data)
    return new.key


async def _agent(call: WireCall, named: str | Mapping[str, Any]) -> Json:
    """The agent as this session has it. Raises DocumentNotFound, InvalidInput."""
    given: Mapping[str, Any] = {"id": named} if isinstance(named, str) else named
    id, version = agent_named(given)
    if given.get("type", "agent") not in ("agent", "agent_with_overrides"):
        raise InvalidInput("agent has the type agent or agent_with_overrides.")
    agent = agent_form(await find_agent(call, id, version))
    if agent["archived_at"] is not None:
        raise InvalidInput(f"the agent {id} is archived. Create a session with another one.")
    if given.get("type") == "agent_with_overrides":
        agent = _overridden(agent, {name: given[name] for name in _OVERRIDES & given.keys()})
    snapshot = {name: agent.get(name) for name in _SNAPSHOT}
    return {**snapshot, "multiagent": await _roster(call, agent["multiagent"])}


async def _roster(call: WireCall, multiagent: Json | None) -> Json | None:
    """A coordinator with its agents as they are now, in place of their ids and versions."""
    if multiagent is None or multiagent.get("type") != "coordinator":
        return multiagent
    agents: list[Json] = []
    for each in multiagent["agents"]:
        if each["type"] != "agent":
            agents.append(each)
            continue
        agent = agent_form(await find_agent(call, each["id"], each["version"]))
        agents.append({name: agent[name] for name in _SNAPSHOT if name != "multiagent"})
    return {**multiagent, "agents": agents}


def _overridden(agent: Json, given: Mapping[str, Any]) -> Json:
    """An agent with what a session has in its place. Raises InvalidInput."""
    checked = checked_agent({**agent, **given})
    tools = [tool_form(tool) for tool in checked["tools"]]
    return {**checked, "tools": tools, "skills": [skill_form(each) for each in checked["skills"]]}


async def _vaults(call: WireCall, ids: Sequence[str]) -> list[str]:
    """Vaults of this user. Raises DocumentNotFound, for those of another too, and InvalidInput."""
    if len(ids) > _VAULTS_MAX:
        raise InvalidInput(f"vault_ids has at most {_VAULTS_MAX} ids.")
    for id in ids:
        await open_vault(call, id)
    return list(ids)


def _checked_budget(given: Mapping[str, Any]) -> tuple[Budget, Json]:
    """A budget, and what the wire shows of it. Raises InvalidInput."""
    try:
        if given.get("type", "limit") != "limit":
            raise ValueError
        amount = given["max_list_cost"]
        if isinstance(amount, Mapping) and amount.get("currency", "USD") != "USD":
            raise ValueError
        cost = amount["amount"] if isinstance(amount, Mapping) else amount
        shown = {"type": "limit", "max_list_cost": {"amount": str(cost), "currency": "USD"}}
        return Budget(cost=float(cost)), shown
    except (KeyError, TypeError, ValueError):
        form = '{"type": "limit", "max_list_cost": {"amount": "1.50", "currency": "USD"}}'
        raise InvalidInput(f"budget is an object as in {form}.") from None


async def resources_of(call: WireCall, given: list[dict[str, Any]]) -> list[Json]:
    """Resources of a session, with ids. Raises DocumentNotFound, InvalidInput."""
    check_count(given)
    return [await resource_of(call, each) for each in given]


def check_count(resources: Sequence[Any]) -> None:
    if len(resources) > _RESOURCES_MAX:
        raise InvalidInput(f"a session has at most {_RESOURCES_MAX} resources.")


async def resource_of(call: WireCall, given: Mapping[str, Any]) -> Json:
    """One resource. A token that came with it is not kept. A file or a memory store has to be of
    this user. Raises DocumentNotFound, for that of another too, and InvalidInput."""
    needs = {"file": "file_id", "github_repository": "url", "memory_store": "memory_store_id"}
    kind = str(given.get("type"))
    if kind not in needs or not isinstance(given.get(needs[kind]), str) or not given[needs[kind]]:
        known = ", ".join([f"{name} (with {field})" for name, field in needs.items()])
        raise InvalidInput(f"a resource is of the type {known}.")
    parts.check(given, parts.ResourcePart, f"a resource of the type {kind}")
    checkout = given.get("checkout")
    if checkout and checkout.get({"branch": "name", "commit": "sha"}[checkout["type"]]) is None:
        raise InvalidInput("checkout is a branch with its name, or a commit with its sha.")
    kept = {
        name: value
        for name, value in given.items()
        if value is not None and name != "authorization_token"
    }
    if kind == "file":
        await find_file(call, given["file_id"])
        kept.setdefault("mount_path", f"/mnt/session/uploads/{given['file_id']}")
    elif kind == "memory_store":
        store = await open_store(call, given["memory_store_id"])
        more = {"name": store.value["name"], "description": store.value["description"]}
        kept = {"access": "read_write", **kept, **more, "mount_path": f"/mnt/memory/{store.name}"}
    elif kind == "github_repository":
        name = given["url"].rstrip("/").rpartition("/")[2].removesuffix(".git")
        kept.setdefault("mount_path", f"/workspace/{name}")
    now = rfc3339(call.lp.now())
    return {"id": ids.new_id("sesrsc_"), **kept, "created_at": now, "updated_at": now}


@describe(response=SessionPageForm)
async def listed(call: WireCall) -> Answer:
    """The newest first, unless order=asc."""
    limit, place = call.limit(), PagePlace.parse(call.text("page"))
    cursor = place.cursor
    named = {"agent_id": call.text("agent_id"), "agent_version": call.text("agent_version")}
    labels = {name: value for name, value in named.items() if value is not None}
    created, statuses = call.times(), statuses_of(call)
    if call.text("deployment_id") is not None:  # no session here is made by a deployment
        return {**page([], None), "prev_page": None}
    archived, store = call.flag("include_archived"), call.text("memory_store_id")
    items: list[Json] = []
    while True:
        heads = await call.lp.list(
            app=call.app,
            user=call.user,
            labels=labels or None,
            reverse=not call.is_ascending(default=False),
            state=True,
            limit=limit - len(items),
            cursor=cursor,
        )
        for head in heads.items:
            form = form_of(call, head, heads.states.get(head.key, {}))
            stores = [each.get("memory_store_id") for each in form["resources"]]
            if (
                created(head.created_us)
                and (not statuses or form["status"] in statuses)
                and (archived or form["archived_at"] is None)
                and (store is None or store in stores)
            ):
                if form["outcome_evaluations"]:
                    with suppress(SessionError):  # it was archived or deleted since
                        outcomes = await _evaluations_of(call.lp.session(head.key), head)
                        form["outcome_evaluations"] = outcomes
                items.append(form)
        cursor = heads.cursor
        if cursor is None or len(items) == limit:
            next_page = None if cursor is None else place.after(cursor).token()
            before = place.before()
            return {
                **page(items, next_page),
                "prev_page": None if before is None else before.token(),
            }


def statuses_of(call: WireCall) -> tuple[str, ...]:
    """The statuses that a list is about; empty: all. Raises InvalidQuery."""
    statuses = call.texts("statuses")
    if not set(statuses).issubset(STATUSES):
        raise InvalidQuery(f"statuses are among {', '.join(STATUSES)}")
    return statuses


class PagePlace:
    """A page in a list that is read both ways: the cursors of the pages up to it.

    A cursor leads forward only. Those of a list differ in their last characters, so compressed they
    are short.
    """

    def __init__(self, cursors: Sequence[str]) -> None:
        self._cursors = tuple(cursors)  # of the pages after the first; "": those before are dropped

    @classmethod
    def parse(cls, token: str | None) -> PagePlace:
        """Parse a cursor. Raises InvalidCursor."""
        if token is None:
            return cls(())
        try:
            packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            unpacked = zlib.decompressobj().decompress(packed, _PLACE_BYTES_MAX)
            cursors = msgspec.json.decode(unpacked, type=list[str])
        except (binascii.Error, ValueError, zlib.error, msgspec.DecodeError):
            raise InvalidCursor from None
        if cursors and not cursors[-1]:
            raise InvalidCursor
        return cls(cursors)

    @property
    def cursor(self) -> str | None:
        return self._cursors[-1] if self._cursors else None

    def token(self) -> str:
        packed = zlib.compress(msgspec.json.encode(self._cursors), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def after(self, cursor: str) -> PagePlace:
        cursors = (*self._cursors, cursor)
        if len(cursors) > _PAGES_BACK_MAX:
            cursors = ("", *cursors[2:])
        return PagePlace(cursors)

    def before(self) -> PagePlace | None:
        """The page before this one; None of the first, or if it is not known any more."""
        earlier = self._cursors[:-1]
        return None if not self._cursors or earlier == ("",) else PagePlace(earlier)


@describe(response=WireSessionForm)
async def retrieve(call: WireCall) -> Answer:
    return await shown(call, call.key())


@describe(response=WireSessionForm)
async def update(call: WireCall) -> Answer:
    given = msgspec.to_builtins(await call.body(SessionUpdate))
    session = await load(call)
    if given.get("budget", {}) is None and session.runs.budget is not None:
        raise InvalidInput("the budget of a session can be raised, and not removed.")
    budget = given.pop("budget", None)
    agent = given.pop("agent", {})
    if agent:
        check_idle(session)
    if agent.keys() - _CHANGEABLE:
        raise InvalidInput("of the agent of a session, tools and mcp_servers can be changed.")
    await _vaults(call, given.get("vault_ids", ()))

    def changed(state: Mapping[str, Any]) -> Json:
        managed = managed_in(state, call.app)
        managed |= {**given, "metadata": shelf.patched(managed["metadata"], given.get("metadata"))}
        if agent:
            managed["agent"] = _overridden({"metadata": {}, **managed["agent"]}, agent)
            managed["agent"] = {name: managed["agent"].get(name) for name in _SNAPSHOT}
        if budget is not None:
            managed["budget"] = budget
        return {MANAGED: managed}

    if budget is not None:
        wanted, budget = _checked_budget(budget)
        await _raise_budget(session, wanted)
    await session.update(changed, type=UPDATED, data={"changed": sorted(given)})
    return await shown(call, session.key)


async def _raise_budget(session: Session[Any], wanted: Budget) -> None:
    """A budget can be raised only: what was spent is spent."""
    now = session.runs.budget
    limit = 0.0 if now is None or now.limit.cost is None else now.limit.cost
    more = (wanted.cost or 0.0) - limit
    if more < 0:
        raise InvalidInput(f"the budget of a session can only be raised; it is {limit}.")
    if more:
        await session.runs.grant(Budget(cost=more))


@describe(response=DeletedForm)
async def delete(call: WireCall) -> Answer:
    session = await load(call)
    check_idle(session)
    await call.lp.delete(session.key)
    return {"id": call.path("session_id"), "type": "session_deleted"}


@describe(response=WireSessionForm)
async def archive(call: WireCall) -> Answer:
    """Archive a session, after completing it. Repeating it changes nothing."""
    session = await load(call)
    check_idle(session)
    if session.phase not in TERMINAL:
        await session.complete()
    if session.phase != ARCHIVED:
        await session.archive()
    return await shown(call, session.key)


def check_idle(session: Session[Any]) -> None:
    if session.status == "running":
        raise InvalidInput(f"{session.key} runs a turn. Send user.interrupt, and wait for idle.")


# --- what a session looks like --------------------------------------------------------------------


async def load(call: WireCall) -> Session[Any]:
    """The session of the path, from the archive if need be. Raises SessionNotFound."""
    session: Session[Any] = await call.lp.get(call.key(), tail=0, archived=True)
    return session


async def shown(call: WireCall, key: Key) -> Json:
    session: Session[Any] = await call.lp.get(key, tail=0, archived=True)
    form = form_of(call, session.head, session.values)
    form["outcome_evaluations"] = await _evaluations_of(session, session.head)
    if session.phase not in TERMINAL:
        active, stats = session.lifecycle.durations.active, form["stats"]
        form["stats"] = {"duration_seconds": max(active, stats["duration_seconds"])}
        form["stats"]["active_seconds"] = active
    return form


def form_of(call: WireCall, head: Head, state: Mapping[str, Any]) -> Json:
    """A session as the wire shows it, from its head and its state."""
    managed = managed_in(state, head.key.app)
    updated = rfc3339(to_time(head.updated_us))
    now = call.lp.now()
    end = to_time(head.updated_us) if head.phase in TERMINAL else now
    usage = head.facts.get("usage", FrozenDict())
    cost = Decimal(usage.get("cost", 0)) / MILLION
    return {
        "id": ids.session_id(head.key.id),
        "type": "session",
        "status": status_at(head, int(now.timestamp() * 1_000_000)),
        "agent": managed["agent"],
        "environment_id": managed["environment_id"],
        "title": managed["title"],
        "metadata": managed["metadata"],
        "resources": managed["resources"],
        "vault_ids": managed["vault_ids"],
        "budget": managed["budget"],
        "deployment_id": None,
        "outcome_evaluations": _evaluations(head),
        "stats": {"duration_seconds": (end - to_time(head.created_us)).total_seconds()},
        "usage": {
            "input_tokens": usage.get("input", 0),
            "output_tokens": usage.get("output", 0),
            "cache_read_input_tokens": usage.get("cache_read", 0),
            "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
            "list_cost": {"amount": format(cost, "f"), "currency": "USD"},
        },
        "created_at": rfc3339(to_time(head.created_us)),
        "updated_at": updated,
        "archived_at": updated if head.phase == ARCHIVED else None,
    }


def _evaluations(head: Head) -> list[Json]:
    """The outcome as the head has it: without words, which are read with one session."""
    outcome = head.facts.get("outcome")
    if outcome is None:
        return []
    results = {"pass": "satisfied", "fail": "failed", "uncertain": "evaluating"}  # nosec B105
    result = results.get(outcome.get("verdict") or "", "pending")
    form = {"type": "outcome_evaluation", "outcome_id": f"{ids.OUTCOME}{outcome['seq']}"}
    return [{**form, "description": "", "iteration": 0, "result": result}]


async def _evaluations_of(session: Session[Any], head: Head) -> list[Json]:
    """The outcome with its words and those of the last verdict on it."""
    forms = _evaluations(head)
    for form in forms:
        seq = int(form["outcome_id"].removeprefix(ids.OUTCOME))
        defined, *verdicts = await outcome_events(session, seq)
        form["description"] = (defined.data or {}).get("title", "")
        if not verdicts:
            continue
        last = verdicts[-1]
        form |= {"iteration": len(verdicts) - 1, "explanation": (last.data or {}).get("note")}
        done = form["result"] in ("satisfied", "failed")
        form["completed_at"] = rfc3339(last.at) if done else None
    return forms


def managed_in(state: Mapping[str, Any], app: str) -> Json:
    """The wire's part of a session's state. Blank if the session was not made by the wire,
    or has something else under this name: whoever writes its state may put anything there."""
    if isinstance(stored := state.get(MANAGED), dict):
        with suppress(msgspec.ValidationError):
            return msgspec.to_builtins(msgspec.convert(stored, Managed))  # type: ignore[no-any-return]
    return blank_managed(app)


def blank_managed(app: str) -> Json:
    """The managed part of a session that was not made by the wire."""
    agent: Json = {"id": "agent_none", "type": "agent", "version": 1, "name": app}
    agent |= {"description": None, "model": {"id": "none"}, "system": None, "tools": []}
    agent |= {"mcp_servers": [], "skills": [], "multiagent": None}
    agent["execution_identity"] = SERVICE_ACCOUNT
    managed: Json = {"agent": agent, "environment_id": DEFAULT_ENVIRONMENT, "title": None}
    return {**managed, "metadata": {}, "resources": [], "vault_ids": [], "budget": None}
