"""Isolation is part of a session: it goes where the session goes, and sessions are found by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import pytest

import limpet
from limpet.model.facts.isolation import field_policies_in

ADA = "user:ada"
CRITIC = limpet.FieldAccess(owns=("review",), reads=("draft",))
APART = limpet.Isolation(
    "per_agent", users=("bob",), task="invoice-7", agents={"agent:critic": CRITIC}
)


class Case(limpet.State):
    open: bool = True
    notes: Annotated[str, limpet.access(read=["agent"], write=["agent"])] = ""


class WiderCase(limpet.State):
    schema_version = "1.1.0"
    open: bool = True
    notes: Annotated[str, limpet.access(read=["agent", "owner"])] = ""


@pytest.fixture
async def lp(url: str, tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(url, archive=f"file://{tmp_path}/cold") as opened:
        yield opened


async def test_a_session_says_how_it_is_isolated(lp: limpet.Limpet) -> None:
    """By every way that creates one, and by every way that reads it; without a word, per user."""
    await lp.create("support", "ada", "a", isolation=APART)
    await lp.get_or_create("support", "ada", "b", isolation=APART)
    await lp.app("support").create("ada", "c", isolation=APART)
    await lp.app("support").get_or_create("ada", "d", isolation=APART)
    async with lp.commit() as c:
        c.create("support", "ada", "e", isolation=APART)
    for id in "abcde":
        assert (await lp.get("support", "ada", id)).isolation == APART
    again = await lp.get_or_create("support", "ada", "a", isolation=limpet.Isolation("global"))
    assert again.isolation == APART  # what is there keeps its own
    assert {head.isolation for head in (await lp.list(app="support")).items} == {APART}
    plain = await lp.create("support", "ada", "plain")
    assert plain.isolation == limpet.Isolation("per_user")
    assert not plain.head.facts


async def test_sessions_are_found_by_owner_and_by_owner_and_task(lp: limpet.Limpet) -> None:
    """By the task that their isolation names; a label of the same name is another matter."""
    for user in ("ada", "bob"):
        for task in ("t1", "t2"):
            apart = limpet.Isolation("per_task", task=task)
            await lp.create("support", user, f"{task}-s", isolation=apart, labels={"task": "t1"})
        await lp.create("support", user, "own", isolation=limpet.Isolation("per_task"))
        await lp.create("support", user, "plain", labels={"task": "t1"})

    async def ids(**query: str) -> set[tuple[str, str]]:
        page = await lp.list(app="support", **query)
        each = {(head.key.user, head.key.id) async for head in lp.each(app="support", **query)}
        assert each == {(head.key.user, head.key.id) for head in page.items}
        return each

    assert await ids(user="ada") == {("ada", id) for id in ("t1-s", "t2-s", "own", "plain")}
    assert await ids(user="ada", task="t1") == {("ada", "t1-s")}
    assert await ids(task="t1") == {("ada", "t1-s"), ("bob", "t1-s")}
    assert await ids(task="own") == {("ada", "own"), ("bob", "own")}
    assert await ids(task="t3") == set()
    both = await lp.list(app="support", task="t2", labels={"task": "t1"}, user="bob")
    assert [head.key.id for head in both.items] == ["t2-s"]
    assert len((await lp.app("support").list(task="t1", user="ada")).items) == 1
    with pytest.raises(limpet.errors.InvalidQuery, match="app"):
        await lp.list(task="t1")


async def test_nobody_sets_the_label_of_a_task(lp: limpet.Limpet) -> None:
    """Not when a session is created, and not later."""
    with pytest.raises(limpet.errors.InvalidEvent):
        await lp.create("support", "ada", labels={"$task": "t1"})
    s = await lp.create("support", "ada", "a", isolation=limpet.Isolation(task="t1"))
    for value in ("t2", None):
        with pytest.raises(limpet.errors.InvalidEvent):
            await s.label({"$task": value}, actor=ADA)
    assert s.labels == {}
    assert len((await lp.list(app="support", task="t1")).items) == 1


async def test_a_fork_has_the_isolation_of_its_original(lp: limpet.Limpet) -> None:
    """At whichever event it begins."""
    s = await lp.create("support", "ada", "a", isolation=APART)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    for fork in (await s.fork(), await s.fork(1)):
        assert fork.isolation == (await lp.get(fork.key)).isolation == APART
    assert len((await lp.list(app="support", task="invoice-7")).items) == 3


@pytest.mark.parametrize("apart", [None, APART], ids=["usual", "apart"])
async def test_a_child_has_its_owner_and_a_task_of_its_own(
    lp: limpet.Limpet, apart: limpet.Isolation | None
) -> None:
    """Everything else of its isolation is that of its parent; no other session has its task."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")
        await turn.delegate("research", "and here")

    s = await lp.create("support", "ada", "a", isolation=apart)
    await s.append("user.message", {"text": "go"}, actor=ADA)
    assert (await lp.wake(s.key, delegates)).error is None
    of = s.isolation
    one, two = (await lp.list(app="research")).items
    assert one.key.user == two.key.user == "ada"
    for head in (one, two):
        mine = head.isolation
        assert (mine.model, mine.users, mine.agents) == (of.model, of.users, of.agents)
        (only,) = (await lp.list(app="research", user="ada", task=str(mine.task))).items
        assert only.key == head.key
    assert len({of.task, one.isolation.task, two.isolation.task}) == 3


