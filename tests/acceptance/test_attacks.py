"""Attacks by a principal that speaks the store protocol itself, as a remote client can.

Whatever a commit holds, and however it is put together, it is decided by what it does: each test
is one way that a commit, or a verb over many sessions, could go around a rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from msgspec import structs

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Key, Limpet, Principal, State, access
from limpet.errors import InvalidEvent, SessionExists
from limpet.model import Commit, Draft, Event, Fact, FrozenDict
from limpet.model.facts.checkpoints import recorded
from limpet.model.facts.creation import created
from limpet.model.facts.running.children import child_created, child_ended, delegated
from limpet.model.facts.schema import migrated
from limpet.model.head import stub
from limpet.model.keys import hashed
from limpet.session.limpet import journal_of
from limpet.store.protocol import Exchange, Live, Partial, Query, Standing

AGENT = Principal("agent:main", role="agent", app="support", user="ada")
CRITIC = Principal("agent:critic", role="agent", app="support", user="ada")
OWNER = Principal("user:ada", role="owner", app="support", user="ada")
PER_AGENT = Isolation("per_agent", agents={"agent:critic": FieldAccess(owns=("draft",))})


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Limpet]:
    async with limpet.open(url) as lp:
        yield lp


stores = pytest.mark.parametrize("url", ["memory", "sqlite", "postgresql"], indirect=True)


async def denied(call: Any) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        await call
    return caught.value


# --- a session that begins again -----------------------------------------------------------------


@stores
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("who", [AGENT, CRITIC])
async def test_nobody_writes_to_a_session_by_beginning_it_again(
    opened: Limpet, who: Principal, first: bool
) -> None:
    """Else what isolation keeps would be decided as of a session that is not there yet."""
    s = await opened.create("support", "ada", "c1", state={"salary": 5}, isolation=PER_AGENT)
    journal = journal_of(opened.acting_as(who))
    change = journal.prepare(Draft(type="note.made", set={"salary": 6}), None)
    begin = journal.prepare(created(s.key), None)
    drafts = (begin, change) if first else (change, begin)
    assert (await denied(journal.commit([Commit(s.key, drafts)]))).action == "create"
    assert (await opened.get(s.key)).values == {"salary": 5}


@stores
async def test_a_log_has_one_beginning(opened: Limpet) -> None:
    """Not even one who may do everything gives a session another isolation later."""
    s = await opened.create("support", "ada", "c1", isolation=PER_AGENT)
    journal = journal_of(opened)
    begin = journal.prepare(created(s.key), "system")
    note = journal.prepare(Draft(type="note.made"), "system")
    with pytest.raises(SessionExists):
        await journal.commit([Commit(s.key, (begin,))])
    with pytest.raises(InvalidEvent, match="begins once"):
        await journal.commit([Commit(s.key, (note, begin))])
    assert (await opened.get(s.key)).isolation.model == "per_agent"


# --- what delegating lets in ---------------------------------------------------------------------


async def delegation(lp: Limpet, id: str = "parent", **more: Any) -> tuple[Any, list[Commit]]:
    """A journal of an agent, and commits by which it delegates to another app."""
    parent = await lp.create("support", "ada", id)
    journal = journal_of(lp.acting_as(AGENT))
    child = Key("billing", "ada", "kid")
    begin = journal.prepare(created(child), None)
    works = journal.prepare(delegated(parent.key, parent.head.uid, "t", 1), None)
    named = journal.prepare(child_created(child, begin.id, 1, "0" * 64, None), None)
    note = journal.prepare(Draft(type="note.made", **more), None)
    here = Commit(parent.key, (named,), uid=parent.head.uid)
    return journal, [here, Commit(child, (begin, works, note), 0)]


@stores
async def test_who_delegates_to_an_app_does_not_write_its_shared_names(opened: Limpet) -> None:
    """A child may be created in another app; what that app's sessions share is not the agent's."""
    for name in ("app:rate", "user:vip"):
        journal, commits = await delegation(opened, f"to {name}", set={name: 1})
        assert (await denied(journal.commit(commits))).resource.endswith(f"#{name}")
    assert await opened.names("billing", "ada") == {}
    journal, commits = await delegation(opened, set={"mine": 1})
    await journal.commit(commits)


async def test_a_child_is_no_way_to_conditions_and_states_of_another_app() -> None:
    """Kin is let in for what it says, not for what stands beside it in a commit."""
    async with limpet.open("memory://") as lp:
        journal, (here, there) = await delegation(lp)
        asking = Commit(there.key, there.drafts, 0, guards={"app:rate": 0})
        await denied(journal.commit([here, asking]))


async def test_a_policy_forbids_delegating_to_an_app(tmp_path: Path) -> None:
    """The user's policies are asked about a child as about every other session."""
    (tmp_path / "p.cedar").write_text(
        "permit(principal, action, resource);\n"
        '@id("no-billing") forbid(principal, action == Action::"create", resource in '
        'App::"billing");\n'
    )
    async with limpet.open("memory://", policies=tmp_path / "p.cedar") as lp:
        journal, commits = await delegation(lp)
        assert (await denied(journal.commit(commits))).policy == "no-billing"


