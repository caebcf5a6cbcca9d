"""Cancelled callers: what they asked for never happened, or is recorded; never in doubt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft, Limpet, Session
from limpet.store import jobs
from tests.support.seeds import seed

ACTOR = "test:cancel"
DEADLINE_SECONDS = 60


@pytest.fixture
async def lp(tmp_path: Path) -> AsyncIterator[Limpet]:
    async with limpet.open(f"sqlite:///{tmp_path / 'cancel.db'}") as lp:
        yield lp


async def turns(count: int) -> None:
    """Let the event loop turn a number of times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_after(count: int, work: Callable[[], Awaitable[Any]], again: int = 0) -> bool:
    """Start, cancel after some turns of the loop (and again while it ends); whether it was."""
    task = asyncio.ensure_future(work())
    await turns(count)
    task.cancel()
    for _ in range(again):
        await turns(1)
        task.cancel()
    try:
        await asyncio.wait_for(asyncio.shield(task), DEADLINE_SECONDS)
    except asyncio.CancelledError:
        assert task.cancelled()
        return True
    return False


async def check(lp: Limpet, session: Session, done: set[str], cancelled: set[str]) -> None:
    """Done is recorded once, cancelled at most once, and the object shows what is stored."""
    await session.refresh(tail=1_000)
    events = await session.read(limit=1_000)
    ids = [event.id for event in events][1:]
    assert len(set(ids)) == len(ids)
    assert done <= set(ids) <= done | cancelled
    assert session.events == events
    assert session.state["n"] == len(ids)
    assert session.state.get("app:n", 0) == len(ids)
    assert (await lp.maintenance.verify()).findings == ()


def one(session: Session, id: str) -> Callable[[], Awaitable[Any]]:
    return lambda: session.append("x.y", actor=ACTOR, id=id, inc={"n": 1, "app:n": 1})


@pytest.mark.parametrize("again", [0, 3])
async def test_a_cancelled_append_never_happened_or_is_recorded(lp: Limpet, again: int) -> None:
    """Cancelled at each turn of the loop until it is too late, once or several times."""
    session = await lp.create("a", "b", state={"n": 0})
    done: set[str] = set()
    cancelled: set[str] = set()
    for count in range(12):
        for number in range(4):
            id = f"{count}-{number}"
            was = await cancelled_after(count, one(session, id), again)
            (cancelled if was else done).add(id)
    assert cancelled
    await check(lp, session, done, cancelled)


async def test_an_append_cancelled_in_a_crowd_takes_nobody_along(lp: Limpet) -> None:
    """Of many appends at once, those cancelled at random leave the others as they are."""
    chance = random.Random(seed("crowd"))
    session = await lp.create("a", "b", state={"n": 0})
    done: set[str] = set()
    cancelled: set[str] = set()
    for round_ in range(25):
        tasks = {
            f"{round_}-{n}": asyncio.ensure_future(one(session, f"{round_}-{n}")())
            for n in range(12)
        }
        await turns(chance.randrange(4))
        for id in chance.sample(list(tasks), 6):
            tasks[id].cancel()
            await turns(chance.randrange(2))
        await asyncio.wait_for(
            asyncio.gather(*tasks.values(), return_exceptions=True), DEADLINE_SECONDS
        )
        for id, task in tasks.items():
            (cancelled if task.cancelled() else done).add(id)
    assert cancelled
    await check(lp, session, done, cancelled)


async def test_a_cancelled_commit_is_whole_or_not_there(lp: Limpet) -> None:
    """append_many and a commit over two sessions are never recorded in part."""
    one, two = [await lp.create("a", "b", id=id, state={"n": 0}) for id in ("1", "2")]

    async def many(mark: str) -> None:
        await one.append_many(
            [Draft(type="x.y", id=f"{mark}.{n}", actor=ACTOR, inc={"n": 1}) for n in range(3)]
        )

    async def both(mark: str) -> None:
        async with lp.commit() as commit:
            for session in (one, two):
                commit.append(session, "x.y", id=f"{mark}.b", actor=ACTOR, inc={"n": 1})

    for count in range(8):
        await cancelled_after(count, lambda c=count: many(f"m{c}"))
        await cancelled_after(count, lambda c=count: both(f"c{c}"))
    ids = {s.key.id: {event.id for event in await s.read(limit=1_000)} for s in (one, two)}
    for count in range(8):
        parts = {f"m{count}.{n}" for n in range(3)} & ids["1"]
        assert len(parts) in (0, 3)
        assert (f"c{count}.b" in ids["1"]) == (f"c{count}.b" in ids["2"])
    for session in (one, two):
        await session.refresh()
        assert session.state["n"] == session.version - 1


async def test_every_other_verb_can_be_cancelled(lp: Limpet) -> None:
    """Creating, updating, labelling, deleting, erasing: done or not, and the store serves on."""
    for count in range(8):
        for again in (0, 2):
            id = f"{count}-{again}"
            await cancelled_after(count, lambda i=id: lp.create("a", "b", id=i), again)
            session = await lp.get_or_create("a", "b", id=id, state={})
            await cancelled_after(count, lambda s=session: s.update(_counted, actor=ACTOR), again)
            await cancelled_after(count, lambda s=session: s.label({"x": "y"}, actor=ACTOR), again)
            await session.refresh()
            said = [event.type for event in await session.read()]
            assert session.state.get("n", 0) == said.count("state.updated")
            assert session.labels == ({"x": "y"} if "session.labeled" in said else {})
            await cancelled_after(count, lambda i=id: lp.delete(("a", "b", i)), again)
            if await lp.find(("a", "b", id)) is not None:
                assert await lp.delete(("a", "b", id))
            await cancelled_after(count, lambda i=id: lp.erase(("a", "b", i)), again)
            assert await lp.erase(("a", "b", id)) is not None
    assert (await lp.maintenance.verify()).findings == ()


