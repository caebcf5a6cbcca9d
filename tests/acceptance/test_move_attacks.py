"""Moves that somebody, or bad luck, works against: each of these lost something once, or hung."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, errors
from limpet.model import Key
from limpet.session.limpet import journal_of
from limpet.session.move import arrivals, mover
from limpet.session.runs.delegation import head_of
from limpet.store.memory import MemoryStore
from limpet.testing.clock import FakeClock

KEY = Key("support", "ada", "c1")
ADA = "user:ada"


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Limpet, Limpet, FakeClock]]:
    """Two nodes in memory, and the clock of both."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        made = [
            Limpet(f"memory://{name}", store=MemoryStore(clock.clock()), node=name) for name in "ab"
        ]
        a, b = [await stack.enter_async_context(lp) for lp in made]
        yield a, b, clock


async def _new(lp: Limpet, key: Key = KEY, events: int = 3) -> limpet.Session[Any]:
    s = await lp.create(*(key.app, key.user, key.id), state={"n": 0}, actor=ADA)
    for _ in range(events):
        await s.append("user.message", {"text": "hi"}, inc={"n": 1})
    return s


async def _owners(key: Key, *lps: Limpet) -> list[str]:
    heads = {lp.node: await head_of(journal_of(lp), key) for lp in lps}
    return [node for node, head in heads.items() if head and "departed" not in head.facts]


async def test_an_older_copy_of_the_source_is_not_moved_over_what_has_arrived(
    tmp_path: Path,
) -> None:
    """A source that was restored from a backup has events that the target lacks: they would be
    lost, and the answer would be success."""
    one, two = tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db"
    async with limpet.open(f"sqlite:///{one}", node="a") as a:
        await _new(a)
    shutil.copy(one, tmp_path / "old.db")
    async with limpet.open(f"sqlite:///{one}", node="a") as a, limpet.open(two, node="b") as b:
        assert (await a.move(KEY, b)).success
    async with (
        limpet.open(f"sqlite:///{tmp_path}/old.db", node="a") as restored,
        limpet.open(two, node="b") as b,
    ):
        s = await restored.get(KEY, actor=ADA)
        await s.append("user.message", {"text": "precious"})
        moved = await restored.move(KEY, b)
        assert (moved.success, moved.reason) == (False, "exists")
        with pytest.raises(errors.SessionExists):
            await restored.prestage(KEY, b)
        assert (await s.read(limit=1, reverse=True))[0].data == {"text": "precious"}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_movers_at_once_move_it_once(tmp_path: Path, kind: str, *, force: bool) -> None:
    """To the same target all say that it is there, or those in each other's way leave it here,
    whole, for the next attempt; to another, one moves it and one says where it is."""
    forms = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/%s.db"}
    urls = [forms[kind].replace("%s", name) for name in "abc"]
    async with (
        limpet.open(urls[0], node="a") as a,
        limpet.open(urls[1], node="b") as b,
        limpet.open(urls[2], node="c") as c,
    ):
        await _new(a, events=30)
        every = await asyncio.gather(*[a.move(KEY, b, force=force) for _ in range(3)])
        here = [moved for moved in every if not moved.success]
        assert all([moved.reason in ("refused", "transfer", "family") for moved in here])
        assert len(await _owners(KEY, a, b, c)) == 1
        assert (await a.move(KEY, b, force=force)).success
        other = await _new(a, Key("support", "ada", "c2"))
        ends = await asyncio.gather(
            *[a.move(other.key, to, force=force) for to in (b, c)], return_exceptions=True
        )
        assert sorted([type(end).__name__ for end in ends]) == ["Moved", "SessionMoved"]
        assert len(await _owners(other.key, a, b, c)) == 1
        assert (await (await b.get(KEY)).refresh()).state["n"] == 30