async def test_what_a_child_tells_its_parent_changes_no_field_of_it() -> None:
    """A parent may be of a task that the child's agent is kept out of."""
    async with limpet.open("memory://") as lp:
        parent = await lp.create(
            "support", "ada", "p", state={"n": 0}, isolation=Isolation("per_task", task="other")
        )
        child = await lp.create("support", "ada", "kid")
        await child.record(delegated(parent.key, parent.head.uid, "t", 1), actor="system")
        await parent.record(
            child_created(child.key, child.head.uid, 1, "0" * 64, None), actor="system"
        )
        journal = journal_of(lp.acting_as(AGENT))
        end = child_ended(child.key, child.head.uid, "end_turn", summary=None, output=None)
        mine = Commit(child.key, (journal.prepare(Draft(type="note.made"), None),))
        forged = Draft(type="note.made", set={"n": 1})
        told = journal.prepare(end, None)
        both = (told, journal.prepare(forged, None))
        await denied(journal.commit([mine, Commit(parent.key, both, uid=parent.head.uid)]))
        changed = journal.prepare(structs.replace(end, set={"n": 1}), None)
        await denied(journal.commit([mine, Commit(parent.key, (changed,), uid=parent.head.uid)]))
        assert (await lp.get(parent.key)).values == {"n": 0}


# --- policies of fields --------------------------------------------------------------------------


async def test_who_may_not_write_a_field_does_not_change_who_may() -> None:
    """A migration carries the policies of its class: it does not lift one from below."""
    async with limpet.open("memory://") as lp:
        s = await lp.create("support", "ada", "c1", state={"salary": 1})
        policies = {"salary": {"write": ["owner"]}}
        await s.record(migrated(None, "1.0", field_policies=policies), actor="system")
        journal = journal_of(lp.acting_as(AGENT))
        fact = migrated("1.0", "1.1", field_policies={})
        draft = journal.prepare(fact, None)
        refused = await denied(journal.commit([Commit(s.key, (draft,))]))
        assert (refused.denial, refused.resource) == (
            "field_access_denied",
            "support/ada/c1#salary",
        )
        owner = journal_of(lp.acting_as(OWNER))
        await owner.commit([Commit(s.key, (owner.prepare(fact, None),))])


# --- verbs over many sessions --------------------------------------------------------------------


@stores
async def test_a_user_is_not_erased_with_a_session_that_may_not_be(opened: Limpet) -> None:
    """One who works on a task does not end those of another by erasing everything."""
    await opened.create("support", "ada", "c1", isolation=Isolation("per_task", task="a"))
    other = opened.acting_as(
        Principal("user:ada", role="owner", app="support", user="ada", task="b")
    )
    assert (await denied(other.erase_user("support", "ada"))).denial == "cross_task_access_denied"
    store: Any = journal_of(other).store
    await denied(store.erase_user("support", "ada"))
    assert (await opened.get("support", "ada", "c1")).version == 1


async def test_a_policy_that_keeps_a_session_keeps_it_from_erasing_its_user(tmp_path: Path) -> None:
    (tmp_path / "p.cedar").write_text(
        "permit(principal, action, resource);\n"
        '@id("gold-is-kept") forbid(principal, action == Action::"erase", resource is Session)\n'
        'when { resource.hasTag("plan") && resource.getTag("plan") == "gold" };\n'
    )
    async with limpet.open("memory://", policies=tmp_path / "p.cedar") as lp:
        await lp.create("support", "ada", "c1", labels={"plan": "gold"})
        acting = lp.acting_as(OWNER)
        assert (await denied(acting.erase_user("support", "ada"))).policy == "gold-is-kept"
        await denied(acting.erase("support", "ada", "c1"))


