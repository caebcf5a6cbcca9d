"""Bounded history: limits of apps and of sessions are kept by themselves, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.session.history import retention as bounds
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.limpet import Limpet
from limpet.store import cold

Made = limpet.Session[Any]
KEY = limpet.Key("shop", "ada", "1")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few events, and little slack."""
    monkeypatch.setattr(cold, "EVENTS_MAX", 16)
    monkeypatch.setattr(cold, "EVENTS_MIN", 4)
    monkeypatch.setattr(bounds, "SLACK_MIN", 8)


async def made(lp: Limpet, key: limpet.Key = KEY) -> Made:
    return await lp.create(key.app, key.user, key.id, state={"n": 0}, actor="agent:main")


async def talk(s: Made, events: int) -> None:
    for _ in range(events):
        await s.append("agent.said", {"text": "hello"}, inc={"n": 1})


async def settled(lp: Limpet) -> None:
    """Return when what follows from commits has been done."""
    await store_checkpoints(lp._journal).bounds.settled()


async def hot(lp: Limpet, key: limpet.Key = KEY) -> int:
    """How many events of a session the feed still has: those that are not cold."""
    return len([each async for each in _feed(lp) if each.key == key])


async def _feed(lp: Limpet) -> AsyncIterator[limpet.FeedEntry]:
    store: Any = lp._journal.store
    after = None
    while True:
        page, after = await store.changes(after, app="shop", key=None, limit=100)
        if not page:
            return
        for each in page:
            yield each


async def whole(s: Made) -> list[int]:
    """The seqs of everything that can be read."""
    found: list[int] = []
    while page := await s.read(after=found[-1] if found else 0, limit=50):
        found += [event.seq for event in page]
    return found


async def test_history_may_be_kept_for_longer_than_people_live(lp: limpet.Limpet) -> None:
    """An age of a thousand years is an age."""
    s = await lp.create("shop", "ada", actor="user:ada")
    await s.history.retention(age=timedelta(days=365_000), actor="user:ada")
    assert (await lp.get(s.key)).head.facts["retention"] == {"age_us": 365_000 * 86_400_000_000}


async def test_a_history_beyond_the_limit_of_its_app_is_evicted_by_itself(lp: Limpet) -> None:
    """Nobody calls compact; the newest stay hot, all is read, and repeats are still recognised."""
    await lp.policies.retention("shop", events=20)
    s = await made(lp)
    first = await s.append("agent.said", {"text": "first"}, id="mine", inc={"n": 1})
    for _ in range(5):
        await talk(s, 20)
        await settled(lp)
        assert await hot(lp) <= 20 + 8 + 20
    await talk(s, 8)
    await settled(lp)
    assert 20 <= await hot(lp) <= 28
    assert await whole(s) == [*range(1, s.version + 1)]
    assert (await s.history.at(12))["n"] == 11
    again = await s.append("agent.said", {"text": "first"}, id="mine", inc={"n": 1})
    assert (again.seq, again.repeated) == (first.seq, True)
    assert (await lp.maintenance.verify()).findings == ()


async def test_a_session_has_limits_of_its_own(lp: Limpet) -> None:
    """They come before those of its app, also where that has none; without any, the app's count."""
    bounded, other = await made(lp), await made(lp, limpet.Key("shop", "ada", "2"))
    await bounded.history.retention(events=10)
    for s in (bounded, other):
        await talk(s, 40)
    await settled(lp)
    assert await hot(lp) <= 10 + 8
    assert await hot(lp, other.key) == other.version
    await lp.policies.retention("shop", events=30)
    await bounded.history.retention(events=100)
    for s in (bounded, other):
        await talk(s, 60)
    await settled(lp)
    assert await hot(lp) >= 60
    assert await hot(lp, other.key) <= 30 + 8
    await bounded.history.retention(events=None)
    await talk(bounded, 1)
    await settled(lp)
    assert await hot(lp) <= 30 + 8
    assert await whole(bounded) == [*range(1, bounded.version + 1)]