def _counted(state: Any) -> dict[str, int]:
    return {"n": state.get("n", 0) + 1}


async def test_a_cancelled_follower_leaves_no_trace(lp: Limpet) -> None:
    """Whoever stops following, waiting or in the middle of a page, is forgotten by the hub."""
    session = await lp.create("a", "b")

    async def follow() -> None:
        async for _ in session.follow():
            await turns(1)

    for count in range(8):
        assert await cancelled_after(count, follow)
        await session.append("x.y", actor=ACTOR)
    seen = [e.seq async for e in _first(session.follow(), session.version)]
    assert seen == list(range(1, session.version + 1))
    assert not lp._journal.hub._topics


async def _first(events: Any, count: int) -> Any:
    async for event in events:
        yield event
        count -= 1
        if not count:
            await events.aclose()
            return


async def test_a_cancelled_verification_and_a_cancelled_backup_are_over(
    lp: Limpet, tmp_path: Path
) -> None:
    """When the cancellation is told nothing goes on behind the caller's back."""
    session = await lp.create("a", "b")
    for _ in range(30):
        await session.append("x.y", {"text": "z" * 3_000}, actor=ACTOR)
    for count in range(6):
        running: list[int] = []
        await cancelled_after(
            count, lambda r=running: lp.maintenance.verify(progress=lambda *_: r.append(1))
        )
        calls = len(running)
        target = tmp_path / f"{count}.bak"
        was = await cancelled_after(count, lambda t=target: lp.maintenance.backup(t))
        there = target.exists()
        assert there or was
        assert not list(tmp_path.glob("*.part")), "a backup is still being written"
        await session.append("x.y", actor=ACTOR)
        assert target.exists() == there
        assert len(running) == calls
        if there:
            async with limpet.open(f"sqlite:///{target}") as copy:
                assert (await copy.maintenance.verify()).ok


async def test_closing_finishes_what_was_handed_over(tmp_path: Path) -> None:
    """Everything that was being written when close was called is recorded or refused, at once."""
    path = tmp_path / "close.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})
        tasks = [asyncio.ensure_future(one(session, str(n))()) for n in range(50)]
        await turns(1)
    results = await asyncio.wait_for(
        asyncio.gather(*tasks, return_exceptions=True), DEADLINE_SECONDS
    )
    done = {str(n) for n, result in enumerate(results) if not isinstance(result, Exception)}
    for result in results:
        assert not isinstance(result, Exception) or isinstance(result, limpet.errors.StoreClosed)
    async with limpet.open(f"sqlite:///{path}") as lp:
        await check(lp, await lp.get(("a", "b", "c")), done, set())


async def test_closing_leaves_nobody_waiting_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers held back because too many wait are served or refused when the store closes."""
    monkeypatch.setattr(jobs, "WAITING_MAX", 4)
    async with limpet.open(f"sqlite:///{tmp_path / 'room.db'}") as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})
        tasks = [asyncio.ensure_future(one(session, str(n))()) for n in range(30)]
        await turns(2)
    done, waiting = await asyncio.wait(tasks, timeout=DEADLINE_SECONDS)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not waiting, f"{len(waiting)} callers wait for ever"
    for task in done:
        assert task.exception() is None or isinstance(task.exception(), limpet.errors.StoreClosed)


async def test_room_is_found_by_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little room everybody is served in the end, though some are cancelled while waiting."""
    monkeypatch.setattr(jobs, "WAITING_MAX", 3)
    chance = random.Random(seed("room"))
    async with limpet.open(f"sqlite:///{tmp_path / 'room.db'}") as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})
        tasks = {str(n): asyncio.ensure_future(one(session, str(n))()) for n in range(80)}
        await turns(2)
        for id in chance.sample(list(tasks), 20):
            tasks[id].cancel()
        await asyncio.wait_for(
            asyncio.gather(*tasks.values(), return_exceptions=True), DEADLINE_SECONDS
        )
        done = {id for id, task in tasks.items() if not task.cancelled()}
        await check(lp, session, done, tasks.keys() - done)


async def test_a_cancelled_close_still_closes(tmp_path: Path) -> None:
    """Cancelled at any turn, closing goes on; a second close waits for its end."""
    for count in range(6):
        path = tmp_path / f"{count}.db"
        lp = await limpet.open(f"sqlite:///{path}").__aenter__()
        session = await lp.create("a", "b", id="c", state={"n": 0})
        await session.append("x.y", {"text": "z" * 30_000}, actor=ACTOR, inc={"n": 1})
        store: Any = lp._journal.store
        await cancelled_after(count, lp.close)
        await asyncio.wait_for(lp.close(), DEADLINE_SECONDS)
        await asyncio.wait_for(store.close(), DEADLINE_SECONDS)
        assert not store._writer.is_alive()
        assert not path.with_name(path.name + "-wal").exists()
        with pytest.raises(limpet.errors.StoreClosed):
            await session.append("x.y", actor=ACTOR)