async def test_forks_and_exchanges_are_decided_by_isolation_too() -> None:
    """Not by the key alone."""
    async with limpet.open("memory://") as lp:
        s = await lp.create("support", "ada", "c1", isolation=Isolation("per_task", task="a"))
        plain = await lp.create("support", "ada", "c2")
        other = lp.acting_as(
            Principal("user:ada", role="owner", app="support", user="ada", task="b")
        )
        store: Any = journal_of(other).store
        head = s.head
        standing = Standing(head.uid, head.version)
        await denied(store.exchange([Exchange(s.key, standing, None)]))
        fork = await plain.fork(actor="system")
        assert await store.forks(plain.key) == (fork.key,)


# --- followers -----------------------------------------------------------------------------------


async def test_a_follower_is_cut_when_a_label_forbids_it(tmp_path: Path) -> None:
    """A policy on labels is decided on the newest head, also for one who has followed before."""
    (tmp_path / "p.cedar").write_text(
        "permit(principal, action, resource);\n"
        '@id("closed") forbid(principal, action == Action::"read", resource is Session)\n'
        'when { resource.hasTag("closed") };\n'
    )
    async with limpet.open("memory://", policies=tmp_path / "p.cedar") as lp:
        s = await lp.create("support", "ada", "c1")
        events = lp.acting_as(OWNER).session(s.key).follow()
        assert (await anext(events)).type == "session.created"
        await s.label({"closed": "yes"}, actor="system")
        await s.append("note.made", {"text": "secret"}, actor="system")
        assert (await denied(anext(events))).policy == "closed"


# --- the façade without await --------------------------------------------------------------------


def test_the_sync_facade_shows_no_hidden_field_and_no_foreign_session(tmp_path: Path) -> None:
    """It is the same guard, by every object that it hands out."""
    canary = "canary-of-the-hidden-field"
    with limpet.open_sync(f"sqlite:///{tmp_path}/store.db") as lp:
        s = lp.create(
            "support", "ada", "c1", state={"salary": canary, "draft": "d"}, isolation=PER_AGENT
        )
        s.append("note.made", {"text": canary}, set={"salary": canary}, actor="user:ada", id="n")
        lp.create("support", "bob", "b1", state={"text": canary})
        acting = lp.acting_as(CRITIC)
        mine = acting.get(s.key)
        followed = mine.follow()
        watched = acting.watch(key=s.key)
        shown = [
            (mine.values, mine.events, mine.head, mine.envelope()),
            (mine.read(), mine.read_ids(["n"]), mine.messages(), mine.context()),
            (mine.history.at(1), mine.history.diff(1), mine.history.blame("salary")),
            [(each.values, each.events) for each in acting.get_many([s.key]) if each],
            acting.list(app="support", state=True),
            acting.app("support").get("ada", "c1").values,
            [next(followed), next(followed)],
            [next(watched), next(watched)],
        ]
        followed.close()
        watched.close()
        assert canary not in repr(shown)
        assert mine.values == {"draft": "d"}
        for call in (
            lambda: acting.get("support", "bob", "b1"),
            lambda: acting.session(("support", "bob", "b1")).read(),
            lambda: acting.list(app="support", user="bob"),
            lambda: acting.names("support", "bob"),
            lambda: acting.export(s.key, tmp_path / "x.limpet"),
            lambda: mine.fork(),
            lambda: mine.append("note.made", set={"salary": 1}),
            lambda: acting.acting_as(OWNER),
        ):
            with pytest.raises(AccessDenied):
                call()
        assert not (tmp_path / "x.limpet").exists()


# --- what is kept beside a session ---------------------------------------------------------------


TOLD = "the safe has the code 4711"
EACH: dict[str, Any] = {
    "load": lambda store, key, head: store.load(key, tail=1),
    "load_many": lambda store, key, head: store.load_many((key,), tail=1),
    "head": lambda store, key, head: store.head(key),
    "read": lambda store, key, head: store.read(key, after=0, limit=9, reverse=False, types=None),
    "read_ids": lambda store, key, head: store.read_ids(key, (head.uid,)),
    "fold_at": lambda store, key, head: store.fold_at(key, 1),
    "records": lambda store, key, head: store.records(key, after=0, limit=9),
    "base": lambda store, key, head: store.base(key),
    "changes": lambda store, key, head: store.changes(None, app=None, key=key, limit=9),
    "verify": lambda store, key, head: store.verify(key),
    "compact": lambda store, key, head: store.compact(key, upto=1),
    "unpin": lambda store, key, head: store.unpin(key, (1,)),
    "acquire": lambda store, key, head: store.acquire(key, "w1", 9.0),
    "delete": lambda store, key, head: store.delete(key),
    "erase": lambda store, key, head: store.erase(key),
    "exchange": lambda store, key, head: store.exchange([Exchange(key, Standing(head.uid, None))]),
}


