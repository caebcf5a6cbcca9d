"""The guard and the guarded store: what is decided once, and what is never passed through."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Key, Principal
from limpet.errors import AccessDenied, SessionDeleted, SessionNotFound
from limpet.model import EMPTY, Commit, Event, FrozenDict, blank
from limpet.model.keys import owned_by, owner_of
from limpet.model.ops import Op, Set
from limpet.security.access import ALLOWED, Decision, Resource
from limpet.security.guard import Deciders, Guard
from limpet.security.guarded_store import (
    ABILITIES,
    ROOMS,
    Clearance,
    GuardedStore,
    _BlobsBehindGuard,
    _GuardedChannel,
    _MarksBehindGuard,
    access_of,
    guarded,
    session_id_in,
)
from limpet.security.isolation import IsolationRules
from limpet.security.roles import AUDIT_APPS, RoleRules
from limpet.security.view import FieldView
from limpet.store import blobs, leases, marks, overview, protocol
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed

ROOT = Path(__file__).parents[3] / "src/limpet"
APP_AGENT = Principal("agent:main", role="agent", app="support")
ADA = Principal("user:ada", role="owner", app="support", user="ada")
KEY = Key("support", "ada", "c1")


def members(of: type[Any]) -> set[str]:
    """The names that a protocol declares itself."""
    return {name for name in vars(of) if not name.startswith("_") and name != "Protocol"}


# --- nothing is passed through -------------------------------------------------------------------


def test_every_method_of_a_store_is_guarded() -> None:
    """A protocol of the stores with a method that the guarded store has not fails here."""
    assert members(protocol.Store) <= members(GuardedStore)
    for ability, guards in ABILITIES.items():
        assert members(ability) <= members(guards), ability.__name__
    assert members(protocol.Channel) <= members(_GuardedChannel)
    assert members(blobs.Blobs) <= members(_BlobsBehindGuard)
    assert members(marks.Marks) <= members(_MarksBehindGuard)


def test_every_optional_protocol_of_a_store_is_known() -> None:
    """One that is new must be given its place among the abilities."""
    found = {
        of
        for module in (protocol, leases, overview, blobs, marks)
        for of in vars(module).values()
        if inspect.isclass(of)
        and getattr(of, "_is_runtime_protocol", False)
        and of.__module__ == module.__name__
    }
    # Three of them in one; who acts on a store elsewhere, which a guard says itself; and files
    # beside a store, which are written for nobody in particular.
    left = {leases.LeaseStore, protocol.ActsAs, protocol.Travels}
    left |= {protocol.CompactsLog, protocol.KeepsMirror}
    # Verbs that a server performs, each behind the guard of its principal; and what a guard itself
    # asks the store, and shows to nobody.
    left |= {protocol.Performs, protocol.UidIndex}
    assert found - left <= set(ABILITIES)


def test_what_is_not_guarded_is_not_there() -> None:
    """No attribute of the store behind is reached by its name."""
    store = MemoryStore()
    behind = guarded(store, Guard(ADA, Deciders()))
    assert not hasattr(GuardedStore, "__getattr__")
    assert not hasattr(behind, "backup")
    for name in dir(store):
        if not name.startswith("_") and hasattr(behind, name):
            assert any(name in vars(of) for of in type(behind).__mro__), name


# The modules that do something without the guard, for a verb that was allowed. Each asks the guard
# first; another module is added here on purpose.
SYSTEM = {
    "runtime/children.py",
    "session/acting.py",
    "session/citations.py",
    "session/life/archive.py",
    "session/life/transitions.py",
    "session/erasure.py",
    "session/history/checkpoints.py",
    "session/history/history.py",
    "session/limpet.py",
    "session/move/arrivals.py",
    "session/move/routes.py",
    "session/services.py",
    "session/runs/promotion.py",
    "session/served_verbs.py",
    "session/sharing.py",
    "session/writer.py",
}


def test_what_the_system_does_without_the_guard_is_in_named_modules() -> None:
    """`Services.system` is the only way around a guard."""
    around: set[str] = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if ".system" not in text and ".whole" not in text:
            continue  # to parse the whole package takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in ("system", "whole"):
                of = node.value
                named = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
                if named in ("services", "_services"):
                    around.add(str(path.relative_to(ROOT)))
    assert around <= SYSTEM


# --- each method by itself -----------------------------------------------------------------------

BOBS = Key("support", "bob", "c1")
BOB_LEASE = limpet.Lease(BOBS, "w", 1, 2, uid="u", claimed_us=1)
QUERY = protocol.Query(app="support", user="bob")
# A call of each method about another user's session, or about the whole store.
DIRECT: dict[str, Any] = {
    "commit": lambda s: s.commit([Commit(BOBS, (), uid="u")]),
    "load": lambda s: s.load(BOBS, tail=0),
    "load_many": lambda s: s.load_many([BOBS], tail=0),
    "fold_at": lambda s: s.fold_at(BOBS, 1),
    "read": lambda s: s.read(BOBS, after=0, limit=1, reverse=False, types=None),
    "read_ids": lambda s: s.read_ids(BOBS, ["a"]),
    "rung": lambda s: s.rung(BOBS, 1),
    "naming": lambda s: s.naming(BOBS, "n", before=9, after=0, limit=1),
    "names_since": lambda s: s.names_since(BOBS, 1, ["app:n"]),
    "pending_inputs": lambda s: s.pending_inputs(BOBS, limit=1),
    "heads": lambda s: s.heads(QUERY, cursor=None, limit=1),
    "delete": lambda s: s.delete(BOBS),
    "exchange": lambda s: s.exchange([protocol.Exchange(BOBS, None)]),
    "unpin": lambda s: s.unpin(BOBS, [1]),
    "forks": lambda s: s.forks(BOBS),
    "erase": lambda s: s.erase(BOBS),
    "erase_user": lambda s: s.erase_user("support", "bob"),
    "verify": lambda s: s.verify(BOBS),
    "changes": lambda s: s.changes(None, app=None, key=BOBS, limit=1),
    "head": lambda s: s.head(BOBS),
    "records": lambda s: s.records(BOBS, after=0, limit=1),
    "base": lambda s: s.base(BOBS),
    "owners": lambda s: s.owners("support", after=None, limit=1),
    "names_of": lambda s: s.names_of("support", "bob"),
    "compact": lambda s: s.compact(BOBS, upto=1),
    "backup": lambda s: s.backup(Path("never")),
    "examine": lambda s: s.examine(),
    "probe": lambda s: s.probe(),
    "ring": lambda s: s.ring(),
    "bind_ring": lambda s: s.bind_ring("r"),
    "accept_head": lambda s: s.accept_head(BOBS),
    "claim": lambda s: s.claim("w", limit=1, lease_seconds=1, app="support"),
    "renew": lambda s: s.renew([BOB_LEASE], 1),
    "release": lambda s: s.release(BOB_LEASE),
    "acquire": lambda s: s.acquire(BOBS, "w", 1),
    "waiting": lambda s: s.waiting(overview.WaitingQuery(app="support", user="bob"), limit=1),
    "tally": lambda s: s.tally("billing", limit=1),
    "blobs.put_chunk": lambda s: s.blobs.put_chunk(BOBS, "u", 0, b""),
    "blobs.finish": lambda s: s.blobs.finish(BOBS, "u", blobs.Blob("0", 0, "", 1), b""),
    "blobs.drop": lambda s: s.blobs.drop(BOBS, "u"),
    "blobs.find": lambda s: s.blobs.find(BOBS, "0"),
    "blobs.chunk": lambda s: s.blobs.chunk(BOBS, "0", 0),
    "blobs.page": lambda s: s.blobs.page(BOBS, after="", limit=1),
    "blobs.keys": lambda s: s.blobs.keys("support", after=None, limit=1),
    "marks.once": lambda s: s.marks.once("a", "b", 1),
    "marks.put": lambda s: s.marks.put("a", "b", 1),
    "marks.add": lambda s: s.marks.add("a", "b", 1),
    "marks.get": lambda s: s.marks.get("a", "b"),
    "marks.sweep": lambda s: s.marks.sweep(1),
}
# What tells nothing about a session, or is filtered: tests/acceptance/test_access.py.
FILTERED = {
    *(
        "now_us",
        "identity",
        "pulse",
        "close",
        "touched",
        "position",
        "listen",
        "channel",
        "expired",
    ),
    *("blobs", "marks"),
}


class Unasked:
    """A store with every ability that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        if name in ("blobs", "marks"):
            return self
        if name in ("commit", "load"):  # kept, or read to see who is let in: see `_admitted`
            return self._missing
        raise AssertionError(f"{name} was asked")

    async def _missing(self, *_: Any, **__: Any) -> Any:
        raise SessionNotFound(BOBS)