async def test_it_stays_with_an_archived_session(lp: limpet.Limpet) -> None:
    """Its stub has it, and is found by its task; so is the session when it is back."""
    s = await lp.create("support", "ada", "a", isolation=APART, actor=ADA)
    await s.complete()
    await s.archive()
    (head,) = (await lp.list(app="support", task="invoice-7")).items
    assert (head.phase, head.isolation) == ("archived", APART)
    assert (await lp.get(s.key, archived=True)).isolation == APART
    await lp.unarchive(s.key, actor=ADA)
    assert (await lp.get(s.key)).isolation == APART


async def test_it_travels_in_files_and_copies(lp: limpet.Limpet, tmp_path: Path) -> None:
    """With the policies of fields; the target finds the session by its task."""
    s = await lp.create("support", "ada", "a", state=Case(), isolation=APART)
    await lp.export(s.key, tmp_path / "s.limpet")
    async with limpet.open("memory://") as other, limpet.open("memory://") as third:
        await other.import_(tmp_path / "s.limpet")
        await lp.copy(s.key, to=third)
        for target in (other, third):
            found = await target.get(s.key)
            assert found.isolation == APART
            assert field_policies_in(found.head.facts) == field_policies_in(s.head.facts)
            assert len((await target.list(app="support", task="invoice-7")).items) == 1


async def test_it_is_bound_to_the_session_and_not_to_its_key(lp: limpet.Limpet) -> None:
    """Who takes the key of a deleted session does not take its isolation."""
    s = await lp.create("support", "ada", "a", isolation=APART)
    await lp.delete(s.key)
    again = await lp.create("support", "ada", "a", reuse_deleted=True)
    assert again.isolation == limpet.Isolation()
    assert (await lp.list(app="support", task="invoice-7")).items == ()


async def test_the_policies_of_fields_are_kept_with_the_session(lp: limpet.Limpet) -> None:
    """As its class declares them; a newer class brings its own with its first write."""
    kept = {"notes": {"read": ["agent"], "write": ["agent"]}}
    s = await lp.create("support", "ada", "a", state=Case())
    assert field_policies_in(s.head.facts) == kept
    async with lp.commit() as c:
        made = c.create("support", "ada", "b", state=Case())
        c.apply(made, {"open": False}, actor="agent:main")
    assert made.version == 2  # nothing is recorded twice
    assert field_policies_in((await lp.get(made.key)).head.facts) == kept
    newer = await lp.get(s.key, state_type=WiderCase)
    assert field_policies_in(newer.head.facts) == kept
    await newer.apply({"notes": "n"}, actor="user:ada")
    wider = {"notes": {"read": ["agent", "owner"]}}
    assert field_policies_in(newer.head.facts) == wider
    fork = await newer.fork()
    assert field_policies_in(fork.head.facts) == wider


async def test_a_session_of_an_earlier_release_gets_them_with_its_next_update(
    lp: limpet.Limpet,
) -> None:
    """It was created with the version of its class and without the policies."""
    packed = limpet.envelope.encode(
        {"open": True, "notes": ""},
        schema_version="1.0.0",
        state_version=1,
        serialized_at_us=1,
    )
    await lp.create("support", "ada", "a", state=limpet.envelope.decode(packed))
    s = await lp.get("support", "ada", "a", state_type=Case)
    assert field_policies_in(s.head.facts) == {}
    await s.apply({"open": False}, actor="agent:main")
    assert field_policies_in(s.head.facts) == {"notes": {"read": ["agent"], "write": ["agent"]}}
    version = s.version
    await s.apply({"open": True}, actor="agent:main")
    assert s.version == version + 1


def test_the_synchronous_verbs_take_it(url: str) -> None:
    """As the others do."""
    with limpet.open_sync(url) as lp:
        s = lp.create("support", "ada", "a", isolation=APART)
        assert s.isolation == APART
        assert lp.app("support").create("ada", "b", isolation=APART).isolation == APART
        assert len(lp.list(app="support", task="invoice-7").items) == 2