async def _beside(lp: Limpet, id: str, isolation: Isolation) -> tuple[limpet.Session[Any], Any]:
    """An isolated session with a memory, a checkpoint and a proposal of its own; the heads of the
    logs that have these."""
    s = await lp.create(
        "support", "ada", id, isolation=isolation, state={"pin": 4711}, actor="user:ada"
    )
    await s.memory.session.put("safe", TOLD)
    await s.checkpoint(full=True)
    await lp.propose(TOLD, provenance=s.key, confidence=0.9, to="agent:main", actor="user:ada")
    heads = []
    for app in ("$$memory", "$$checkpoints", "$$proposals"):
        page = await journal_of(lp).store.heads(Query(app=app), cursor=None, limit=9)
        heads += page.items
    assert len(heads) == 3
    return s, heads


async def _feed(store: Any, app: str | None) -> list[Any]:
    entries: list[Any] = []
    after = None
    while True:
        page, after = await store.changes(after, app=app, key=None, limit=9)
        if not page:
            return entries
        entries += page


@stores
@pytest.mark.parametrize("id", ["c1", "long-name-" * 9, "a" * 255])
@pytest.mark.parametrize(
    ("who", "isolation"),
    [
        (AGENT, PER_AGENT),
        (structs.replace(OWNER, task="t2"), Isolation("per_task", task="t1")),
    ],
    ids=["agent", "task"],
)
async def test_what_a_session_keeps_beside_its_log_is_isolated_as_it_is(
    opened: Limpet, id: str, who: Principal, isolation: Isolation
) -> None:
    """Its memory, checkpoints and proposals, for an agent that it does not name and for an owner at
    work on another task: by every method of a store, in lists and in the feed."""
    _, heads = await _beside(opened, id, isolation)
    store: Any = journal_of(opened.acting_as(who)).store
    for head in heads:
        for name, call in EACH.items():
            if hasattr(store, name):
                with pytest.raises(AccessDenied):
                    await call(store, head.key, head)
        listed = Query(app=head.key.app, user=head.key.user)
        assert (await store.heads(listed, cursor=None, limit=9, states=True)).items == ()
        assert (await store.heads(listed, cursor=None, limit=9)).items == ()
        assert await _feed(store, head.key.app) == []
        assert await store.listed([head.key]) == ()
        assert (await journal_of(opened).store.load(head.key, tail=0)).head == head


@pytest.mark.parametrize("id", ["long-name-" * 9, "é" * 200])
async def test_a_session_named_like_a_hash_does_not_open_what_another_keeps(id: str) -> None:
    """A long id is hashed in the names of its logs; who creates a session with that hash as its id
    neither reads nor replaces them."""
    async with limpet.open("memory://") as lp:
        s, heads = await _beside(lp, id, Isolation("per_task", task="t1"))
        acted = lp.acting_as(structs.replace(OWNER, task="t2"))
        twin = await acted.create("support", "ada", hashed(id))
        await twin.checkpoint(full=True)
        store: Any = journal_of(acted).store
        for head in heads:
            for name in ("load", "read", "records", "delete"):
                await denied(EACH[name](store, head.key, head))
            assert (await journal_of(lp).store.load(head.key, tail=0)).head == head
        for each, number in ((s, 4711), (await lp.get(twin.key), None)):
            (kept,) = (await each.history.checkpoints()).items
            assert (await each.history.at(kept.ref.seq)).get("pin") == number


async def test_what_was_decided_of_a_session_before_does_not_open_the_memory_of_another() -> None:
    """A key is used again for one that is isolated: what its guard has met is another session."""
    async with limpet.open("memory://") as lp:
        acted = lp.acting_as(AGENT)
        await lp.create("support", "ada", "c1", actor="user:ada")
        await (await acted.get("support", "ada", "c1")).memory.session.get("safe")
        await lp.delete("support", "ada", "c1")
        again = await lp.create(
            "support", "ada", "c1", isolation=PER_AGENT, reuse_deleted=True, actor="user:ada"
        )
        await again.memory.session.put("safe", TOLD)
        page = await journal_of(lp).store.heads(Query(app="$$memory"), cursor=None, limit=9)
        for head in page.items:
            await denied(journal_of(acted).store.load(head.key, tail=1))