def test_every_method_is_called_by_itself() -> None:
    """A method that is new is tried here, or named among those that are filtered."""
    names = members(protocol.Store).union(*map(members, ABILITIES))
    names |= {f"blobs.{name}" for name in members(blobs.Blobs)}
    names |= {f"marks.{name}" for name in members(marks.Marks)}
    assert names == set(DIRECT) | FILTERED


@pytest.mark.parametrize("name", DIRECT)
async def test_a_method_refuses_what_is_anothers_before_the_store_is_asked(name: str) -> None:
    """Each asks the guard itself, whoever calls it."""
    parts = tuple(ABILITIES.values())
    everything: Any = type("Everything", parts, {})
    store = everything(Unasked(), Guard(ADA, Deciders()))
    store._reads_heads = False
    with pytest.raises(AccessDenied):
        await DIRECT[name](store)


# --- decisions -----------------------------------------------------------------------------------


class Counting(RoleRules):
    """Roles that count how often they are asked, and may be changed."""

    def __init__(self) -> None:
        self.revision = 0
        self.asked = 0
        self.denies = False

    def decide(
        self, principal: Principal, action: Any, resource: Resource, address: str | None = None
    ) -> Decision:
        self.asked += 1
        return Decision(False, "policy_denied", "changed") if self.denies else ALLOWED