async def test_limits_are_read_as_they_were_set(url: str) -> None:
    """Of a session, also when it is opened again; each call replaces the last, and None ends it."""
    async with limpet.open(url) as lp:
        s = await made(lp)
        assert s.history.limits is None
        await s.history.retention(events=500)
        limits = s.history.limits
        assert limits is not None
        assert (limits.events, limits.age) == (500, None)
        await s.history.retention(age=timedelta(days=30))
        limits = (await lp.get(s.key)).history.limits
        assert limits is not None
        assert (limits.events, limits.age) == (None, timedelta(days=30))
        version = s.version
        with pytest.raises(limpet.InvalidInput, match="events=None"):
            await s.history.retention()
        with pytest.raises(limpet.InvalidInput, match="names no limit"):
            await s.history.retention(actor="user:ada")
        assert (s.version, s.history.limits) == (version, limits)
        await s.history.retention(age=None)
        assert s.history.limits is None
    with limpet.open_sync(url) as sync:
        again = sync.get(KEY.app, KEY.user, KEY.id) if "memory" not in url else None
        if again is not None:
            assert again.history.limits is None
            again.history.retention(events=9, actor="user:ada")
            assert again.history.limits is not None
            assert again.history.limits.events == 9


async def test_the_policies_of_an_app_are_read_as_they_were_set(url: str) -> None:
    """By any process; None before they are set, and once they are gone."""
    policy = limpet.CheckpointPolicy(
        every=timedelta(hours=1), before=True, events=("agent.*",), full_every=3, keep=7
    )
    async with limpet.open(url) as lp:
        assert await lp.policies.checkpointing_of("shop") is None
        assert await lp.policies.retention_of("shop") is None
        await lp.policies.checkpointing("shop", policy)
        await lp.policies.retention("shop", events=5, age=timedelta(days=1), every=timedelta(1))
        assert await lp.policies.checkpointing_of("shop") == policy
        limits = await lp.policies.retention_of("shop")
        assert limits is not None
        assert (limits.events, limits.age, limits.every) == (5, timedelta(1), timedelta(1))
        assert await lp.policies.checkpointing_of("other") is None
        await lp.policies.checkpointing("shop", None)
        await lp.policies.retention("shop")
        assert await lp.policies.checkpointing_of("shop") is None
        assert await lp.policies.retention_of("shop") is None
        for read in (lp.policies.checkpointing_of, lp.policies.retention_of):
            with pytest.raises(limpet.InvalidInput):
                await read("$$checkpointing")
            with pytest.raises(limpet.InvalidInput):
                await read(None)  # type: ignore[arg-type]  # what is refused


async def test_a_session_with_limits_of_its_own_gives_its_app_none(lp: Limpet) -> None:
    """What is kept of the app, so that sweeps look at its sessions, is no limit."""
    s = await made(lp)
    await s.history.retention(events=5)
    assert await lp.policies.retention_of("shop") is None