async def test_who_sees_a_part_of_the_states_learns_no_checksum_of_them_and_records_none() -> None:
    """A checksum of all fields confirms a guess of one that is hidden; a wrong one would make the
    checkpoint worthless."""
    async with limpet.open("memory://") as lp:
        s, heads = await _beside(lp, "c1", PER_AGENT)
        (kept,) = [head.key for head in heads if head.key.app == "$$checkpoints"]
        sums = (await s.history.checkpoints()).items[0].ref.checksum
        store: Any = journal_of(lp.acting_as(CRITIC)).store
        listed = Query(app=kept.app, user=kept.user)
        page = await store.heads(listed, cursor=None, limit=9, states=True)
        followed: Any = journal_of(lp.acting_as(CRITIC)).hub.follow(kept, 0)
        seen = [
            await store.load(kept, tail=9),
            await store.read(kept, after=0, limit=9, reverse=False, types=None),
            await store.fold_at(kept, 2),
            await _feed(store, kept.app),
            page.states,
            [await anext(followed), await anext(followed)],
        ]
        await followed.aclose()
        assert sums not in repr(seen)
        assert sums in repr(await journal_of(lp).store.load(kept, tail=9))
        for name in ("records", "unpin", "delete", "erase", "exchange"):
            head = next(head for head in heads if head.key == kept)
            assert (await denied(EACH[name](store, kept, head))).denial == "field_access_denied"
        forged = journal_of(lp).prepare(recorded({"number": 2, "checksum": "0"}), "agent:critic")
        assert (await denied(store.commit((Commit(kept, (forged,)),)))).denial == (
            "field_access_denied"
        )


async def test_what_is_hidden_stays_hidden_from_one_who_comes_again() -> None:
    """What was decided of a session is remembered with what it hides: fields, their versions,
    shared names, and events that name them."""
    async with limpet.open("memory://") as lp:
        state = {"pin": TOLD, "draft": 1, "app:safe": TOLD}
        s = await lp.create(
            "support", "ada", "c1", isolation=PER_AGENT, state=state, actor="user:ada"
        )
        store: Any = journal_of(lp.acting_as(CRITIC)).store
        mine = await lp.acting_as(CRITIC).get(s.key)
        for number in range(3):
            await mine.append("note.made", set={"draft": number})
            await s.append("note.made", set={"pin": f"{TOLD} {number}"})
            draft = journal_of(lp).prepare(
                Draft(type="note.made", set={"draft": number}), "agent:critic"
            )
            (answer,) = await store.commit((Commit(s.key, (draft,)),))
            for seen in (await store.load(s.key, tail=9), answer):
                assert seen.fields == {"draft": number}
                assert set(seen.versions) == {"draft"}
                assert TOLD not in repr(seen)


# --- ways around a view --------------------------------------------------------------------------


class Open(State):
    """A claim whose suspicion everybody reads."""

    schema_version: ClassVar[str] = "1.0.0"
    suspicion: str = ""
    amount: int = 0


class Closed(State):
    """The same class, later: nobody but admins reads the suspicion."""

    schema_version: ClassVar[str] = "1.1.0"
    suspicion: Annotated[str, access(read=["admin"], write=["admin"])] = ""
    amount: int = 0


@pytest.mark.parametrize("types", [None, ("state.updated",)])
async def test_a_follower_sees_no_field_that_a_newer_class_hides(
    types: tuple[str, ...] | None,
) -> None:
    """The policies of fields change with the class, also while somebody follows."""
    async with limpet.open("memory://") as lp:
        old = await lp.create("support", "ada", "c1", state=Open(), actor="user:ada")
        await old.update(lambda state: {"amount": 1}, actor="admin:root")
        following = lp.acting_as(OWNER).session("support", "ada", "c1").follow(types=types)
        async with asyncio.timeout(10), aclosing(following):
            seen = [await anext(following)]
            newer = await lp.get("support", "ada", "c1", state_type=Closed)
            change = {"suspicion": TOLD, "amount": 2}
            await newer.update(lambda state: change, actor="admin:root")
            while seen[-1].seq < newer.version:
                seen.append(await anext(following))
        assert TOLD not in repr(seen)
        assert [op.path for op in seen[-1].ops] == [("amount",)]
        assert types is None or {event.type for event in seen} == {*types}


