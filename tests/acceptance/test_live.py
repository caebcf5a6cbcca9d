"""Partials from any process, and one feed reader for any number of followers."""

from __future__ import annotations

import asyncio
import logging
import random
import string
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

import limpet
from limpet import Draft, Event, InvalidInput, Limpet, Session, errors
from limpet.model.values import freeze
from limpet.session.history import checkpoints as keeping
from limpet.store import open as opening
from limpet.store.memory import MemoryStore
from limpet.store.open import sqlite_path
from limpet.store.postgres.reading import feed as postgres_feed
from limpet.store.protocol import Partial, Touched
from limpet.store.sqlite import live
from limpet.store.sqlite.store import SQLiteStore
from tests.support.heard import Heard
from tests.support.processes import Child
from tests.support.seal import FixedKeySeal

SOON = 60.0  # seconds; what is awaited comes at once, or the test has failed
KEY = ("support", "ada", "one")


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Limpet, Limpet]]:
    """Two instances on one store, as in two processes."""
    shared = MemoryStore() if url.startswith("memory:") else None
    async with AsyncExitStack() as stack:
        opened = [Limpet(url, store=shared) for _ in range(2)]
        for lp in opened:
            await stack.enter_async_context(lp)
        yield opened[0], opened[1]


@pytest.fixture
async def heard(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Heard]:
    heard = Heard(caplog)
    logging.getLogger("limpet").addHandler(heard)
    yield heard
    logging.getLogger("limpet").removeHandler(heard)


async def take(following: AsyncIterator[Event], count: int) -> list[Event]:
    """The next `count` events."""
    async with asyncio.timeout(SOON):
        return [await anext(following) for _ in range(count)]


async def begun(lp: Limpet, **how: Any) -> AsyncIterator[Event]:
    """A follower that has met the first event: from here on it is there for partials."""
    following = lp.session(*KEY).follow(**how)
    assert [e.seq for e in await take(following, 1)] == [1]
    return following


async def caught_up(s: Session, following: AsyncIterator[Event]) -> None:
    """Let the follower meet a partial: it has read everything, and will not read again unasked."""
    await say(s, "ready", id="ready")
    assert told(await take(following, 1)) == ["ready"]


async def say(s: Session, text: str, **more: Any) -> Event:
    """Publish a partial."""
    how = {"id": "final", "actor": "agent:a", **more}
    return await s.append("agent.message", {"text": text}, partial=True, **how)


def told(events: list[Event]) -> list[Any]:
    """Recorded events by seq, partials by their text."""
    return [e.data["text"] if e.partial else e.seq for e in events]


# --- partials ------------------------------------------------------------------------------------


async def test_partials_reach_followers_of_other_instances(two: tuple[Limpet, Limpet]) -> None:
    """As they were published: the final event's id, seq 0, the attempt; then the final event."""
    here, there = two
    s = await here.create(*KEY, actor="agent:a")
    following = await begun(there)
    sent = [
        await say(s, "h"),
        await say(s, "he", attempt=2, trace=limpet.Trace(cause="c", wake_id="w")),
    ]
    met = await take(following, 2)
    assert met == sent
    assert [(e.seq, e.id, e.attempt, e.partial) for e in met] == [
        (0, "final", 1, True),
        (0, "final", 2, True),
    ]
    final = await s.append("agent.message", {"text": "hello"}, id="final")
    assert await take(following, 1) == [final]
    assert (final.attempt, final.partial) == (0, False)


async def test_followers_may_leave_partials_out(two: tuple[Limpet, Limpet]) -> None:
    """With partials=False only recorded events come, here and elsewhere."""
    here, there = two
    s = await here.create(*KEY)
    without = [await begun(lp, partials=False) for lp in two]
    with_ = await begun(there)
    await say(s, "h")
    assert told(await take(with_, 1)) == ["h"]
    await s.append("a.b", actor="x")
    for following in without:
        assert told(await take(following, 1)) == [2]