async def test_a_decision_is_made_once_until_the_rules_change() -> None:
    """Answers are remembered by what they depend on."""
    rules = Counting()
    guard = Guard(ADA, [rules])
    for id in ("c1", "c2", "c3"):
        await guard.check("read", Resource("session", "support", "ada", id))
    assert rules.asked == 1
    rules.denies, rules.revision = True, 1
    with pytest.raises(AccessDenied) as caught:
        await guard.check("read", Resource("session", "support", "ada", "c1"))
    assert (caught.value.denial, caught.value.policy) == ("policy_denied", "changed")


@pytest.mark.parametrize(
    ("app", "name", "session"),
    [
        ("$$memory", "session/2/c1/likes", "c1"),
        ("$$memory", "own/2/c1/likes", "c1"),
        ("$$memory", "episodic/2/c1/likes", None),
        ("$$memory", "session/other", None),
        ("$$memory", "session/sha256/ab/likes", "sha256/ab"),
        ("$$proposals", "2/c1/p1", "c1"),
        ("$$checkpoints", "c1", "c1"),
        ("$notes", "session/2/c1/likes", None),
    ],
)
def test_a_log_of_the_system_names_its_session(app: str, name: str, session: str | None) -> None:
    """Of documents of users, and of what sessions share, there is none."""
    assert session_id_in(Key(app, "7/support/ada", name)) == session


def test_a_clearance_shows_at_once_what_hides_nothing_but_fields() -> None:
    """Texts of events, shared names and events that name a hidden field are looked at closely."""
    head = blank(KEY, "u1", 1)
    clearance = Clearance((), head, FieldView(frozenset({"draft"})))
    names = FrozenDict({"draft": 1, "pin": 2})

    def answer(*ops: Op, type: str = "note.made", **beside: Any) -> Committed:
        event = Event(1, "e1", type, "agent:critic", 1, EMPTY, ops)
        given = {"scopes": EMPTY, **beside}
        return Committed((event,), head, names, names, **given)

    shown = clearance.of(answer(Set(("draft",), 1)))
    assert shown is not None
    assert (shown.fields, shown.versions) == ({"draft": 1}, {"draft": 1})
    for closer in (
        answer(Set(("pin",), 1)),
        answer(type="session.rewound"),
        answer(scopes=FrozenDict({"app:x": 1})),
        answer(texts=FrozenDict({1: EMPTY})),  # type: ignore[dict-item]  # by seq
    ):
        assert clearance.of(closer) is None
    whole = answer(Set(("pin",), 1))
    assert Clearance((), head, None).of(whole) is whole


async def test_an_answer_about_an_app_is_not_remembered_of_its_audit() -> None:
    """The audit alone writes it: an admin who wrote other things of the app before does not."""
    guard = Guard(Principal("key:1", role="admin", app="support"), [RoleRules()])
    for other in (None, "app:greeting"):
        await guard.check("write", Resource("app", "support", name=other))
    for name in AUDIT_APPS:
        with pytest.raises(AccessDenied):
            await guard.check("write", Resource("app", "support", name=name))
        await guard.check("audit", Resource("app", "support", name=name))