@pytest.mark.parametrize("first", [0, 1])
async def test_a_family_arrives_at_once_whoever_finishes_it(
    nodes: tuple[Limpet, Limpet, FakeClock], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The mover died when parent and child had their keys; the target's sweep finishes with either
    of them, and dies too; the next drain goes on. One arrived alone, and nobody could decide."""
    a, b, _ = nodes
    parent = await _new(a)
    child = await a.spawn(parent, task="greet", id="kid")
    take = arrivals.Arrivals._take_keys

    async def taken(self: Any, found: Any) -> None:
        await take(self, found)
        raise asyncio.CancelledError

    monkeypatch.setattr(arrivals.Arrivals, "_take_keys", taken)
    with pytest.raises(asyncio.CancelledError):
        await a.drain(b)
    monkeypatch.undo()
    assert await _owners(KEY, a, b) == []
    heads = await mover.arriving(b._services)
    assert {head.key for head in heads} == {parent.key, child.key}
    assert await mover.finish_arrival(b._services, heads[first], set())
    for key in (parent.key, child.key):
        assert await _owners(key, a, b) == ["b"]
    assert (await a.drain(b)).ok
    await (await b.get(child.key, actor=ADA)).complete("done")
    assert (await b.wait_for_children(parent.key)).done == {child.key: "done"}


async def test_a_refused_family_returns_whole_if_one_of_it_was_refused_before(
    nodes: tuple[Limpet, Limpet, FakeClock],
) -> None:
    """Somebody who knew of the child alone has refused it: the parent never arrives without it."""
    a, b, _ = nodes
    parent = await _new(a)
    child = await a.spawn(parent, task="greet", id="kid")
    there = arrivals.Arrivals(b._services, "b")
    refused = arrivals.Arrival(child.key, (await child.refresh()).head.uid, 1, "a")
    assert await there.refuse((refused,), "an operator said so") == "refused"
    assert not (await a.drain(b)).ok
    for key in (parent.key, child.key):
        assert await _owners(key, a, b) == ["a"]
    assert (await a.drain(b)).ok, "with the next epoch"


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "postgres"])
async def test_a_blob_that_comes_after_the_departure_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The mover has sent all blobs by then: one that was accepted would be lost. So would a fork,
    which nobody takes along."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(kind)
    if kind == "postgres":
        from tests.support import postgres

        url = request.getfixturevalue("any_postgres").url
        await postgres.empty(url)
    async with (
        limpet.open(url or f"files:///{tmp_path}/a", node="a") as a,
        limpet.open("memory://", node="b") as b,
    ):
        s = await _new(a)
        kept = await s.blobs.put(b"before", "image/png")
        assert (await a.move(KEY, b)).success
        with pytest.raises(errors.SessionMoved):
            await s.blobs.put(b"after", "image/png")
        with pytest.raises(errors.SessionMoved):
            await s.fork(id="fork")
        there = await b.get(KEY, actor=ADA)
        assert await there.blobs.get(kept) == b"before"
        await there.blobs.put(b"after", "image/png")


async def test_a_sweep_of_the_target_keeps_what_is_being_staged(
    nodes: tuple[Limpet, Limpet, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old the events are: the session was idle for days, not the move."""
    a, b, clock = nodes
    monkeypatch.setattr(mover, "PIECE_EVENTS", 8)
    s = await _new(a, events=40)
    clock.advance(timedelta(days=3))
    assert (await a.prestage(KEY, b)).events > 40
    await b.work.sweep()
    assert (await a.prestage(KEY, b)).events == 0
    clock.advance(timedelta(hours=20))
    await a.prestage(KEY, b)  # somebody still means to move it
    clock.advance(timedelta(hours=20))
    await b.work.sweep()
    assert (await a.prestage(KEY, b)).events == 0
    clock.advance(timedelta(days=2))
    await b.work.sweep()  # nobody does any more
    commit, swept = arrivals.Arrivals.commit, 0

    async def sweeping(self: Any, commits: Any) -> Any:
        nonlocal swept
        swept += 1
        await b.work.sweep()
        return await commit(self, commits)

    monkeypatch.setattr(arrivals.Arrivals, "commit", sweeping)
    moved = await a.move(KEY, b)
    assert moved.success
    assert moved.events > 40
    assert swept > 5
    assert (await b.get(KEY)).state["n"] == s.state["n"] == 40


async def test_a_share_that_begins_while_its_source_departs_shows_nothing_stale(
    nodes: tuple[Limpet, Limpet, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the source has left is not live; and it can be taken back."""
    a, b, _ = nodes
    source, target = await _new(a), await _new(a, Key("support", "ada", "c2"))
    ends, begun = mover.Mover._live_shares, list[limpet.Shared]()

    async def meanwhile(self: Any, member: Any) -> Any:
        ended = await ends(self, member)
        if not begun:
            begun.append(await source.share(target, "n", sync="live"))
        return ended

    monkeypatch.setattr(mover.Mover, "_live_shares", meanwhile)
    assert (await a.move(KEY, b)).success
    with pytest.raises(errors.ShareNotFound):
        await target.read_shared(begun[0].id)


async def test_a_share_with_a_session_that_moved_can_be_taken_back(
    nodes: tuple[Limpet, Limpet, FakeClock],
) -> None:
    a, b, _ = nodes
    source, target = await _new(a), await _new(a, Key("support", "ada", "c2"))
    snapshot = await source.share(target, "n", sync="snapshot")
    assert (await a.move(target.key, b)).success
    await source.unshare(snapshot.id)
    assert (await source.read(limit=1, reverse=True))[0].type == "session.unshared"
    with pytest.raises(errors.ShareNotFound):
        await (await b.get(target.key, actor=ADA)).read_shared(snapshot.id)


async def test_a_family_of_more_than_a_commit_takes_is_refused_with_a_reason(
    nodes: tuple[Limpet, Limpet, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has departed then, nothing is staged, and nothing is locked."""
    a, b, _ = nodes
    monkeypatch.setattr(mover, "FAMILY_MAX", 3)
    parent = await _new(a)
    for number in range(3):
        await a.spawn(parent, task="greet", id=f"kid{number}")
    report = await a.drain(b)
    assert {each.reason for each in report.refused} == {"family"}
    assert len(report.refused) == 4
    assert "3 at most move together" in report.refused[0].detail
    assert await a.work.release(await a.work.lock(KEY, worker="w"))
    assert await _owners(KEY, a, b) == ["a"]
    assert [head async for head in arrivals.Arrivals(b._services, "b").staged(KEY)] == []


async def test_what_a_session_contributed_is_decided_expires_and_is_withdrawn_after_it_moved(
    nodes: tuple[Limpet, Limpet, FakeClock],
) -> None:
    """Its log is elsewhere, and what it contributed is here: one call still removes all of it."""
    a, b, clock = nodes
    s = await _new(a)
    texts = ["tea is hot", "ice is cold", "the sky is blue", "rain is wet"]
    made = [
        await a.propose(text, provenance=KEY, confidence=0.9, to="org:acme", ttl=timedelta(days=9))
        for text in texts
    ]
    short = await a.propose(
        "it is noon", provenance=KEY, confidence=0.9, to="org:acme", ttl=timedelta(hours=1)
    )
    for proposal in (*made[:2], short):
        await a.decide(proposal, accept=True, reason="true")
    assert (await a.move(s.key, b)).success
    assert (await a.decide(made[2], accept=True, reason="true")).status == "accepted"
    clock.advance(timedelta(hours=2))
    swept = await a.work.sweep()
    assert swept.failed == ()
    assert sorted([item.text for item in await a.recall("org:acme")]) == sorted(texts[:3])
    assert await a.withdraw(KEY) == 3
    assert await a.recall("org:acme") == ()
    assert {each.status for each in await a.proposals()} == {"withdrawn", "expired"}


async def test_who_waits_for_children_learns_that_the_family_has_moved(
    nodes: tuple[Limpet, Limpet, FakeClock],
) -> None:
    """Before or while it waits: their ends are recorded elsewhere."""
    a, b, _ = nodes
    parent = await _new(a)
    child = await a.spawn(parent, task="greet", id="kid")
    waiting = asyncio.ensure_future(a.wait_for_children(parent))
    await asyncio.sleep(0)
    assert (await a.drain(b)).ok
    async with asyncio.timeout(60):
        with pytest.raises(errors.SessionMoved):
            await waiting
    with pytest.raises(errors.SessionMoved):
        await a.wait_for_children(parent, timeout=0)
    await (await b.get(child.key, actor=ADA)).complete("done")
    assert (await b.wait_for_children(parent.key)).done == {child.key: "done"}


async def test_what_was_staged_of_an_erased_session_goes(
    nodes: tuple[Limpet, Limpet, FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover died after the departure, and the source was erased: nobody finishes, and the
    target does not keep its copy."""
    a, b, clock = nodes
    await _new(a)

    async def dies(self: Any, found: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(arrivals.Arrivals, "publish", dies)
    with pytest.raises(asyncio.CancelledError):
        await a.move(KEY, b)
    monkeypatch.undo()
    await a.erase(KEY)
    there = arrivals.Arrivals(b._services, "b")
    await b.work.sweep()
    assert {part async for _, _, part in there.staged(KEY)} > {"log"}, "somebody may finish it"
    clock.advance(timedelta(days=2))
    await b.work.sweep()
    assert [part async for _, _, part in there.staged(KEY)] == []