async def test_only_wanted_types_of_partials_come(two: tuple[Limpet, Limpet]) -> None:
    """`types` selects partials as it selects recorded events."""
    here, there = two
    s = await here.create(*KEY)
    following = await begun(there, types=["session.*", "agent.message"])
    await s.append("agent.thought", {"text": "hm"}, actor="x", partial=True)
    await say(s, "h")
    assert told(await take(following, 1)) == ["h"]


async def test_a_partial_never_comes_after_its_final_event(two: tuple[Limpet, Limpet]) -> None:
    """Once that was delivered, what is late is dropped, here and elsewhere."""
    s = await two[0].create(*KEY)
    followers = [await begun(lp) for lp in two]
    await s.append("agent.message", {"text": "hello"}, id="final", actor="x")
    for following in followers:
        assert told(await take(following, 1)) == [2]
    await say(s, "late")
    await say(s, "next", id="other")
    for following in followers:
        assert told(await take(following, 1)) == ["next"]


async def test_an_earlier_attempt_ends_with_the_next(two: tuple[Limpet, Limpet]) -> None:
    """What a replaced publisher still says is dropped, here and elsewhere."""
    one, other = (lp.session(*KEY, actor="agent:a") for lp in two)
    await two[0].create(*KEY)
    followers = [await begun(lp) for lp in two]
    await say(one, "old", attempt=1)
    for following in followers:
        assert told(await take(following, 1)) == ["old"]
    await say(other, "new", attempt=2)
    for following in followers:
        assert told(await take(following, 1)) == ["new"]
    await say(one, "still old", attempt=1)
    await say(one, "newer", attempt=2)
    for following in followers:
        assert told(await take(following, 1)) == ["newer"]


async def test_a_partial_comes_after_what_its_publisher_had_recorded(
    two: tuple[Limpet, Limpet],
) -> None:
    """Also for a follower elsewhere that is still reading up on older events."""
    here, there = two
    s = await here.create(*KEY, actor="x")
    following = await begun(there)
    await s.append_many([Draft(type="a.b")] * 150)
    await say(s, "after 151")
    met = told(await take(following, 151))
    assert met == [*range(2, 152), "after 151"]


async def test_a_handle_that_was_never_loaded_may_publish(two: tuple[Limpet, Limpet]) -> None:
    """Its partials arrive elsewhere all the same; those for no session at all go nowhere."""
    here, there = two
    await here.create(*KEY)
    following = await begun(there)
    await say(here.session("support", "ada", "nobody"), "to nobody")
    await say(here.session(*KEY), "h")
    assert told(await take(following, 1)) == ["h"]


async def test_partials_of_a_sealed_store_cross_and_are_sealed(tmp_path: Path) -> None:
    """The file between the processes holds no text."""
    path, seal = tmp_path / "a.db", FixedKeySeal()
    async with (
        limpet.open(f"sqlite:///{path}", seal=seal) as here,
        limpet.open(f"sqlite:///{path}", seal=seal) as there,
    ):
        s = await here.create(*KEY)
        following = await begun(there)
        await say(s, "a secret to keep")
        assert told(await take(following, 1)) == ["a secret to keep"]
        assert b"a secret to keep" not in live.live_path(path).read_bytes()
        assert len(rows(path)) == 1


async def test_an_attempt_is_a_count_of_a_partial(s: Session) -> None:
    """Anything else is refused before anything is published or recorded."""
    for attempt in (0, -1, True, "1", None):
        with pytest.raises(InvalidInput):
            await s.append("a.b", partial=True, attempt=attempt, actor="x")
    with pytest.raises(InvalidInput):
        await s.append("a.b", attempt=2, actor="x")
    with pytest.raises(InvalidInput):
        s.follow(partials=1)
    assert (await s.refresh()).version == 2


async def test_partials_cross_processes(url: str) -> None:
    """A process that follows meets what another says, in its place, and the final event once."""
    if url.startswith("memory:"):
        pytest.skip("a memory store is of one process")
    async with limpet.open(url) as lp:
        s = await lp.create(*KEY, actor="x")
        with Child("tests.support.partials", url, *KEY) as child:
            assert (await asyncio.to_thread(child.line) or "").startswith("event 1 ")
            for turn in range(2, 5):
                for text in ("a", "ab"):
                    await say(s, text, id=f"final-{turn}", attempt=turn)
                    line = await asyncio.to_thread(child.line)
                    assert line == f"partial 0 {turn} final-{turn} {text}"
                await s.append("agent.message", {"text": "abc"}, id=f"final-{turn}")
                assert await asyncio.to_thread(child.line) == f"event {turn} final-{turn}"