async def test_who_comes_again_sees_no_field_that_a_newer_class_hides() -> None:
    """What was decided of a session holds as long as the policies of its fields do."""

    class Sealed(Closed):
        schema_version: ClassVar[str] = "1.2.0"
        amount: Annotated[int, access(read=["admin"], write=["admin"])] = 0

    async with limpet.open("memory://") as lp:
        old = await lp.create("support", "ada", "c1", state=Open(), actor="user:ada")
        acting = lp.acting_as(OWNER)
        for of, left in ((Open, {"suspicion", "amount"}), (Closed, {"amount"}), (Sealed, set())):
            newer = await lp.get("support", "ada", "c1", state_type=of)
            change = {"suspicion": of.__name__, "amount": len(of.__name__)}
            await newer.update(lambda state, change=change: change, actor="admin:root")  # type: ignore[misc]
            for _ in range(2):
                assert set((await acting.get(old.key)).values) == left, of


async def test_a_shared_name_that_a_policy_hides_is_shown_nowhere(tmp_path: Path) -> None:
    """Neither where no session is named, nor by a condition of a session that is to begin."""
    (tmp_path / "p.cedar").write_text(
        "permit(principal, action, resource);\n"
        '@id("kept") forbid(principal, action == Action::"read", resource is Field)\n'
        'when { ["app:rate", "user:vip"].contains(resource.name) };\n'
    )
    async with limpet.open("memory://", policies=tmp_path / "p.cedar") as lp:
        s = await lp.create("support", "ada", "c1", state={"app:rate": 5, "user:vip": 1, "n": 1})
        await s.append("note.made", set={"app:open": 2}, actor="user:ada")
        acting = lp.acting_as(OWNER)
        assert (await acting.get(s.key)).values == {"n": 1, "app:open": 2}
        assert await acting.names("support", "ada") == {"app:open": 2}
        journal, new = journal_of(acting), Key("support", "ada", "new")
        for name, version in (("app:rate", 1), ("app:rate", 9), ("user:vip", 9)):
            begin = journal.prepare(created(new), None)
            asking = Commit(new, (begin,), 0, guards={name: version})
            assert (await denied(journal.commit([asking]))).policy == "kept"
        begin = journal.prepare(created(new), None)
        await journal.commit([Commit(new, (begin,), 0, guards={"app:open": 1})])


@stores
async def test_one_guard_may_be_bound_to_one_session(opened: Limpet) -> None:
    """Others of the same user are as foreign to it, in lists and feeds too; it is not widened."""
    mine = await opened.create("support", "ada", "c1", state={"n": 1})
    other = await opened.create("support", "ada", "c2", state={"n": 2})
    acting = opened.acting_as(OWNER, session=mine.key)
    assert (await acting.get(mine.key)).values == {"n": 1}
    await acting.session(mine.key).append("note.made", set={"n": 3})
    for call in (
        acting.get(other.key),
        acting.find("support", "ada", "missing"),
        acting.create("support", "ada", "c3"),
        acting.session(mine.key).merge(other.key),
        acting.session(mine.key).relate(acting.session(other.key), "peer"),
        acting.erase_user("support", "ada"),
        acting.session(mine.key).fork(),
    ):
        assert (await denied(call)).policy == "session"
    assert [head.key for head in (await acting.list(app="support")).items] == [mine.key]
    assert {entry.key for entry in await _feed(journal_of(acting).store, "support")} == {mine.key}
    with pytest.raises(AccessDenied):
        acting.acting_as(OWNER, session=other.key)
    assert (await denied(acting.acting_as(OWNER).get(other.key))).policy == "session"


async def test_a_session_that_names_a_user_does_not_open_to_a_guard_of_another_session() -> None:
    """Being let in by isolation is not wider than the guard either."""
    async with limpet.open("memory://") as lp:
        shared = await lp.create(
            "support", "bob", "b1", isolation=Isolation("per_user", users=("ada",))
        )
        mine = await lp.create("support", "ada", "c1")
        assert (await lp.acting_as(OWNER).get(shared.key)).key == shared.key
        bound = lp.acting_as(OWNER, session=mine.key)
        assert (await denied(bound.get(shared.key))).denial == "access_denied"


