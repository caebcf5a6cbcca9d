"""Session memory goes back by the order of the store: two clients whose clocks differ, as those of
clients of one server do by the time that a reply takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import limpet
from limpet.model import Commit
from limpet.model.facts import checkpoints as facts
from limpet.model.facts.documents import CHECKPOINT
from limpet.model.keys import checkpoints_of
from limpet.session.documents import Internal, Put, commit_puts
from limpet.session.history.checkpoint_log import Checkpoint
from limpet.session.life.memory import COLLECTION
from limpet.session.writer import writer_of
from limpet.store.clock import Clock
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock

ADA = "user:ada"
KEY = limpet.Key("support", "ada", "one")
LATE_US = 5_000_000


class LateClock(ServerClock):
    """What a client knows of the server's clock when every reply took seconds."""

    def now_us(self) -> int:
        return super().now_us() - LATE_US


@pytest.fixture
async def stores(url: str, tmp_path: Path) -> tuple[Any, Any]:
    """One store, as a client with the right time and one that is late have it."""
    if url.startswith("postgres"):
        return await PostgresStore.open(url), await PostgresStore.open(url, clock=LateClock())
    if url.startswith("sqlite"):
        path = tmp_path / "late.db"
        late = Clock(lambda: time.time_ns() - LATE_US * 1_000)
        return (
            await SQLiteStore.open(path, sync="normal"),
            await SQLiteStore.open(path, sync="normal", clock=late),
        )
    store = MemoryStore(FakeClock().clock())  # nothing is later than anything
    return store, store


@pytest.fixture
async def two(stores: tuple[Any, Any]) -> AsyncIterator[tuple[limpet.Limpet, limpet.Limpet]]:
    async with AsyncExitStack() as opened:
        lps = [limpet.Limpet("clients://", store=store) for store in stores]
        prompt, late = [await opened.enter_async_context(lp) for lp in lps]
        yield prompt, late


async def made(session: limpet.Session) -> Checkpoint:
    """A checkpoint of the session now."""
    await session.checkpoint(full=True)
    return (await session.history.checkpoints(limit=1)).items[0]


async def remembered(session: limpet.Session) -> dict[str, Any]:
    return {each.name: each.value for each in await session.memory.session.list()}


async def go_back(session: limpet.Session, checkpoint: Checkpoint) -> None:
    puts = await session.memory.session.back_to(checkpoint)
    await commit_puts(writer_of(session).journal, (), puts)