# --- the file beside a database ------------------------------------------------------------------


def rows(path: Path) -> list[str]:
    """The ids of the sessions whose partials the file holds."""
    conn = apsw.Connection(str(live.live_path(path)), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [str(row[0]) for row in conn.execute("SELECT id FROM ring ORDER BY n")]
    finally:
        conn.close()


def files(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()}


async def test_the_file_is_made_when_somebody_follows(file_url: str) -> None:
    """Neither appends nor partials that nobody follows make one."""
    path = sqlite_path(file_url)
    async with limpet.open(file_url) as lp:
        s = await lp.create(*KEY, actor="x")
        await say(s, "to nobody")
        await s.append("a.b")
        following = await begun(lp, partials=False)
        assert "support.db-live" not in files(path)
        await following.aclose()
        following = await begun(lp)
        assert "support.db-live" in files(path)
        await following.aclose()
    assert files(path) == {"support.db", "support.db-live"}


async def test_partials_that_nobody_else_follows_are_not_written(file_url: str) -> None:
    """Followers of the same instance get them from memory."""
    path = sqlite_path(file_url)
    async with limpet.open(file_url) as lp:
        s = await lp.create(*KEY)
        event = await say(s, "h")
        store: Any = lp._journal.store
        here, there = store.channel(), store.channel()
        await here.subscribe(lambda: None)
        await here.publish([limpet_partial(s, event, "h")])
        assert rows(path) == []
        await there.subscribe(lambda: None)
        await here.publish([limpet_partial(s, event, "h")])
        assert rows(path) == ["one"]
        await here.close()
        await there.close()


@pytest.mark.parametrize("end", ["delete", "erase"])
async def test_ending_a_session_removes_its_partials(file_url: str, end: str) -> None:
    """Those of other sessions stay, and nothing of the removed ones is in the file."""
    path = sqlite_path(file_url)
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        s = await here.create(*KEY)
        other = await here.create("support", "ada", id="two")
        following, beside = await begun(there), there.session(other.key).follow()
        await take(beside, 1)
        await say(s, "something private")
        await say(other, "kept")
        assert told(await take(following, 1)) == ["something private"]
        assert told(await take(beside, 1)) == ["kept"]
        assert rows(path) == ["one", "two"]
        await (here.delete if end == "delete" else here.erase)(s.key)
        assert rows(path) == ["two"]
        assert b"something private" not in live.live_path(path).read_bytes()


async def test_the_last_follower_leaves_no_partials_behind(file_url: str) -> None:
    """Closing takes them out of the file."""
    path = sqlite_path(file_url)
    async with limpet.open(file_url) as here:
        s = await here.create(*KEY)
        async with limpet.open(file_url) as there:
            following = await begun(there)
            await say(s, "h")
            await take(following, 1)
            assert rows(path) == ["one"]
        assert rows(path) == []


@pytest.mark.parametrize("how", ["removed", "damaged"])
async def test_a_lost_file_costs_partials_and_nothing_else(
    file_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded events come as ever, and partials again once the file was made again."""
    monkeypatch.setattr(live, "KEEP_SECONDS", 0.01)
    path = live.live_path(sqlite_path(file_url))
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        s = await here.create(*KEY, actor="x")
        following = await begun(there)
        if how == "removed":
            path.unlink()
        else:
            path.write_bytes(b"not a database" * 4_096)
        recorded = [(await s.append("a.b")).seq for _ in range(3)]
        speaking = asyncio.create_task(speak(s))
        met = [e async for e in until_partial(following)]
        speaking.cancel()
        assert told(met[:-1]) == recorded
        assert (await here.maintenance.verify()).ok


async def speak(s: Session) -> None:
    """Publish partials, on and on."""
    while True:
        await say(s, "again")
        await asyncio.sleep(0.001)


async def until_partial(following: AsyncIterator[Event]) -> AsyncIterator[Event]:
    async with asyncio.timeout(SOON):
        async for event in following:
            yield event
            if event.partial:
                return


async def test_a_ring_that_is_full_makes_room(file_url: str) -> None:
    """Partials of any number and size keep the file within its bound; the newest are there."""
    path = live.live_path(sqlite_path(file_url))
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        s = await here.create(*KEY)
        following = await begun(there)
        store: Any = here._journal.store
        channel = store.channel()
        event = await say(s, "x")
        await take(following, 1)
        for n in range(40):
            text = "".join(random.Random(n).choices(string.printable, k=30_000))
            many = [limpet_partial(s, event, f"{n}{text}")] * 10
            await channel.publish(many)
        await channel.publish([limpet_partial(s, event, f"last{text}")] * 10)
        assert path.stat().st_size <= live.PAGES_MAX * 4_096
        assert [e async for e in until_text(following, "last")]
        await channel.close()


def limpet_partial(s: Session, event: Event, text: str) -> Any:
    return Partial(s.key, s.head.uid, 1, replace(event, data=freeze({"text": text})))


async def until_text(following: AsyncIterator[Event], text: str) -> AsyncIterator[Event]:
    async with asyncio.timeout(SOON):
        async for event in following:
            yield event
            if event.data["text"].startswith(text):
                return


async def test_a_store_that_is_only_read_makes_no_file_and_hears_others(file_url: str) -> None:
    """It takes what the ring holds for others, and writes nothing."""
    path = sqlite_path(file_url)
    async with limpet.open(file_url) as here:
        s = await here.create(*KEY, actor="x")
        async with Limpet(file_url, store=await opening.look_at(file_url)) as looking:
            following = await begun(looking)
            await s.append("a.b")
            assert told(await take(following, 1)) == [2]
            await following.aclose()
        assert "support.db-live" not in files(path)
        async with (
            limpet.open(file_url) as there,
            Limpet(file_url, store=await opening.look_at(file_url)) as looking,
        ):
            loud = await begun(there)
            quiet = await begun(looking)
            await take(quiet, 1)
            await take(loud, 1)
            await say(s, "h")
            assert told(await take(loud, 1)) == told(await take(quiet, 1)) == ["h"]


async def test_a_copy_has_no_partials(file_url: str, tmp_path: Path) -> None:
    """A backup is the database alone, and a restored one begins without a live channel."""
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        s = await here.create(*KEY)
        following = await begun(there)
        await say(s, "said and gone")
        await take(following, 1)
        await here.maintenance.backup(tmp_path / "copy.db")
    assert b"said and gone" not in (tmp_path / "copy.db").read_bytes()
    assert not (tmp_path / "copy.db-live").exists()


async def test_what_fails_about_the_file_is_logged(file_url: str, heard: Heard) -> None:
    """Once, by the type of the error; recorded events come all the same."""
    path = live.live_path(sqlite_path(file_url))
    async with limpet.open(file_url) as lp:
        s = await lp.create(*KEY, actor="x")
        path.mkdir()
        following = await begun(lp)
        assert heard.one("live channel not opened")["error"] == "CantOpenError"
        await s.append("a.b")
        assert told(await take(following, 1)) == [2]
        await following.aclose()
        path.rmdir()
        path.write_bytes(b"not a database" * 4_096)
        await lp.delete(s.key)
        assert heard.one("live channel removed")["error"] == "NotADBError"
    assert not path.exists()


# --- one reader for all --------------------------------------------------------------------------


class Counting(SQLiteStore):
    """Counts what is asked of it."""

    reads = 0
    looks = 0

    async def read(self, *args: Any, **how: Any) -> tuple[Event, ...]:
        self.reads += 1
        return await super().read(*args, **how)

    async def touched(self, after: str) -> Touched:
        self.looks += 1
        return await super().touched(after)


async def idle(following: AsyncIterator[Event]) -> asyncio.Task[Event]:
    """A follower that waits for the second event."""
    await take(following, 1)
    return asyncio.ensure_future(anext(following))


async def test_a_foreign_commit_costs_one_look_however_many_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle followers are left alone: their sessions are not read."""
    monkeypatch.setattr(keeping, "FRESH_US", 3_600_000_000)  # rules are read once, however slowly
    path, followers, commits = tmp_path / "a.db", 200, 30
    store: Any = await Counting.open(path, sync="normal")
    async with (
        Limpet("sqlite:///a", store=store) as here,
        limpet.open(f"sqlite:///{path}?sync=normal") as there,
    ):
        made = [await here.create("a", "u", id=str(n), actor="x") for n in range(followers)]
        tasks = [await idle(s.follow()) for s in made]
        busy = there.session(made[0].key, actor="x")
        for _ in range(1_000):  # until each has looked once more, and found nothing
            await asyncio.sleep(0)
        # Three more may be for the rules of the app: its checkpoints, its limits, its switches.
        assert store.reads - 2 * followers in (0, 1, 2, 3)
        reads, looks = store.reads, store.looks
        for n in range(commits):
            await busy.append("a.b", {"n": n})
        assert (await asyncio.wait_for(tasks[0], SOON)).seq == 2
        other = there.session(made[1].key, actor="x")
        await other.append("a.b")
        assert (await asyncio.wait_for(tasks[1], SOON)).seq == 2
        assert store.looks - looks <= commits + 4
        assert store.reads - reads <= 8
        assert not any(task.done() for task in tasks[2:])


async def test_followers_of_one_session_share_what_is_read(tmp_path: Path) -> None:
    """A hundred that wait at the same place cost one read, and each gets every event."""
    store: Any = await Counting.open(tmp_path / "a.db", sync="normal")
    async with Limpet("sqlite:///a", store=store) as lp:
        s = await lp.create(*KEY, actor="x")
        followers = [s.follow() for _ in range(100)]
        tasks = [await idle(each) for each in followers]
        for _ in range(50):
            await asyncio.sleep(0)
        reads = store.reads
        await s.append_many([Draft(type="a.b")] * 5)
        assert {e.seq for e in await asyncio.gather(*tasks)} == {2}
        for following in followers:
            assert told(await take(following, 4)) == [3, 4, 5, 6]
        assert store.reads - reads <= 20


async def test_followers_elsewhere_hear_of_endings_among_other_commits(
    two: tuple[Limpet, Limpet],
) -> None:
    """A deletion leaves the feed without an entry, and is noticed though others write."""
    here, there = two
    kept = await here.create("support", "ada", id="kept", actor="x")
    for id, end, error in (
        ("1", here.delete, errors.SessionDeleted),
        ("2", here.erase, errors.SessionErased),
    ):
        s = await here.create("support", "ada", id=id, actor="x")
        waiting = await idle(there.session(s.key).follow())
        await asyncio.gather(kept.append("a.b"), end(s.key), kept.append("a.b"))
        with pytest.raises(error):
            await asyncio.wait_for(waiting, SOON)


async def test_a_transaction_left_open_holds_no_follower_up(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events above it are followed, though the feed hands them out later; also beyond a page."""
    monkeypatch.setattr(postgres_feed, "TOUCHED", 3)
    async with limpet.open(postgres_store_url) as here, limpet.open(postgres_store_url) as there:
        s = await here.create(*KEY, actor="x")
        other = await here.create("support", "ada", id="two", actor="x")
        following = await begun(there)
        late = await asyncpg.connect(postgres_store_url)
        try:
            transaction = late.transaction()
            await transaction.start()
            await late.fetchval("SELECT pg_current_xact_id()")
            await caught_up(s, following)
            await s.append("a.b")
            assert told(await take(following, 1)) == [2]
            await caught_up(s, following)
            for _ in range(5):
                await other.append("a.b")
            await s.append("a.b")
            assert told(await take(following, 1)) == [3]
            await transaction.rollback()
        finally:
            await late.close()
        await caught_up(s, following)
        await s.append("a.b")
        assert told(await take(following, 1)) == [4]
