"""Acting as a principal: what it sees, what it may do, and in whose name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Key, Limpet, Principal, facts
from limpet.errors import (
    AccessDenied,
    FlushFailed,
    SessionHasForks,
    SessionNotFound,
    StoreClosed,
)
from limpet.session.limpet import journal_of
from limpet.session.writer import writer_of
from limpet.store.protocol import Query

ADA = Principal("user:ada", role="owner", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
VIEWER = Principal("user:ada", role="viewer", app="support", user="ada")
AGENT = Principal("agent:main", role="agent", app="support")
AUDITOR = Principal("user:eve", role="auditor", app="support")
ADMIN = Principal("user:root", role="admin", app="support")


@pytest.fixture(params=["memory", "sqlite"])
async def lp(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Limpet]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db?sync=normal"
    async with limpet.open(url) as opened:
        yield opened


async def session_of(lp: Limpet, user: str, id: str = "c1", **state: Any) -> Key:
    return (await lp.create("support", user, id, state={"n": 0, **state})).key


def denied(error: AccessDenied) -> tuple[str, str, str | None]:
    return error.denial, error.action, error.policy


# --- whether a session exists --------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_foreign_session_and_a_missing_one_are_refused_alike(lp: Limpet) -> None:
    """The same error, by the key alone; one's own missing session is SessionNotFound."""
    await session_of(lp, "bob")
    ada = lp.acting_as(ADA)
    answers = []
    for id in ("c1", "missing"):
        with pytest.raises(AccessDenied) as caught:
            await ada.get("support", "bob", id)
        answers.append(denied(caught.value))
    assert answers[0] == answers[1] == ("access_denied", "read", "role.owner")
    with pytest.raises(SessionNotFound):
        await ada.get("support", "ada", "missing")
    assert await ada.find("support", "ada", "missing") is None


@pytest.mark.asyncio
async def test_what_exists_elsewhere_does_not_show_in_a_creation(lp: Limpet) -> None:
    """Creating another user's session is refused whether or not its key is taken."""
    await session_of(lp, "bob")
    for id in ("c1", "new"):
        with pytest.raises(AccessDenied):
            await lp.acting_as(ADA).create("support", "bob", id)