async def test_a_file_brings_nothing_that_another_person_is_said_to_have_done(
    tmp_path: Path,
) -> None:
    """What agents and the system did is their session's; who else spoke only an admin says."""
    async with limpet.open("memory://") as there:
        for id, actor in (("own", "worker:w1"), ("forged", "user:bob")):
            s = await there.create("support", "ada", id, actor="user:ada")
            await s.append("note.made", actor=actor)
            await there.export(s.key, tmp_path / id)
    async with limpet.open("memory://") as lp:
        acting = lp.acting_as(OWNER)
        assert (await acting.import_(tmp_path / "own")).id == "own"
        assert (await denied(acting.import_(tmp_path / "forged"))).policy == "actor"
        admin = Principal("user:root", role="admin", app="support")
        assert (await lp.acting_as(admin).import_(tmp_path / "forged")).id == "forged"


@stores
async def test_a_tombstone_is_not_listed_to_whom_its_session_may_have_been_closed(
    opened: Limpet,
) -> None:
    """It has no facts any more, so it does not say who was let in."""
    s = await opened.create("support", "ada", "c1", isolation=Isolation("per_task", task="t1"))
    await opened.delete(s.key)
    for who, seen in ((OWNER, 1), (AGENT, 0), (structs.replace(OWNER, task="t2"), 0)):
        page = await opened.acting_as(who).list(app="support", user="ada", deleted=True)
        assert len(page.items) == seen, who


async def test_a_partial_of_a_session_under_a_used_key_is_decided_by_that_session() -> None:
    """A key may belong to another session since the principal met the one that had it before."""
    async with limpet.open("memory://") as lp:
        old = await lp.create("support", "ada", "c1")
        guarded, store = journal_of(lp.acting_as(OWNER)).store, journal_of(lp).store
        await guarded.load(old.key, tail=0)
        assert isinstance(guarded, Live)
        assert isinstance(store, Live)
        channel, other, heard = guarded.channel(), store.channel(), asyncio.Event()
        await channel.subscribe(heard.set)
        event = Event(0, "p", "agent.message", "agent:main", 0, FrozenDict(text=TOLD), partial=True)
        await other.publish([Partial(old.key, old.head.uid, 1, event)])
        await asyncio.wait_for(heard.wait(), 10)
        assert [each.event for each in channel.received(lambda key: True)] == [event]
        await lp.delete(old.key)
        task = Isolation("per_task", task="t1")
        new = await lp.create("support", "ada", "c1", isolation=task, reuse_deleted=True)
        heard.clear()
        await other.publish([Partial(new.key, new.head.uid, 1, event)])
        await asyncio.wait_for(heard.wait(), 10)
        assert channel.received(lambda key: True) == ()
        for each in (channel, other):
            await each.close()


@stores
async def test_a_guard_of_one_session_does_not_erase_its_user(opened: Limpet) -> None:
    """Not even if that session is the only one: documents and shared names are the user's."""
    mine = await opened.create("support", "ada", "c1", state={"user:n": 1})
    acting = opened.acting_as(OWNER, session=mine.key)
    assert (await denied(acting.erase_user("support", "ada"))).policy == "session"
    assert await opened.names("support", "ada") == {"user:n": 1}


@pytest.mark.parametrize("who", [OWNER, AGENT, Principal("user:root", role="admin", app="support")])
async def test_nobody_names_a_file_of_the_archive_as_a_session(
    who: Principal, tmp_path: Path
) -> None:
    """Else it would be read, brought back or removed as theirs, whoever's it is."""
    url, cold = f"sqlite:///{tmp_path}/support.db", f"file://{tmp_path}/cold"
    async with limpet.open(url, archive=cold) as lp:
        s = await lp.create("support", "bob", "c1", state={"pin": TOLD}, actor="user:bob")
        await s.complete(actor="user:bob")
        await s.archive(actor="user:bob")
        (head,) = (await lp.list(app="support", user="bob")).items
        place = head.facts["archive"]
        named = stub(head, place["place"], place["bytes"], place["sha256"])
        journal, key = journal_of(lp.acting_as(who)), Key("support", "ada", "mine")
        fact = Fact(type=named.type, data={**named.data, "user": "ada", "id": "mine"})
        refused = await denied(journal.commit([Commit(key, (journal.prepare(fact, None),), 0)]))
        assert refused.action == "lifecycle"
        assert (await lp.get(s.key, archived=True)).values == {"pin": TOLD}