async def test_what_was_allowed_before_is_refused_once_the_rules_change() -> None:
    """Loads and appends that come again are decided again after a change."""
    async with limpet.open("memory://") as lp:
        rules = Counting()
        acting = lp.acting_as(ADA)
        acting._services.access.add(rules)
        s = await acting.create(*_parts(KEY))
        for _ in range(3):
            await s.append("note.made", set={"n": 1})
            await acting.get(KEY)
        rules.denies, rules.revision = True, 1
        for verb in (lambda: s.append("note.made", set={"n": 2}), lambda: acting.get(KEY), s.read):
            with pytest.raises(AccessDenied):
                await verb()
        assert (await lp.get(KEY)).version == 4


TAKEN: dict[str, Any] = {
    "get": lambda lp, known: lp.get(KEY),
    "read": lambda lp, known: lp.session(KEY).read(),
    "pending": lambda lp, known: lp.session(KEY).pending(),
    "append": lambda lp, known: lp.session(KEY).append("note.made", set={"draft": 2}),
    "append as known": lambda lp, known: known.append("note.made", set={"draft": 3}),
}


@pytest.mark.parametrize("verb", TAKEN)
async def test_a_session_that_took_the_key_is_decided_anew(verb: str) -> None:
    """What was known of a deleted session does not open the one that has its key now."""
    agent = Principal("agent:main", role="agent", app="support")
    async with limpet.open("memory://") as lp:
        acting = lp.acting_as(agent)
        await lp.create(*_parts(KEY), state={"secret": "old"})
        known = await acting.get(KEY)
        await acting.session(KEY).append("note.made", set={"draft": 1})
        await lp.delete(KEY)
        kept = limpet.Isolation("per_agent", agents={"agent:other": limpet.FieldAccess()})
        await lp.create(*_parts(KEY), state={"secret": "x"}, isolation=kept, reuse_deleted=True)
        with pytest.raises((AccessDenied, SessionDeleted)):
            await TAKEN[verb](acting, known)
        assert (await lp.get(KEY)).version == 1


def _parts(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id


# --- what a key stands for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "user"), [("support", "ada"), ("a/b", "c"), ("a", "b/c"), ("7", "7/x"), ("ä", "ö")]
)
def test_the_owner_of_documents_is_read_back(app: str, user: str) -> None:
    """`owned_by` is the inverse of `owner_of`, and knows what is not one."""
    assert owned_by(owner_of(app, user)) == (app, user)
    assert owned_by(owner_of(app, "u" * 500)) is None


@pytest.mark.parametrize("owner", ["*", "ada", "7/support", "x/support/ada", "-1/a/b", "9/a/b", ""])
def test_what_is_no_owner_is_none(owner: str) -> None:
    """Nobody becomes an owner by the form of a name."""
    assert owned_by(owner) is None


def test_a_room_that_is_not_named_belongs_to_the_store() -> None:
    """A log of the system that has no rule here is for nobody but an admin of everything."""
    unknown = access_of(Key("$$something", owner_of("support", "ada"), "x"))
    assert (unknown.resource.kind, unknown.read, unknown.write) == ("store", "policy", "policy")
    assert all(name.startswith("$$") for name in ROOMS)


@pytest.mark.parametrize("role", ["owner", "admin", "viewer"])
async def test_only_an_agent_of_an_app_writes_as_its_agents(role: Any) -> None:
    """Others that act for every user write as themselves."""
    for who, may in ((Principal("x:1", role=role, app="support"), False), (APP_AGENT, True)):
        guard = Guard(who, Deciders())
        assert (guard.may_write_as("agent:other"), guard.may_write_as("system:x")) == (may, may)
        assert guard.may_write_as(who.id)
        assert not guard.may_write_as("user:ada")


async def test_what_records_nothing_adds_no_commits() -> None:
    """Of a store whose server has its own audit."""
    from limpet.security.guard import NoAudit

    assert await NoAudit().commits(ADA, ()) == ()


@pytest.mark.parametrize(
    ("principal", "seen"),
    [
        (Principal("user:root", role="admin"), True),
        (Principal("user:root", role="admin", app="support"), True),
        (Principal("user:root", role="admin", app="support", user="ada"), False),
        (Principal("user:eye", role="auditor"), True),
        (Principal("agent:a", role="agent", app="support"), False),
    ],
)
def test_only_who_sees_every_session_is_told_their_number_by_an_index(
    principal: Principal, seen: bool
) -> None:
    """Isolation hides sessions from agents and from users, and any other decider may hide some."""
    assert Guard(principal, [RoleRules(), IsolationRules()]).lists_every_session is seen
    guard = Guard(principal, [RoleRules(), IsolationRules(), Counting()])
    assert not guard.lists_every_session