async def test_what_came_while_it_was_evicted_is_evicted_too(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to write once more for it."""
    began, go_on, compact_one = asyncio.Event(), asyncio.Event(), bounds.compact_one

    async def held(*of: Any) -> Any:
        done = await compact_one(*of)
        began.set()
        await go_on.wait()
        return done

    monkeypatch.setattr(bounds, "compact_one", held)
    await lp.policies.retention("shop", events=10)
    s = await made(lp)
    await talk(s, 20)
    await began.wait()
    await talk(s, 30)
    go_on.set()
    await settled(lp)
    assert await hot(lp) <= 10 + 8


async def test_a_sweep_evicts_what_nobody_writes_to(lp: Limpet) -> None:
    """Once in a while it looks at every session of an app with limits, page by page."""
    keys = [limpet.Key("shop", "ada", f"{number}") for number in range(5)]
    for key in keys:
        await talk(await made(lp, key), 30)
    await talk(await made(lp, limpet.Key("other", "ada", "1")), 30)
    await lp.policies.retention("shop", events=10)
    evicted, sweeps, more = 0, 0, True
    while more:
        swept = await lp.work.sweep(limit=2)
        evicted, sweeps, more = evicted + swept.evicted, sweeps + 1, swept.more
    assert sweeps >= 3
    assert evicted == 5 * 21
    assert [await hot(lp, key) for key in keys] == [10] * 5
    assert (await lp.work.sweep()).evicted == 0
    assert (await lp.maintenance.verify()).findings == ()


async def test_a_sweep_looks_again_after_the_time_between(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`every` says how often; by age events become cold though nothing is written."""
    monkeypatch.setattr(bounds, "SLACK_MIN", 1_000)  # commits evict nothing here
    async with limpet.open(url) as lp:
        s = await made(lp)
        await talk(s, 30)
        await lp.policies.retention("shop", age=timedelta(days=30), every=timedelta(hours=6))
        assert (await lp.work.sweep()).evicted == 0
        later = lp._journal.now_us() + 31 * 86_400 * 1_000_000
        monkeypatch.setattr(lp._journal, "now_us", lambda: later)
        assert (await lp.work.sweep()).evicted == 30  # all but the newest event
        await lp.policies.retention("shop", events=1, every=timedelta(hours=6))
        await talk(s, 1)
        soon = later + 3_600 * 1_000_000
        monkeypatch.setattr(lp._journal, "now_us", lambda: soon)
        assert (await lp.work.sweep()).evicted == 0  # not yet
        due = later + 7 * 3_600 * 1_000_000
        monkeypatch.setattr(lp._journal, "now_us", lambda: due)
        assert (await lp.work.sweep()).evicted == 1


async def test_what_is_pending_does_not_make_it_try_again_and_again(lp: Limpet) -> None:
    """Inputs that wait stay hot, and nothing else is there; the next try comes after so many."""
    await lp.policies.retention("shop", events=10)
    s = await made(lp)
    store: Any = lp._journal.store
    calls: list[int] = []
    compact = store.compact

    async def counted(key: limpet.Key, *, upto: int) -> Any:
        calls.append(upto)
        return await compact(key, upto=upto)

    store.compact = counted
    for _ in range(60):
        await s.append("user.said", {"text": "wait"})
    await settled(lp)
    assert 1 <= len(calls) <= 10
    assert await hot(lp) >= 60


async def test_an_input_that_waits_holds_nothing_back(lp: Limpet) -> None:
    """Everything around it is moved, as far as the limits say; it is still pending, in order, and
    is moved when it was processed."""
    await lp.policies.retention("shop", events=50)
    s = await made(lp)
    waiting = await s.append("user.said", {"text": "wait"})
    for _ in range(6):
        await s.append_many([limpet.Draft(type="agent.said", data={"n": 1})] * 100)
    await settled(lp)
    await lp.maintenance.compact()
    assert await hot(lp) == 51
    assert [event.seq for event in await s.pending()] == [waiting.seq]
    assert await whole(s) == [*range(1, 603)]
    assert (await s.read(after=1, limit=1))[0] == waiting
    await s.mark_processed([waiting.seq])
    moved = await lp.maintenance.compact()
    assert (moved.events, await hot(lp)) == (2, 50)
    (done,) = await s.read(after=1, limit=1)
    assert (done.processed, done.processed_us) == (603, s.events[-1].at_us)
    assert (await lp.maintenance.verify()).ok


async def test_a_chat_without_a_worker_is_evicted_too(lp: Limpet) -> None:
    """Every message of its user is pending; what the agent said is moved around them."""
    await lp.policies.retention("shop", events=10)
    s = await made(lp)
    for _ in range(50):
        await s.append("user.message", {"text": "hello"})
        await talk(s, 1)
    await settled(lp)
    await lp.maintenance.compact()
    assert await hot(lp) == 5 + 50
    assert await whole(s) == [*range(1, 102)]
    assert len(await s.pending()) == 50
    assert s.head.pending == 50
    assert (await lp.maintenance.verify()).ok


async def test_no_caller_waits_for_eviction_and_closing_ends_it(url: str) -> None:
    """A commit is answered before, and a store that is closed meanwhile closes cleanly."""
    async with limpet.open(url) as lp:
        await lp.policies.retention("shop", events=10)
        s = await made(lp)
        started = store_checkpoints(lp._journal).bounds
        while started._task is None:
            await talk(s, 1)
        assert s.version >= 18
    assert started._task is None or started._task.done()


async def test_limits_that_make_no_sense_are_refused(lp: Limpet) -> None:
    """A number from 1 on, and times that are not negative."""
    s = await made(lp)
    wrong: list[dict[str, Any]] = [{"events": 0}, {"events": True}, {"age": timedelta(-1)}]
    for how in wrong:
        with pytest.raises(limpet.InvalidInput):
            await s.history.retention(**how)
        with pytest.raises(limpet.InvalidInput):
            await lp.policies.retention("shop", **how)
    with pytest.raises(limpet.InvalidInput):
        await lp.policies.retention("shop", events=5, every=5)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(limpet.InvalidInput, match="no limits"):
        await lp.maintenance.compact(s.key)
