"""Bounded history: old events in cold segments are read, repeated, forked and verified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft, InvalidInput
from limpet.store import cold
from limpet.store.postgres.writing import lane
from limpet.store.sqlite import writer
from tests.support.seal import FixedKeySeal

Made = limpet.Session[Any]
KEY = limpet.Key("shop", "ada", "1")


@pytest.fixture(params=["memory", "sqlite", "sealed sqlite", "postgresql", "sealed postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, FixedKeySeal | None]:
    """Every store, also under a seal."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?sync=normal"
    if request.param.endswith("postgresql"):
        url = request.getfixturevalue("postgres_store_url")
    return url, FixedKeySeal() if request.param.startswith("sealed") else None


@pytest.fixture
async def lp(place: tuple[str, FixedKeySeal | None]) -> AsyncIterator[limpet.Limpet]:
    async with limpet.open(place[0], seal=place[1]) as opened:
        yield opened


@pytest.fixture(autouse=True)
def many_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder with a rung every few events, and segments of few events."""
    monkeypatch.setattr(writer, "SNAPSHOT_FLOOR_BYTES", 4_096)
    monkeypatch.setattr(lane, "SNAPSHOT_FLOOR_BYTES", 4_096)
    monkeypatch.setattr(cold, "EVENTS_MAX", 16)
    monkeypatch.setattr(cold, "EVENTS_MIN", 4)


async def talk(lp: limpet.Limpet, events: int = 60) -> Made:
    """A session with inputs, shared names, ids of its own and long texts."""
    s = await lp.create("shop", "ada", "1", state={"n": 0}, actor="agent:main")
    for number in range(events - 1):
        if number % 10 == 0:
            said = await s.append("user.said", {"text": f"hello {number}"}, id=f"id-{number}")
            await s.mark_processed([said.seq])
        text = f"turn {number} " * (20 if number % 7 else 200)
        await s.append("agent.said", {"text": text}, inc={"n": 1}, set={"app:last": number})
    return s


async def everything(s: Made) -> dict[str, Any]:
    """All that can be read of a session, in every way."""
    seqs = range(1, s.version + 1)
    return {
        "up": await paged(s, reverse=False),
        "down": await paged(s, reverse=True),
        "typed": await s.read(types=["user.*"], limit=1_000),
        "middle": await s.read(after=5, before=30, limit=1_000),
        "states": [await s.history.at(seq) for seq in seqs],
        "ids": await s.read_ids([f"id-{n}" for n in range(0, 60, 10)]),
        "blame": await s.history.blame("n"),
        "pending": await s.pending(),
        "tail": (await s.refresh(tail=50)).events,
    }


async def paged(s: Made, *, reverse: bool) -> list[limpet.Event]:
    found: list[limpet.Event] = []
    where: dict[str, Any] = {}
    while page := await s.read(limit=7, reverse=reverse, **where):
        found += page
        where = {"before" if reverse else "after": page[-1].seq}
        if page[-1].seq == 1 and reverse:
            break
    return found


async def test_cold_events_are_read_as_if_they_were_hot(lp: limpet.Limpet) -> None:
    """In both directions, by type, by id, state by state; and everything still verifies."""
    s = await talk(lp)
    before = await everything(s)
    await lp.policies.retention("shop", events=10)
    done = await lp.maintenance.compact()
    assert (done.sessions, done.events) == (1, s.version - 10)
    assert await everything(s) == before
    report = await lp.maintenance.verify()
    assert (report.findings, report.events >= s.version) == ((), True)
    assert (await lp.maintenance.compact()).events == 0


async def test_a_session_goes_on_over_its_cold_events(lp: limpet.Limpet) -> None:
    """Repeats of cold ids are recognised, new ones are recorded; more is moved later."""
    s = await talk(lp)
    await lp.policies.retention("shop", events=10)
    await lp.maintenance.compact(KEY)
    repeat = await s.append("user.said", {"text": "hello 0"}, id="id-0")
    assert (repeat.repeated, repeat.seq) == (True, 2)
    fresh = await lp.get(KEY, actor="agent:main")
    assert (await fresh.append("user.said", {"text": "x"}, id="id-10")).repeated
    some = [limpet.Draft(type="user.said", id=id) for id in ("new", "id-0", "newer")]
    assert [e.repeated for e in await fresh.append_many(some)] == [False, True, False]
    for _ in range(5):
        await fresh.append("agent.said", inc={"n": 1})
    await lp.maintenance.compact()
    before = await everything(fresh)
    assert [event.seq for event in before["up"]] == [*range(1, fresh.version + 1)]
    assert (await lp.maintenance.verify()).ok


async def test_what_is_pending_stays_hot(lp: limpet.Limpet) -> None:
    """It stays until it is processed; what follows it is moved, but never the newest event."""
    s = await talk(lp, 20)
    waiting = await s.append("user.said", {"text": "still here"})
    for _ in range(10):
        await s.append("agent.said", inc={"n": 1})
    await lp.policies.retention("shop", events=1)
    assert (await lp.maintenance.compact()).events == s.version - 2
    assert [event.seq for event in await s.pending()] == [waiting.seq]
    await s.mark_processed([waiting.seq])
    await lp.maintenance.compact()
    assert (await s.read(after=waiting.seq - 1, limit=1))[0].processed == s.version
    assert (await lp.maintenance.compact()).events == 0
    assert (await lp.maintenance.verify()).ok


async def test_forks_read_through_cold_events(lp: limpet.Limpet) -> None:
    """Of a parent that is compacted before or after, and when it is deleted or erased."""
    s = await talk(lp)
    early = await s.fork(20, id="early")
    before = await paged(early, reverse=False)
    await lp.policies.retention("shop", events=5)
    await lp.maintenance.compact()
    assert await paged(early, reverse=False) == before
    late = await s.fork(33, id="late")
    assert await late.history.at(34) == await s.history.at(33)
    assert (await lp.maintenance.verify()).ok
    await lp.delete(KEY)
    assert await paged(early, reverse=False) == before
    assert (await lp.maintenance.verify()).ok
    for fork in (early, late):
        await lp.delete(fork.key)
    await lp.erase(KEY)
    assert (await lp.maintenance.verify()).ok


async def test_a_fork_is_compacted_down_to_its_floor(lp: limpet.Limpet) -> None:
    """Its own events only; what it reads of its parent stays there."""
    s = await talk(lp, 10)
    fork = await s.fork(8, id="f")
    for _ in range(20):
        await fork.append("agent.said", inc={"n": 1})
    before = await everything(fork)
    await lp.policies.retention("shop", events=3)
    await lp.maintenance.compact(fork.key)
    assert await everything(fork) == before
    assert (await lp.maintenance.verify()).ok


async def test_age_is_a_limit_too(lp: limpet.Limpet) -> None:
    """What is older is moved; both limits together move what either does."""
    s = await talk(lp, 20)
    await lp.policies.retention("shop", age=timedelta(days=1))
    assert (await lp.maintenance.compact()).events == 0
    later = lp._journal.now_us() + 2 * 86_400_000_000
    lp._journal.now_us = lambda: later
    assert (await lp.maintenance.compact()).events == s.version - 1
    await lp.policies.retention("shop")
    with pytest.raises(InvalidInput, match="no limits"):
        await lp.maintenance.compact(KEY)


async def test_a_cold_session_is_exported_and_copied(lp: limpet.Limpet, tmp_path: Path) -> None:
    """With the same events, times and links."""
    s = await talk(lp)
    await lp.policies.retention("shop", events=10)
    await lp.maintenance.compact()
    links = [event.link for event in await s.read(limit=1_000)]
    await lp.export(KEY, tmp_path / "one.limpet")
    async with limpet.open("memory://") as other:
        await other.import_(tmp_path / "one.limpet")
        there = await other.get(KEY)
        assert [event.link for event in await there.read(limit=1_000)] == links
        assert (await other.maintenance.verify()).ok


async def test_the_feed_goes_on_beyond_what_was_moved(lp: limpet.Limpet) -> None:
    """No position is given twice, and a follower that has read the rest misses nothing."""
    s = await talk(lp, 20)
    at = await lp.position()
    await lp.policies.retention("shop", events=1)
    await lp.maintenance.compact()
    made = await s.append("agent.said", inc={"n": 1})
    async for entry in lp.watch(after=at):
        if entry.key == KEY:
            assert entry.event.seq == made.seq
            break


async def test_cold_segments_take_about_a_third_of_the_rows(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chat in many words, with the hashes of its ids."""
    if lp.url == "memory://":
        pytest.skip("memory has no rows")
    monkeypatch.setattr(writer, "SNAPSHOT_FLOOR_BYTES", 64 * 2**10)
    monkeypatch.setattr(lane, "SNAPSHOT_FLOOR_BYTES", 64 * 2**10)
    monkeypatch.setattr(cold, "EVENTS_MAX", 2_048)
    s = await lp.create("shop", "ada", "1", actor="agent:main")
    for start in range(0, 2_000, 500):
        drafts = [_turn(number) for number in range(start, start + 500)]
        await s.append_many(drafts)
    await lp.policies.retention("shop", events=100)
    done = await lp.maintenance.compact()
    assert done.events == 1_901
    assert done.segment_bytes <= 0.35 * done.rows_bytes


def _turn(number: int) -> Draft:
    words = f"Order {number * 7919 % 10_007} is on its way; it arrives on day {number % 28}."
    return Draft(type="agent.message", data={"text": words}, set={f"order {number % 50}": number})