async def test_what_was_there_before_a_late_clients_checkpoint_stays(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """The checkpoint has the earlier date, and the later place."""
    prompt, late = two
    here = await prompt.create("support", "ada", "one", actor=ADA)
    there = await late.get(KEY, actor=ADA)
    await here.memory.session.put("a", "old")
    checkpoint = await made(there)
    await here.memory.session.put("a", "new")
    await go_back(here, checkpoint)
    assert await remembered(there) == {"a": "old"}


async def test_what_a_late_client_put_after_a_checkpoint_does_not_stay(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """It has the earlier date: neither a new entry nor a new value of an old one is kept."""
    prompt, late = two
    here = await prompt.create("support", "ada", "one", actor=ADA)
    there = await late.get(KEY, actor=ADA)
    await there.memory.session.put("a", "old")
    checkpoint = await made(here)
    await there.memory.session.put("a", "new")
    await there.memory.session.put("b", "new")
    await go_back(here, checkpoint)
    assert await remembered(there) == {"a": "old"}


async def test_an_entry_that_was_deleted_by_going_back_comes_back_with_its_checkpoint(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """Going back is ordered like a put: forth again, and back over it."""
    prompt, late = two
    here = await prompt.create("support", "ada", "one", actor=ADA)
    there = await late.get(KEY, actor=ADA)
    first = await made(here)
    await here.memory.session.put("a", 1)
    second = await made(there)
    await go_back(here, first)
    third = await made(there)
    await here.memory.session.put("a", 2)
    await here.memory.session.put("b", 2)
    for checkpoint, expected in ((third, {}), (second, {}), (first, {})):
        await go_back(there, checkpoint)
        assert await remembered(here) == expected
    await here.memory.session.put("a", 3)
    await go_back(there, second)
    assert await remembered(here) == {"a": 1}


async def marks(session: limpet.Session, name: str) -> list[int]:
    """The checkpoints that the versions of an entry follow, the oldest first."""
    documents = Internal(writer_of(session).journal, COLLECTION, owner=(KEY.app, KEY.user))
    found = [each.name for each in (await documents.list()).items]
    (whole,) = [each for each in found if each.endswith(f"/{name}")]
    return [event.data[CHECKPOINT] for event in await documents.recorded(whole)][::-1]


async def test_a_put_follows_the_newest_checkpoint_of_any_client(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """What a client knew of checkpoints when it put before is not taken for true."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    there = await two[1].get(KEY, actor=ADA)
    for _ in range(3):
        await here.memory.session.put("a", "x")
        await here.memory.session.put("a", "y")
        await there.checkpoint()
    assert await marks(here, "a") == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("earlier", [0, 1])
async def test_a_checkpoint_between_a_look_and_the_put_is_noticed(
    two: tuple[limpet.Limpet, limpet.Limpet], earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first one of a session: the log of its checkpoints was not there a moment ago."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    there = await two[1].get(KEY, actor=ADA)
    for _ in range(earlier):
        await there.checkpoint()
    journal = writer_of(here).journal
    commit = journal.commit

    async def later(commits: Any) -> Any:
        monkeypatch.setattr(journal, "commit", commit)
        await there.checkpoint()
        return await commit(commits)

    monkeypatch.setattr(journal, "commit", later)
    await here.memory.session.put("a", "x")
    assert await marks(here, "a") == [earlier + 1]


async def test_puts_at_once_of_one_object_each_follow_the_newest_checkpoint(
    two: tuple[limpet.Limpet, limpet.Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is sent again, since its entry is new, after another learned of a checkpoint."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    there = await two[1].get(KEY, actor=ADA)
    turn = Put.turn

    async def later(put: Put, error: Any) -> None:
        monkeypatch.setattr(Put, "turn", turn)
        await there.checkpoint()
        await here.memory.session.put("b", "x")
        await turn(put, error)

    monkeypatch.setattr(Put, "turn", later)
    await here.memory.session.put("a", "x")
    assert (await marks(here, "a"), await marks(here, "b")) == ([1], [1])


async def test_a_put_is_held_against_the_checkpoints_while_another_looks(
    two: tuple[limpet.Limpet, limpet.Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of them is good until more is known: one that is made now is noticed."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    there = await two[1].get(KEY, actor=ADA)
    store, turn = type(writer_of(here).journal.store), Put.turn
    load, answered = store.load, asyncio.Event()
    looks: list[asyncio.Future[None]] = []

    async def held_back(*args: Any, **how: Any) -> Any:
        await answered.wait()
        return await load(*args, **how)

    async def later(put: Put, error: Any) -> None:
        monkeypatch.setattr(store, "load", held_back)
        assert put.interval is not None
        looks.append(asyncio.ensure_future(put.interval.look_again()))
        await asyncio.sleep(0)
        monkeypatch.undo()
        await there.checkpoint()
        await turn(put, error)

    monkeypatch.setattr(Put, "turn", later)
    await here.memory.session.put("a", "x")
    answered.set()
    await asyncio.gather(*looks)
    assert await marks(here, "a") == [1]


async def test_a_session_that_ends_between_a_look_and_the_put_begins_no_log(
    two: tuple[limpet.Limpet, limpet.Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the entry nor a log of checkpoints is left of it."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    journal = writer_of(here).journal
    commit = journal.commit

    async def later(commits: Any) -> Any:
        monkeypatch.setattr(journal, "commit", commit)
        await two[1].delete(KEY)
        return await commit(commits)

    monkeypatch.setattr(journal, "commit", later)
    with pytest.raises(limpet.errors.SessionDeleted):
        await here.memory.session.put("a", "x")
    assert await remembered(here) == {}
    with pytest.raises((limpet.SessionNotFound, limpet.errors.SessionDeleted)):
        await journal.store.load(checkpoints_of(KEY), tail=0, scopes=False)


async def test_checkpoints_of_another_session_under_the_key_do_not_count(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """Their log begins again with the first entry or the first checkpoint."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    journal, log = writer_of(here).journal, checkpoints_of(KEY)
    names = ("seq", "checksum", "full", "trigger", "size", "at_us")
    row = dict(zip(names, (1, "00", False, "test", 0, 0), strict=True))
    old = (facts.checkpoints_created(log, "another"), facts.recorded({"number": 5, **row}))
    drafts = tuple([journal.prepare_plain(each, ADA) for each in old])
    await journal.commit((Commit(log, drafts, 0),))
    await here.memory.session.put("a", "x")
    await made(here)
    await here.memory.session.put("a", "y")
    assert await marks(here, "a") == [0, 1]


async def test_the_memory_of_a_session_that_is_gone_takes_no_more(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """Another one under its key begins with nothing; a handle on nothing at all may remember."""
    here = await two[0].create("support", "ada", "one", actor=ADA)
    loose = two[0].session(KEY, actor=ADA)  # it means whatever is there
    for session in (here, loose):
        await session.memory.session.put("a", "x")
    await two[1].delete(KEY)
    with pytest.raises(limpet.errors.SessionDeleted):
        await here.memory.session.put("a", "y")
    again = await two[1].create("support", "ada", "one", actor=ADA, reuse_deleted=True)
    with pytest.raises(limpet.errors.SessionDeleted):
        await here.memory.session.put("a", "y")
    assert await remembered(again) == {}
    await again.memory.session.put("a", "z")
    assert await marks(again, "a") == [0]
    await loose.refresh()
    await loose.memory.session.put("b", "z")
    assert await remembered(again) == {"a": "z", "b": "z"}
    nobody = two[0].session("support", "ada", "nobody", actor=ADA)
    await nobody.memory.session.put("a", "x")
    assert await nobody.memory.session.get("a") == "x"


async def test_a_resumed_session_remembers_what_it_did_at_its_checkpoint(
    postgres_store_url: str,
) -> None:
    """On a server, by all five phases, after damage: the checkpoint is a late client's."""
    url = postgres_store_url
    late_store = await PostgresStore.open(url, clock=LateClock())
    late = limpet.Limpet("clients://", store=late_store)
    async with limpet.open(url) as prompt, late:
        here = await prompt.create("support", "ada", "one", state={"n": 1}, actor=ADA)
        await here.memory.session.put("a", "old")
        await made(await late.get(KEY, actor=ADA))
        for name in "ab":
            await here.memory.session.put(name, "new")
        await here.append("agent.message", {"text": "x"}, set={"n": 2})
        await here.suspend()
    conn = await asyncpg.connect(url)
    await conn.execute("UPDATE limpet.events SET body = '' WHERE type = 'agent.message'")
    await conn.execute("DELETE FROM limpet.snapshots WHERE seq >= 2")
    await conn.close()
    async with limpet.open(url) as lp:
        session, report = await lp.resume(KEY, fallback=True, actor=ADA)
        assert (report.checkpoint, dict(session.values)) == (1, {"n": 1})
        assert await remembered(session) == {"a": "old"}


async def test_an_object_of_a_deleted_session_remembers_no_episode_for_the_next(
    two: tuple[limpet.Limpet, limpet.Limpet],
) -> None:
    """Another session under its key begins with nothing."""
    lp, _ = two
    old = await lp.create("support", "ada", "one", actor=ADA)
    await lp.delete(KEY)
    with pytest.raises(limpet.errors.SessionDeleted):
        await old.memory.episodic.put("late", 1)
    new = await lp.create("support", "ada", "one", actor=ADA, reuse_deleted=True)
    with pytest.raises(limpet.errors.SessionDeleted):
        await old.memory.episodic.put("late", 1)
    assert await new.memory.episodic.list() == ()