# --- lists, feeds, followers ---------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_list_shows_ones_own_and_its_cursor_skips_none(lp: Limpet) -> None:
    """Paging meets every session of the user once, and nobody else's."""
    for number in range(12):
        for user in ("ada", "bob"):
            await session_of(lp, user, f"c{number}")
    await lp.create("billing", "ada", "c1")
    ada = lp.acting_as(ADA)
    for query in ({}, {"app": "support"}, {"app": "support", "user": "ada"}):
        found: list[Key] = []
        cursor: str | None = None
        while True:
            page = await ada.list(limit=5, cursor=cursor, **query)  # type: ignore[arg-type]
            found += [head.key for head in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(found) == sorted([Key("support", "ada", f"c{n}") for n in range(12)])
    for named in ({"app": "billing"}, {"app": "support", "user": "bob"}):
        with pytest.raises(AccessDenied):
            await ada.list(**named)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_states_are_not_listed_for_an_auditor(lp: Limpet) -> None:
    """An auditor sees heads, and no bodies."""
    key = await session_of(lp, "ada", secret="canary")
    auditor = lp.acting_as(AUDITOR)
    assert [head.key for head in (await auditor.list(app="support")).items] == [key]
    with pytest.raises(AccessDenied):
        await auditor.list(app="support", state=True)
    loaded = await journal_of(auditor).store.load(key, tail=0, scopes=False)
    assert loaded.head.key == key
    assert loaded.fields == {}
    assert loaded.events == ()


@pytest.mark.asyncio
async def test_watching_passes_over_pages_of_others(lp: Limpet) -> None:
    """A page of nothing but hidden entries does not end the feed."""
    bob = lp.session(await session_of(lp, "bob"), actor="user:bob")
    for _ in range(3):
        await bob.append_many([limpet.Draft(type="note.made") for _ in range(300)])
    await session_of(lp, "ada")
    watching = lp.acting_as(ADA).watch(app="support")
    entry = await asyncio.wait_for(anext(watching), 10)
    await watching.aclose()
    assert entry.key == Key("support", "ada", "c1")


@pytest.mark.asyncio
async def test_a_follower_may_not_follow_others_and_shares_what_was_read(lp: Limpet) -> None:
    """One hub serves all; each follower is checked for itself."""
    key = await session_of(lp, "ada")
    mine = lp.acting_as(ADA).session(key).follow()
    whole = lp.session(key).follow()
    assert (await anext(mine)).type == (await anext(whole)).type == "session.created"
    theirs = lp.acting_as(BOB).session(key).follow()
    with pytest.raises(AccessDenied):
        await anext(theirs)
    await mine.aclose()
    await whole.aclose()


@pytest.mark.asyncio
async def test_a_partial_is_checked_before_anybody_hears_of_it(lp: Limpet) -> None:
    """Neither another's session nor another's name."""
    key = await session_of(lp, "ada")
    following = lp.session(key).follow(after=1)
    heard = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    bob, ada = lp.acting_as(BOB).session(key), await lp.acting_as(ADA).get(key)
    with pytest.raises(AccessDenied):
        await bob.append("note.made", {"n": 1}, partial=True)
    with pytest.raises(AccessDenied):
        await ada.append("note.made", {"n": 2}, partial=True, actor="user:bob")
    await ada.append("note.made", {"n": 3}, partial=True)
    assert (await asyncio.wait_for(heard, 10)).data["n"] == 3
    await following.aclose()


@pytest.mark.asyncio
async def test_inbox_and_status_count_what_may_be_seen(lp: Limpet) -> None:
    """Requests and counts of other users show nowhere."""

    async def asks(turn: Any) -> None:
        await turn.approve("refund", {"cents": 1})

    for user in ("ada", "bob"):
        key = await session_of(lp, user)
        await lp.session(key).append("user.message", {"text": "hi"}, actor=f"user:{user}")
        await lp.wake(key, asks)
    await session_of(lp, "bob", "c2")
    ada = lp.acting_as(ADA)
    assert {waiting.key.user for waiting in (await ada.inbox()).items} == {"ada"}
    assert (await ada.status()).sessions == (await ada.status("support")).sessions == 1
    assert (await ada.status()).blocked == 1
    assert (await lp.acting_as(ADMIN).status()).sessions == 3
    (waiting,) = (await ada.inbox()).items
    with pytest.raises(AccessDenied):
        await lp.acting_as(VIEWER).session(waiting.key).confirm(waiting.request.id, allow=True)
    await ada.session(waiting.key).confirm(waiting.request.id, allow=True)


@pytest.mark.asyncio
async def test_a_graph_leaves_out_what_must_not_be_seen(lp: Limpet) -> None:
    """A relation to another user's session is not shown, nor its key."""
    mine, theirs = await session_of(lp, "ada"), await session_of(lp, "bob")
    await lp.session(mine, actor="system:x").relate(lp.session(theirs), "peer")
    graph = await lp.acting_as(ADA).graph(mine)
    assert [node.key for node in graph.nodes] == [mine]
    assert graph.edges == ()
    assert len((await lp.acting_as(ADMIN).graph(mine)).nodes) == 2


@pytest.mark.asyncio
async def test_changes_of_documents_show_what_may_be_read(lp: Limpet) -> None:
    """Its owner sees every change, another user none, however they were asked for."""
    since = await lp.position()
    owner = ("support", "ada")
    await lp.documents("notes", owner=owner, actor="user:ada").put("n", {"a": 1})
    changed, _ = await lp.acting_as(ADA).documents("notes", owner=owner).changes(since)
    assert [document.name for document in changed] == ["n"]
    hidden, _ = await lp.acting_as(BOB).documents("notes", owner=owner).changes(since)
    assert hidden == ()


# --- in whose name -------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_it_writes_has_the_principal_as_actor(lp: Limpet) -> None:
    """Also where the system would stand by default, and where nobody is named."""
    ada = lp.acting_as(ADA)
    s = await ada.create("support", "ada", "c1")
    await s.append("note.made")
    await s.label({"a": "b"})
    await s.suspend()
    await s.resume()
    await s.complete()
    notes = ada.documents("notes", owner=("support", "ada"))
    await notes.put("n", {"a": 1})
    await notes.delete("n")
    assert {event.actor for event in await s.read()} == {"user:ada"}
    assert {version.actor for version in await notes.history("n")} == {"user:ada"}
    assert s.actor == "user:ada"


@pytest.mark.asyncio
@pytest.mark.parametrize("actor", ["user:bob", "system:lifecycle", "agent:main", "user:ada2"])
async def test_another_actor_is_refused(lp: Limpet, actor: str) -> None:
    """In every kind of write, and nothing is recorded."""
    ada = lp.acting_as(ADA)
    key = await session_of(lp, "ada")
    s, bound = ada.session(key), ada.session(key, actor=actor)
    notes = ada.documents("notes", owner=("support", "ada"))
    for write in (
        lambda: s.append("note.made", actor=actor),
        lambda: bound.append("note.made"),
        lambda: s.record(facts.labeled({"a": "b"}), actor=actor),
        lambda: s.suspend(actor=actor),
        lambda: s.checkpoint(actor=actor),
        lambda: s.archive(actor=actor),
        lambda: ada.create("support", "ada", "c2", actor=actor),
        lambda: notes.put("n", {}, actor=actor),
        lambda: s.memory.session.put("x", 1, actor=actor),
    ):
        with pytest.raises(AccessDenied):
            await write()
    s.append_soon("note.made", actor=actor)
    with pytest.raises(FlushFailed) as caught:
        await ada.flush()
    assert isinstance(caught.value.unrecorded[0].error, AccessDenied)
    assert (await lp.get(key)).version == 1
    assert await lp.find("support", "ada", "c2") is None


@pytest.mark.asyncio
async def test_an_agent_of_an_app_may_write_as_its_agents_and_the_system(lp: Limpet) -> None:
    """And as no user."""
    s = lp.acting_as(AGENT).session(await session_of(lp, "ada"))
    for actor in ("agent:critic", "system:runtime"):
        assert (await s.append("note.made", actor=actor)).actor == actor
    with pytest.raises(AccessDenied):
        await s.append("note.made", actor="user:ada")
    bound = Principal("agent:main", role="agent", app="support", user="ada")
    with pytest.raises(AccessDenied):
        await lp.acting_as(bound).session(s.key).append("note.made", actor="agent:critic")


# --- narrowing and closing -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_acting_as_of_an_acting_one_only_narrows(lp: Limpet) -> None:
    """Neither another place, nor a stronger role, nor another name."""
    admin = lp.acting_as(ADMIN)
    for wider in (
        Principal("user:root", role="admin"),
        Principal("user:root", role="admin", app="billing"),
        Principal("user:ada", role="admin", app="support"),
        Principal("user:root", role="auditor", app="support"),
        Principal("user:root", role="admin", app="support", attributes={"team": "x"}),
    ):
        with pytest.raises(AccessDenied):
            admin.acting_as(wider)
    with pytest.raises(AccessDenied):
        lp.acting_as(VIEWER).acting_as(ADA)
    key = await session_of(lp, "ada")
    await session_of(lp, "bob")
    narrow = admin.acting_as(Principal("user:root", role="admin", app="support", user="ada"))
    assert (await narrow.get(key)).key == key
    with pytest.raises(AccessDenied):
        await narrow.get("support", "bob", "c1")
    viewing = lp.acting_as(ADA).acting_as(VIEWER)
    with pytest.raises(AccessDenied):
        await viewing.session(key).append("note.made")


@pytest.mark.asyncio
async def test_closing_an_acting_one_closes_nothing(lp: Limpet) -> None:
    """Nor does leaving its block; what it queued is recorded when the store closes."""
    key = await session_of(lp, "ada")
    async with lp.acting_as(ADA) as ada:
        await ada.get(key)
    await ada.close()
    assert (await ada.get(key)).version == 1
    assert (await lp.get(key)).version == 1


@pytest.mark.asyncio
async def test_what_it_queued_is_recorded_when_the_store_closes(tmp_path: Path) -> None:
    """Closing the Limpet flushes what was queued by those who act."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url) as lp:
        key = await session_of(lp, "ada")
        lp.acting_as(ADA).session(key).append_soon("note.made")
    async with limpet.open(url) as lp:
        assert [event.actor for event in await lp.session(key).read(after=1)] == ["user:ada"]


@pytest.mark.asyncio
async def test_nothing_works_after_the_store_was_closed() -> None:
    """StoreClosed, as of the Limpet it was made from."""
    async with limpet.open("memory://") as lp:
        ada = lp.acting_as(ADA)
        s = await ada.create("support", "ada", "c1")
    with pytest.raises(StoreClosed):
        await s.append("note.made")
    with pytest.raises(StoreClosed):
        await ada.list()


# --- what is shared ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_names_that_an_app_shares_are_written_by_agents_and_admins(lp: Limpet) -> None:
    """An owner reads them, and writes its own user: names."""
    ada = lp.acting_as(ADA)
    s = await ada.create("support", "ada", "c1")
    await s.append("note.made", inc={"user:visits": 1})
    with pytest.raises(AccessDenied) as caught:
        await s.append("note.made", inc={"app:visits": 1})
    assert caught.value.resource == "support#app:visits"
    with pytest.raises(AccessDenied):
        await ada.create("support", "ada", "c2", state={"app:visits": 5})
    for principal in (AGENT, ADMIN):
        await lp.acting_as(principal).session(s.key).append("note.made", inc={"app:visits": 1})
    await s.refresh()
    assert s.values["app:visits"] == 2
    assert s.values["user:visits"] == 1
    assert (await ada.names("support", "ada"))["user:visits"] == 1
    with pytest.raises(AccessDenied):
        await ada.names("support", "bob")


@pytest.mark.asyncio
async def test_a_fork_of_another_user_is_neither_erased_nor_named(lp: Limpet) -> None:
    """erase(forks="erase") needs the right to erase each of them."""
    key = await session_of(lp, "ada")
    fork = await lp.session(key).fork(user="bob", actor="system:x")
    ada = lp.acting_as(ADA)
    with pytest.raises(AccessDenied):
        await ada.erase(key, forks="erase")
    with pytest.raises(SessionHasForks) as caught:
        await ada.erase(key)
    assert "bob" not in str(caught.value)
    lineage = await ada.session(key).history.lineage()
    assert lineage.forks == ()
    assert (await lp.get(fork.key)).version == 2


@pytest.mark.asyncio
async def test_a_file_is_imported_only_under_ones_own_key(lp: Limpet, tmp_path: Path) -> None:
    """An export of another user's session is refused, and one's own comes back."""
    for user in ("ada", "bob"):
        key = await session_of(lp, user)
        await lp.export(key, tmp_path / user)
        await lp.erase_user("support", user)
    async with limpet.open("memory://") as other:
        with pytest.raises(AccessDenied):
            await other.acting_as(ADA).import_(tmp_path / "bob")
        assert (await other.acting_as(ADA).import_(tmp_path / "ada")).user == "ada"
        assert [head.key.user for head in (await other.list()).items] == ["ada"]


@pytest.mark.asyncio
async def test_a_sweep_of_an_agent_is_of_its_app(lp: Limpet) -> None:
    """Sessions of other apps are left, and an owner sweeps nothing."""
    past = limpet.Timeouts(idle=timedelta(microseconds=1))
    for app in ("support", "billing"):
        await lp.create(app, "ada", "c1", timeouts=past)
    with pytest.raises(AccessDenied):
        await lp.acting_as(ADA).work.sweep()
    swept = await lp.acting_as(AGENT).work.sweep()
    assert swept.suspended == 1
    assert (await lp.get("support", "ada", "c1")).phase == "suspended"
    assert (await lp.get("billing", "ada", "c1")).phase == "active"


@pytest.mark.asyncio
async def test_input_resumes_a_session_for_one_who_may_only_write(lp: Limpet) -> None:
    """The system does: what a write brings about needs no rights of its own."""
    past = limpet.Timeouts(idle=timedelta(microseconds=1))
    key = (await lp.create("support", "ada", "c1", timeouts=past)).key
    await lp.work.sweep()
    await (
        lp.acting_as(AGENT).session(key).append("user.message", {"text": "hi"}, actor="agent:main")
    )
    head = (await lp.get(key)).head
    assert head.phase == "active"


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("agent", [None, "agent:critic"])
async def test_what_the_agent_of_a_worker_writes_has_the_principal_as_actor(
    lp: Limpet, agent: str | None
) -> None:
    """Its messages, steps and effects; unless the worker names another agent of the app."""
    key = await session_of(lp, "ada")
    await lp.session(key).append("user.message", {"text": "hi"}, actor="user:ada")

    async def harness(turn: Any) -> None:
        await turn.step("think", lambda: 1)
        await turn.effect("pay", lambda idempotency_key: 1)
        await turn.say("paid")

    billing = Principal("agent:billing", role="agent", app="support")
    await limpet.Worker(
        lp.acting_as(billing), harness, app="support", idle_exit=True, signals=False, agent=agent
    ).run()
    events = await lp.session(key).read(after=2)
    wrote = {e.actor for e in events if e.type.startswith(("agent.", "user."))}
    assert wrote == {agent or "agent:billing"}
    assert "agent:support" not in {event.actor for event in events}


@pytest.mark.asyncio
async def test_a_wake_acts_for_the_user_of_its_session_alone(lp: Limpet) -> None:
    """A worker of an app serves two users, and neither turn reaches the other's session."""
    keys = {user: await session_of(lp, user) for user in ("ada", "bob")}
    for user, key in keys.items():
        await lp.session(key).append("user.message", {"text": "hi"}, actor=f"user:{user}")
    tried: dict[str, list[str]] = {}

    async def deputy(turn: Any) -> None:
        user = turn.session.user
        other = keys["bob" if user == "ada" else "ada"]
        outcomes = tried.setdefault(user, [])
        services = writer_of(turn.session).services
        theirs = type(turn.session)(services, other)
        for attempt in (
            theirs.refresh,
            theirs.read,
            lambda: theirs.append("note.made", actor="agent:main"),
            lambda: services.journal.store.heads(
                Query(app="support", user=other.user), cursor=None, limit=5
            ),
        ):
            try:
                await attempt()
                outcomes.append("allowed")
            except AccessDenied:
                outcomes.append("denied")
        await turn.say(f"hello {user}")

    worker = limpet.Worker(
        lp.acting_as(AGENT), deputy, app="support", idle_exit=True, signals=False
    )
    rates = await worker.run()
    assert rates.turns == 2
    assert rates.failed == 0
    assert tried == {user: ["denied"] * 4 for user in keys}
    for user, key in keys.items():
        said = [e.data["text"] for e in await lp.session(key).read(types=["agent.message"])]
        assert said == [f"hello {user}"]


@pytest.mark.asyncio
async def test_a_worker_claims_nothing_of_another_app(lp: Limpet) -> None:
    """Its claim is narrowed to its app; an owner claims nothing, and wakes its own."""
    for app in ("support", "billing"):
        s = await lp.create(app, "ada", "c1")
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
    leases = await lp.acting_as(AGENT).work.claim("w", limit=10)
    assert [lease.key.app for lease in leases] == ["support"]
    assert await lp.acting_as(AGENT).work.release(leases[0])
    ada = lp.acting_as(ADA)
    with pytest.raises(AccessDenied):
        await ada.work.claim("w", app="support")

    async def says(turn: Any) -> None:
        await turn.say("hello")

    assert (await ada.wake(Key("support", "ada", "c1"), says)).ran
    with pytest.raises(AccessDenied):
        await ada.wake(Key("billing", "ada", "c1"), says)


# --- the audit -----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_every_denial_and_every_sensitive_operation_is_in_the_audit(lp: Limpet) -> None:
    """Before it is answered, each once; reads and writes that are allowed are not."""
    key = await session_of(lp, "ada")
    ada = lp.acting_as(ADA)
    await ada.get(key)
    await ada.session(key).append("note.made")
    await ada.session(key).suspend()
    with pytest.raises(AccessDenied):
        await ada.get("support", "bob", "c1")
    with pytest.raises(AccessDenied):
        ada.policies.lifecycle("support")
    await ada.delete(key)
    records = (await lp.acting_as(AUDITOR).audit(app="support")).items
    found = sorted([(r.principal, r.action, r.allowed) for r in records])
    assert found == [
        ("user:ada", "erase", True),
        ("user:ada", "lifecycle", True),
        ("user:ada", "policy", False),
        ("user:ada", "read", False),
    ]
    with pytest.raises(AccessDenied):
        await ada.audit()


# --- without await -------------------------------------------------------------------------------


def test_the_sync_facade_acts_too() -> None:
    """The same verbs without await; closing it leaves the loop running."""
    with limpet.open_sync("memory://") as lp:
        with lp.acting_as(ADA) as ada:
            s = ada.create("support", "ada", "c1")
            s.append("note.made")
            with pytest.raises(AccessDenied):
                ada.get("support", "bob", "c1")
        ada.close()
        assert [event.actor for event in lp.get(s.key).events] == ["user:ada", "user:ada"]
