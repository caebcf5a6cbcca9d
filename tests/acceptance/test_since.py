"""Which events a load brings: the last few, all since a time, or the last few of those."""

from __future__ import annotations

import pytest

from limpet import Draft, Event, Limpet, Session
from limpet.model.limits import PAGE_MAX, TAIL_LOADED


async def _log(s: Session) -> tuple[Event, ...]:
    return (await s.read(limit=1_000)) + (await s.read(after=1_000, limit=1_000))


@pytest.fixture
async def long(s: Session) -> Session:
    """A session of many events, each with a time of its own or nearly so."""
    for number in range(90):
        await s.append("note.made", {"n": number}, actor="test:since")
    return s


async def test_since_alone_brings_every_event_since_then(lp: Limpet, long: Session) -> None:
    """From the first event of that very time on, however many there are beyond a usual tail."""
    log = await _log(long)
    for place in (0, 1, 30, 45, 91):
        since = log[place].at
        loaded = await lp.get(long.key, since=since)
        assert loaded.events == tuple(event for event in log if event.at >= since)
        assert loaded.state == (await lp.get(long.key)).state


async def test_a_tail_alone_is_the_last_so_many(lp: Limpet, long: Session) -> None:
    """And twenty if nothing is said."""
    log = await _log(long)
    assert (await lp.get(long.key)).events == log[-TAIL_LOADED:]
    assert (await lp.get(long.key, tail=50)).events == log[-50:]


async def test_a_tail_among_those_since_a_time(lp: Limpet, long: Session) -> None:
    """The last so many of them, and no others if there are fewer."""
    log = await _log(long)
    for place, tail in ((10, 5), (10, 60), (85, 60), (85, 0)):
        recent = tuple(event for event in log if event.at >= log[place].at)
        loaded = await lp.get(long.key, tail=tail, since=log[place].at)
        assert loaded.events == recent[len(recent) - min(tail, len(recent)) :]


async def test_since_long_ago_keeps_the_newest_without_a_gap(lp: Limpet, s: Session) -> None:
    """As many as a page holds, and they end at the session's version."""
    await s.append_many([Draft(type="note.made", actor="test:since")] * (PAGE_MAX + 50))
    loaded = await lp.get(s.key, since=s.head.created_at)
    seqs = [event.seq for event in loaded.events]
    assert seqs == [*range(s.version - PAGE_MAX + 1, s.version + 1)]
