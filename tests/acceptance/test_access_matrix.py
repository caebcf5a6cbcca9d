"""Every public verb, for every role, on one's own session, another user's and another app's.

The verbs are those of the sync façade, which has all of them: one that is new fails the first test
until it stands in the table here, with the action that it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import limpet
from limpet import AccessDenied, Key, Limpet, Principal, Session, facts
from limpet.errors import CrossSessionAccessDenied, FlushFailed, LimpetError
from limpet.session.sync.facade import Facade, public
from limpet.session.sync.tokens import SyncTokens
from limpet.session.sync.verbs import SyncLimpet
from tests.support.examples import tries

assert SyncLimpet is not None  # imported: the façade knows its classes
assert SyncTokens is not None

# --- what is expected --------------------------------------------------------------------------
# An action of a verb on a session, or on what belongs to its user: the roles that may, each within
# its own app and, if it acts for one user, for that one.

BODIES = {"owner", "agent", "bound", "viewer", "admin"}
WRITES = {"owner", "agent", "bound", "admin"}
ROLES: dict[str, set[str]] = {
    "read": BODIES,
    "inspect": {*BODIES, "auditor"},
    "create": WRITES,
    "write": WRITES,
    "lifecycle": WRITES,
    "claim": WRITES,
    "tool": WRITES,
    "share": {"owner", "admin"},
    "move": {"owner", "admin"},
    "erase": {"owner", "admin"},
    "policy": {"owner", "admin"},
    # Of what all users of an app share.
    "app read": BODIES,
    "app inspect": {*BODIES, "auditor"},
    "app claim": {"agent", "admin"},
    "app policy": {"admin"},
    "app audit": {"auditor", "admin"},
    # Of the store: only for those who are bound to no app, and so for none of these.
    "store": set(),
    "store read": BODIES,  # documents of the whole store
    "agents": {"agent", "bound", "admin"},  # what sessions of an agent have learned
    "anybody": {*BODIES, "auditor"},
}
PRINCIPALS = {
    "owner": Principal("user:ada", role="owner", app="support", user="ada"),
    "agent": Principal("agent:main", role="agent", app="support"),
    "bound": Principal("agent:main", role="agent", app="support", user="ada"),
    "viewer": Principal("user:ada", role="viewer", app="support", user="ada"),
    "auditor": Principal("user:eve", role="auditor", app="support"),
    "admin": Principal("user:root", role="admin", app="support"),
}
PLACES = {"own": ("support", "ada"), "neighbour": ("support", "bob"), "foreign": ("billing", "ada")}


def expected(action: str, role: str, place: str) -> bool:
    """True if a principal of this role may do this there."""
    if role not in ROLES[action]:
        return False
    if action in ("store read", "agents", "anybody"):
        return True  # wherever the session is: these are not about it
    if place == "foreign":
        return False
    bound = PRINCIPALS[role].user is not None
    return place == "own" or not bound or action.startswith("app ")


# --- the verbs ---------------------------------------------------------------------------------


class Case(NamedTuple):
    """What a verb is tried on."""

    lp: Limpet
    s: Session[Any]
    other: Session[Any]
    path: Path

    @property
    def key(self) -> Key:
        return self.s.key


Call = Callable[[Case], Any]
PATIENCE = {"seconds": 0.2}  # with one who follows: a server takes longer to refuse
NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def first(events: Any) -> Any:
    """The first of what is followed, if there is one."""
    try:
        return await asyncio.wait_for(anext(events), PATIENCE["seconds"])
    except (TimeoutError, StopAsyncIteration):
        return None
    finally:
        await events.aclose()


async def committed(case: Case, use: Callable[[Any], Any]) -> None:
    async with case.lp.commit() as c:
        use(c)


async def traced(case: Case) -> limpet.WakeTrace:
    """The newest wake, of a session that has one: see `fault_of`."""
    wakes = await case.s.runs.wakes(limit=1)
    return await case.s.runs.trace(str(wakes[0].wake_id) if wakes else "none")


async def quiet(turn: limpet.Turn) -> None:
    """A harness that says nothing."""


async def flushed(case: Case) -> None:
    case.s.append_soon("note.made", {"n": 1})
    await case.lp.flush()


async def harness(turn: Any) -> None:
    await turn.say("done")


async def lock_and(case: Case, use: Callable[[limpet.Lease], Awaitable[Any]]) -> None:
    lease = await case.lp.work.lock(case.key, worker="w")
    await use(lease)


def memory_verbs(layer: str) -> dict[str, tuple[str, Call]]:
    return {
        f"get {layer}": ("read", lambda c: getattr(c.s.memory, layer).get("x")),
        f"put {layer}": ("write", lambda c: getattr(c.s.memory, layer).put("x", 1)),
        f"list {layer}": ("read", lambda c: getattr(c.s.memory, layer).list()),
        f"search {layer}": ("read", lambda c: getattr(c.s.memory, layer).search("x")),
    }


def documents(case: Case) -> Any:
    return case.lp.documents("notes", owner=(case.key.app, case.key.user))


VERBS: dict[str, dict[str, tuple[str, Call]]] = {
    "Session": {
        "refresh": ("read", lambda c: c.s.refresh()),
        "read": ("read", lambda c: c.s.read()),
        "read_ids": ("read", lambda c: c.s.read_ids(["one"])),
        "follow": ("read", lambda c: first(c.s.follow())),
        "pending": ("read", lambda c: c.s.pending()),
        "messages": ("read", lambda c: c.s.messages()),
        "context": ("read", lambda c: c.s.context()),
        "append": ("write", lambda c: c.s.append("note.made", {"n": 1}, set={"n": 1})),
        "append partial": ("write", lambda c: _partial(c)),
        "append_many": ("write", lambda c: c.s.append_many([limpet.Draft(type="note.made")])),
        "append_soon": ("write", flushed),
        "update": ("write", lambda c: c.s.update(lambda state: {"n": 2})),
        "record": ("write", lambda c: c.s.record(facts.labeled({"a": "b"}))),
        "label": ("write", lambda c: c.s.label({"a": "b"})),
        "mark_processed": ("write", lambda c: c.s.mark_processed([2])),
        "interrupt": ("write", lambda c: c.s.interrupt()),
        "confirm": ("read", lambda c: c.s.confirm("r", allow=True)),
        "answer": ("read", lambda c: c.s.answer("r", 1)),
        "resolve": ("read", lambda c: c.s.resolve("r", give_up=True)),
        "fork": ("create", lambda c: c.s.fork()),
        "rewind": ("write", lambda c: c.s.rewind(1)),
        "merge": ("write", lambda c: c.s.merge(c.other.key)),
        "checkpoint": ("write", lambda c: c.s.checkpoint()),
        "receipt": ("read", lambda c: c.s.receipt()),
        "prove": ("read", lambda c: c.s.prove(1)),
        "activate": ("lifecycle", lambda c: c.s.activate()),
        "suspend": ("lifecycle", lambda c: c.s.suspend()),
        "resume": ("lifecycle", lambda c: c.s.resume()),
        "complete": ("lifecycle", lambda c: c.s.complete()),
        "terminate": ("lifecycle", lambda c: c.s.terminate()),
        "archive": ("lifecycle", lambda c: c.s.archive()),
        "relate": ("write", lambda c: c.s.relate(c.other, "peer")),
        "relate outputs": (
            "write",
            lambda c: c.s.relate(c.other, "reference", outputs=True),
        ),
        "relations": ("read", lambda c: c.s.relations()),
        "unrelate": ("read", lambda c: c.s.unrelate("x")),
        "cite": ("write", lambda c: c.s.cite(c.other, fields=("n",))),
        "read_cited": ("read", lambda c: c.s.read_cited("x")),
        "share": ("share", lambda c: c.s.share(c.other, "n")),
        "unshare": ("read", lambda c: c.s.unshare("x")),
        "read_shared": ("inspect", lambda c: c.s.read_shared("x")),
        "write_shared": ("inspect", lambda c: c.s.write_shared("x", {"n": 1}, expect={"n": 1})),
        "follow_shared": ("inspect", lambda c: first(c.s.follow_shared("x"))),
    },
    "SessionHistory": {
        "at": ("read", lambda c: c.s.history.at(1)),
        "diff": ("read", lambda c: c.s.history.diff(1)),
        "blame": ("read", lambda c: c.s.history.blame("n")),
        "bisect": ("read", lambda c: c.s.history.bisect(lambda state: True)),
        "checkpoints": ("read", lambda c: c.s.history.checkpoints()),
        "restore": ("write", lambda c: c.s.history.restore(_ref(c))),
        "unpin": ("write", lambda c: c.s.history.unpin(_ref(c))),
        "retention": ("write", lambda c: c.s.history.retention(events=5)),
        "lineage": ("read", lambda c: c.s.history.lineage()),
    },
    "SessionLifecycle": {
        "set_timeouts": (
            "lifecycle",
            lambda c: c.s.lifecycle.set_timeouts(limpet.Timeouts(idle=HOUR)),
        ),
        "set_timeouts expiry": (
            "erase",
            lambda c: c.s.lifecycle.set_timeouts(limpet.Timeouts(expiry=HOUR)),
        ),
        "renew": ("write", lambda c: c.s.lifecycle.renew(idle=HOUR)),
        "set_timer": ("write", lambda c: c.s.lifecycle.set_timer("t", HOUR)),
        "clear_timer": ("write", lambda c: c.s.lifecycle.clear_timer("t")),
        "set_priority": ("write", lambda c: c.s.lifecycle.set_priority(1)),
    },
    "SessionTools": {
        "bind": ("tool", lambda c: c.s.tools.bind(limpet.ToolRegistry())),
    },
    "SessionRuns": {
        "wakes": ("inspect", lambda c: c.s.runs.wakes()),
        "activations": ("inspect", lambda c: c.s.runs.activations()),
        "trace": ("inspect", traced),
        "children": ("read", lambda c: c.s.runs.children()),
        "tree": ("read", lambda c: c.s.runs.tree()),
        "grant": ("policy", lambda c: c.s.runs.grant(limpet.Budget(tokens=5))),
    },
    "SessionBlobs": {
        "put": ("write", lambda c: c.s.blobs.put(b"x")),
        "get": ("read", lambda c: c.s.blobs.get("0" * 64)),
        "stream": ("read", lambda c: first(c.s.blobs.stream("0" * 64))),
    },
    "SessionOutcome": {
        "define": ("write", lambda c: c.s.outcome.define("done")),
        "grade": ("read", lambda c: c.s.outcome.grade()),
        "evaluate": ("write", lambda c: c.s.outcome.evaluate()),
        "history": ("read", lambda c: c.s.outcome.history()),
    },
    "SessionSetup": {
        "attach": ("policy", lambda c: c.s.setup.attach(resources=[])),
        "compare": ("inspect", lambda c: c.s.setup.compare()),
    },
    "WorkingMemory": {},
    "Layer": {
        name: row for layer in ("session", "episodic") for name, row in memory_verbs(layer).items()
    },
    "Buffer": {
        "read": ("read", lambda c: c.s.memory.session_state.read()),
        "write": ("write", lambda c: c.s.memory.session_state.write("x")),
        "append": ("write", lambda c: c.s.memory.session_state.append("x")),
        "history": ("read", lambda c: c.s.memory.session_state.history()),
    },
    "Memory": {},
    "Documents": {
        "put": ("write", lambda c: documents(c).put(c.key.id, {"a": 1})),
        "get": ("read", lambda c: documents(c).get(c.key.id)),
        "find": ("read", lambda c: documents(c).find(c.key.id)),
        "list": ("read", lambda c: documents(c).list()),
        "each": ("read", lambda c: first(documents(c).each())),
        "history": ("read", lambda c: documents(c).history(c.key.id)),
        "recorded": ("read", lambda c: documents(c).recorded(c.key.id)),
        # Everybody may ask, and sees the documents that it may read: test_access.
        "changes": ("anybody", lambda c: _changes(c)),
        "delete": ("write", lambda c: documents(c).delete(c.key.id)),
        "purge": ("write", lambda c: documents(c).purge(c.key.id)),
        "put whole store": ("store", lambda c: c.lp.agents.put("support", {"a": 1})),
        "get whole store": ("store read", lambda c: c.lp.agents.find("support")),
        "list whole store": ("store read", lambda c: c.lp.agents.list()),
    },
    "Vaults": {},
    "CommitBuilder": {
        "append": ("write", lambda c: committed(c, lambda b: b.append(c.s, "note.made"))),
        "create": ("create", lambda c: committed(c, lambda b: b.create(*parts(c), "new"))),
        "record": (
            "write",
            lambda c: committed(c, lambda b: b.record(c.s, facts.labeled({"a": "b"}))),
        ),
        "put": ("write", lambda c: committed(c, lambda b: b.put(documents(c), c.key.id, {}))),
        "expect": ("write", lambda c: committed(c, lambda b: _expecting(c, b))),
        "guard": ("write", lambda c: committed(c, lambda b: _guarding(c, b))),
    },
    "App": {
        "create": ("create", lambda c: c.lp.app(c.key.app).create(c.key.user, "new")),
        "get": ("read", lambda c: c.lp.app(c.key.app).get(c.key.user, c.key.id)),
        "find": ("read", lambda c: c.lp.app(c.key.app).find(c.key.user, c.key.id)),
        "get_or_create": (
            "read",
            lambda c: c.lp.app(c.key.app).get_or_create(c.key.user, c.key.id),
        ),
        "list": ("inspect", lambda c: c.lp.app(c.key.app).list(user=c.key.user)),
        "watch": ("app read", lambda c: first(c.lp.app(c.key.app).watch())),
        "claim": ("app claim", lambda c: c.lp.app(c.key.app).claim("w")),
    },
    "StoreWork": {
        "claim": ("app claim", lambda c: c.lp.work.claim("w", app=c.key.app)),
        "lock": ("claim", lambda c: c.lp.work.lock(c.key, worker="w")),
        "renew": ("claim", lambda c: lock_and(c, c.lp.work.renew)),
        "release": ("claim", lambda c: lock_and(c, c.lp.work.release)),
        "dead_letters": ("app inspect", lambda c: c.lp.work.dead_letters(app=c.key.app)),
        "requeue": ("read", lambda c: c.lp.work.requeue(c.key)),
    },
    "StoreMaintenance": {
        "verify": ("inspect", lambda c: c.lp.maintenance.verify(c.key)),
        "verify all": ("store", lambda c: c.lp.maintenance.verify()),
        "doctor": ("store", lambda c: c.lp.maintenance.doctor()),
        "backup": ("store", lambda c: c.lp.maintenance.backup(c.path / "copy.db")),
        "compact": ("write", lambda c: c.lp.maintenance.compact(c.key)),
        "mirror": ("move", lambda c: c.lp.maintenance.mirror(c.path / "files", c.key)),
        "mirror all": ("store", lambda c: c.lp.maintenance.mirror(c.path / "files")),
        "on_metric": ("store", lambda c: _now(lambda: c.lp.maintenance.on_metric(print))),
    },
    "StoreKeys": {
        "status": ("store", lambda c: c.lp.keys.status()),
        "rotate": ("store", lambda c: c.lp.keys.rotate()),
        "renew": ("store", lambda c: c.lp.keys.renew(c.key)),
        "anchor": ("store", lambda c: c.lp.keys.anchor()),
        "compare": ("store", lambda c: c.lp.keys.compare(None)),  # type: ignore[arg-type]
    },
    "StorePolicies": {
        "lifecycle": ("app policy", lambda c: _now(lambda: c.lp.policies.lifecycle(c.key.app))),
        "checkpointing": (
            "app policy",
            lambda c: c.lp.policies.checkpointing(c.key.app, limpet.CheckpointPolicy()),
        ),
        "arrivals": ("app policy", lambda c: c.lp.policies.arrivals(c.key.app, sessions=9)),
        "retention": ("app policy", lambda c: c.lp.policies.retention(c.key.app, events=1_000)),
        "switch_tool": (
            "app policy",
            lambda c: c.lp.policies.switch_tool(c.key.app, "search", limpet.ToolSwitch(open=True)),
        ),
        "fresh_evidence": (
            "app policy",
            lambda c: c.lp.policies.fresh_evidence(c.key.app, 60),
        ),
        "longer_idle": (
            "app policy",
            lambda c: c.lp.policies.longer_idle(c.key.app, timedelta(hours=1)),
        ),
        "switches": ("app read", lambda c: c.lp.policies.switches(c.key.app)),
        "checkpointing_of": ("app read", lambda c: c.lp.policies.checkpointing_of(c.key.app)),
        "retention_of": ("app read", lambda c: c.lp.policies.retention_of(c.key.app)),
        "gates": ("store", lambda c: c.lp.policies.gates("agent", limpet.Gates())),
        "gates_of": ("store read", lambda c: c.lp.policies.gates_of("agent")),
        "promotion": (
            "store",
            lambda c: c.lp.policies.promotion("org:acme", limpet.PromotionGates()),
        ),
    },
    "Limpet": {
        "create": ("create", lambda c: c.lp.create(*parts(c))),
        "get": ("read", lambda c: c.lp.get(c.key)),
        "get missing": ("read", lambda c: c.lp.get(*parts(c), "missing")),
        "get archived": ("read", lambda c: c.lp.get(c.key, archived=True)),
        "find": ("read", lambda c: c.lp.find(c.key)),
        "get_or_create": ("read", lambda c: c.lp.get_or_create(*parts(c), c.key.id)),
        "get_many": ("read", lambda c: c.lp.get_many([c.key])),
        "list": ("inspect", lambda c: c.lp.list(app=c.key.app, user=c.key.user)),
        "list states": ("read", lambda c: c.lp.list(app=c.key.app, user=c.key.user, state=True)),
        "each": ("inspect", lambda c: first(c.lp.each(app=c.key.app, user=c.key.user))),
        "inbox": ("read", lambda c: c.lp.inbox(c.key.app, user=c.key.user)),
        "status": ("app inspect", lambda c: c.lp.status(c.key.app)),
        "names": ("read", lambda c: c.lp.names(c.key.app, c.key.user)),
        "watch": ("read", lambda c: first(c.lp.watch(key=c.key))),
        "graph": ("read", lambda c: c.lp.graph(c.key)),
        "wake": ("claim", lambda c: c.lp.wake(c.key, harness)),
        "resume": ("lifecycle", lambda c: c.lp.resume(c.key)),
        "unarchive": ("lifecycle", lambda c: c.lp.unarchive(c.key)),
        "export": ("move", lambda c: c.lp.export(c.key, c.path / "bundle")),
        "copy": ("move", lambda c: _copied(c)),
        "move": ("move", lambda c: _moved(c)),
        "prestage": ("move", lambda c: _prestaged(c)),
        "drain": ("app policy", lambda c: _drained(c)),
        "reclaim": (
            "app policy",
            lambda c: c.lp.reclaim(c.key, target_is_lost="x", epoch=1, reason="lost"),
        ),
        "home": ("inspect", lambda c: c.lp.home(c.key)),
        "delete": ("erase", lambda c: c.lp.delete(c.key)),
        "delete missing": ("erase", lambda c: c.lp.delete(*parts(c), "missing")),
        "erase": ("erase", lambda c: c.lp.erase(c.key)),
        "erase_user": ("erase", lambda c: c.lp.erase_user(c.key.app, c.key.user)),
        "audit": ("app audit", lambda c: c.lp.audit(app=c.key.app)),
        "export_audit": (
            "app audit",
            lambda c: c.lp.export_audit(c.path / "audit.jsonl", app=c.key.app),
        ),
        "learnings": ("agents", lambda c: c.lp.learnings("main")),
        "promote": ("store", lambda c: c.lp.promote("main", _learning())),
        "memory_of": ("store read", lambda c: c.lp.memory_of("main")),
        "spawn": ("create", lambda c: c.lp.spawn(c.key, task="look")),
        "wait_for_children": ("read", lambda c: c.lp.wait_for_children(c.key, 0)),
        "propose": (
            "write",
            lambda c: c.lp.propose("x", provenance=c.key, confidence=1, to="org:acme"),
        ),
        "proposals": ("anybody", lambda c: c.lp.proposals()),  # those that it may read
        "decide": ("anybody", lambda c: c.lp.decide("x", accept=True, reason="x")),  # the same
        "recall": ("store read", lambda c: c.lp.recall("org:acme")),
        "withdraw": ("erase", lambda c: c.lp.withdraw(c.key)),
        "position": ("anybody", lambda c: c.lp.position()),
        "flush": ("anybody", lambda c: c.lp.flush()),
    },
}
# Verbs that ask no store: they answer from what the object knows, or hand out another object whose
# verbs are checked. And those that have a test of their own below or elsewhere.
LOCAL: dict[str, str] = {
    "Session": "envelope apply checksum",
    "SessionTools": "lock",
    "SessionOutcome": "unmet",
    "SessionSetup": "check_permission environment permissions resources vaults",
    "WorkingMemory": "get list put reset search",
    "Memory": "buffers layer",
    "Documents": "check key shown",
    "Vaults": "changes check delete each find get history key list purge put recorded shown",
    "CommitBuilder": "apply release",
    "App": "session",
    "StoreWork": "sweep",
    "StoreMaintenance": "migrate",
    "Tokens": "check issue revoke rotate",  # by acceptance/test_tokens
    "Limpet": "acting_as app close commit documents import_ now session",
}


def parts(case: Case) -> tuple[str, str]:
    return case.key.app, case.key.user


async def _now(call: Callable[[], Any]) -> Any:
    return call()


async def _changes(case: Case) -> None:
    await documents(case).changes(await case.lp.position())


async def _partial(case: Case) -> None:
    """Of a session that was met: nothing is awaited to decide about a partial."""
    await case.s.runs.wakes()
    await case.s.append("note.made", {"n": 1}, partial=True)


def _expecting(case: Case, b: Any) -> None:
    b.append(case.s, "note.made")
    b.expect(case.s, 1)


def _guarding(case: Case, b: Any) -> None:
    b.append(case.s, "note.made")
    b.guard(case.s, "n", 1)


async def _copied(case: Case) -> None:
    async with limpet.open("memory://") as other:
        await case.lp.copy(case.key, to=other)


async def _moved(case: Case) -> None:
    async with limpet.open("memory://") as other:
        assert (await case.lp.move(case.key, other)).success


async def _prestaged(case: Case) -> None:
    async with limpet.open("memory://") as other:
        await case.lp.prestage(case.key, other)


async def _drained(case: Case) -> None:
    async with limpet.open("memory://") as other:
        await case.lp.drain(other, app=case.key.app, deadline=0.1)


def _ref(case: Case) -> Any:
    return limpet.CheckpointRef(case.key, 1, 1, "0" * 64)


def _learning() -> Any:
    from limpet.session.runs.learnings import learning_of

    return learning_of("lesson", "a lesson")


def test_every_public_verb_stands_in_the_matrix() -> None:
    """A verb that is new must be given its action here."""
    for of in Facade._stands_for:
        methods = [n for n in public(of) if callable(inspect.getattr_static(of, n))]
        known = {name.partition(" ")[0] for name in VERBS.get(of.__name__, {})}
        known |= set(LOCAL.get(of.__name__, "").split())
        assert set(methods) == known, of.__name__


@pytest.fixture
def store_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_store_url"))
    return "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'store.db'}"


def cases() -> Iterator[tuple[str, str, Call]]:
    for of, verbs in VERBS.items():
        for name, (action, call) in verbs.items():
            yield f"{of}.{name}", action, call


@pytest.mark.asyncio
@pytest.mark.parametrize("role", PRINCIPALS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
async def test_a_verb_is_allowed_or_denied_by_role_and_place(
    kind: str, role: str, tmp_path: Path, store_url: str
) -> None:
    """The answer is that of the table, whatever the verb; a denial changes nothing."""
    PATIENCE["seconds"] = 5.0 if kind == "postgresql" else 0.2
    every = [*enumerate(cases())]
    # Memory looks through all its sessions, so there each verb has a store of its own.
    groups = [[one] for one in every] if kind == "memory" else [every]
    wrong: list[str] = []
    for group in groups:
        async with limpet.open(store_url) as lp:
            for number, (name, action, call) in group:
                for place, owner in places(kind, number):
                    may = expected(action, role, place)
                    if may and kind != "memory" and action in ("erase", "move", "store"):
                        continue  # slow there; the decision is the same
                    key = Key(*owner, f"{number}-{place}")
                    fault = await fault_of(lp, role, key, call, tmp_path / key.id, may=may)
                    wrong += [f"{name} {place}: {fault}"] if fault else []
    assert wrong == [], "\n".join(wrong)


HIDDEN = "nobody else knows 4711"
CRITIC = Principal("agent:critic", role="agent", app="support", user="ada")
READS_DRAFT = limpet.Isolation(
    "per_agent", agents={"agent:critic": limpet.FieldAccess(owns=("n",), reads=("draft",))}
)


@pytest.mark.parametrize("who", ["critic", "owner"])
@pytest.mark.asyncio
async def test_no_verb_shows_a_field_that_is_hidden(who: str, tmp_path: Path) -> None:
    """Neither in its answer or error, nor in what its session knows then, nor in a file."""
    principal = {"critic": CRITIC, "owner": PRINCIPALS["owner"]}[who]
    showing: set[str] = set()
    for number, (name, _, call) in enumerate(cases()):
        async with limpet.open("memory://") as lp:
            path, keys = tmp_path / str(number), [Key("support", "ada", id) for id in ("a", "b")]
            path.mkdir()
            for key in keys:
                await hide(lp, key)
            acting = lp.acting_as(principal)
            case = Case(acting, acting.session(keys[0]), acting.session(keys[1]), path)
            try:
                answer = call(case)
                answer = await answer if inspect.isawaitable(answer) else answer
            except (LimpetError, TypeError, AttributeError) as error:
                answer = [str(error), getattr(error, "fields", None)]
            files = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
            if HIDDEN in shown((answer, case.s, files)):
                showing.add(name)
    if who == "critic":
        assert showing == set()
    else:  # who looks finds
        assert {"Session.read", "SessionHistory.blame", "Limpet.watch"} <= showing


async def hide(lp: Limpet, key: Key) -> None:
    """A session with a hidden field that was given by an input, and then changed."""
    state = {"n": 0, "draft": "d", "secret": HIDDEN}
    s = await lp.create(
        key.app, key.user, key.id, state=state, isolation=READS_DRAFT, actor="user:ada"
    )
    said = {"text": HIDDEN, "x": 1}
    await s.append("user.message", said, set={"secret": HIDDEN}, actor="user:ada", id="one")
    await s.append("note.made", {}, actor="user:ada", set={"secret": {"a": HIDDEN}, "n": 1})
    await s.outcome.define("done", actor="user:ada")
    await s.checkpoint(actor="user:ada")


def shown(answer: Any) -> str:
    """All that an answer says, whatever it is made of."""
    if isinstance(answer, Session):
        try:
            known = answer.values, answer.events, answer.head, answer.blocked_on
        except LimpetError as error:
            return str(error)
        return repr(known) + answer.envelope().decode()
    if isinstance(answer, (list, tuple)):
        return repr(answer) + "".join(map(shown, answer))
    return repr(answer)


async def fault_of(
    lp: Limpet, role: str, key: Key, call: Call, path: Path, *, may: bool
) -> str | None:
    """Try a verb on a new session; return how the answer differs from the table."""
    other = Key(key.app, key.user, f"{key.id}-other")
    before = await begin(lp, key, other)
    if call is traced:
        assert (await lp.wake(key, quiet)).ran
        before = (await lp.get(key)).version
    path.mkdir()
    acting = lp.acting_as(PRINCIPALS[role])
    answer = await outcome(call, Case(acting, acting.session(key), acting.session(other), path))
    if answer != ("allowed" if may else "denied"):
        return f"{answer}, not {may=}"
    if not may and (await lp.get(key)).version != before:
        return "denied, and recorded something"
    if not may and list(path.iterdir()):
        return "denied, and left a file"
    return None


def places(kind: str, number: int) -> list[tuple[str, tuple[str, str]]]:
    """Where a verb is tried: everywhere in memory; elsewhere at one place in turn, unless there is
    time."""
    every = [*PLACES.items()]
    return every if kind == "memory" else tries([every[number % len(every)]], every)


async def begin(lp: Limpet, *keys: Key) -> int:
    """Two sessions with an outcome, a buffer and a document; the version of the first."""
    for key in keys:
        session = await lp.create(key.app, key.user, key.id, state={"n": 0})
        await session.append("note.made", {}, actor="user:x", set={"n": 1})
    first = lp.session(keys[0])
    await first.outcome.define("done")
    await first.memory.session_state.write("x")
    notes = lp.documents("notes", owner=(keys[0].app, keys[0].user), actor="user:x")
    await notes.put(keys[0].id, {})
    return (await first.refresh()).version


async def outcome(call: Call, case: Case) -> str:
    """Denied, or allowed: what else may have been wrong is not the guard's."""
    try:
        await call(case)
    except (AccessDenied, CrossSessionAccessDenied):
        return "denied"
    except FlushFailed as error:
        denied = all(isinstance(each.error, AccessDenied) for each in error.unrecorded)
        return "denied" if denied else "allowed"
    except (LimpetError, TypeError, AttributeError) as error:
        return "allowed" if isinstance(error, LimpetError) else f"{error!r}"
    return "allowed"
