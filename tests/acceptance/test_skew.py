"""A client whose clock differs from the store's: what is compared with recorded times is counted
from the store's clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.session.documents import commit_puts
from limpet.session.writer import writer_of
from limpet.store.clock import Clock
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.sqlite.store import SQLiteStore

ADA = "user:ada"
HOUR = timedelta(hours=1)
HOUR_NS = 3_600 * 10**9


class Ticking:
    """A store's clock that is a millisecond later whenever it is read."""

    def __init__(self) -> None:
        self._ns = time.time_ns()

    def __call__(self) -> int:
        self._ns += 10**6
        return self._ns


@pytest.fixture(params=[-HOUR_NS, HOUR_NS], ids=["behind", "ahead"])
def skew_ns(request: pytest.FixtureRequest) -> int:
    """By how much the clock of the client is wrong."""
    found: int = request.param
    return found


@pytest.fixture
async def skewed(
    url: str, tmp_path: Path, skew_ns: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[limpet.Limpet]:
    """Limpet on a store with the right time, in a process with the wrong one."""
    clock = Clock(Ticking(), Ticking())
    store: Any = MemoryStore(clock)
    if url.startswith("sqlite"):
        store = await SQLiteStore.open(tmp_path / "skewed.db", sync="normal", clock=clock)
    if url.startswith("postgres"):
        store = await PostgresStore.open(url)
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + skew_ns)
    async with limpet.Limpet("skewed://", store=store) as lp:
        yield lp


async def test_memory_goes_back_to_the_checkpoint(skewed: limpet.Limpet) -> None:
    """What was put before it is kept, what was put since is taken back."""
    s = await skewed.create("support", "ada", actor=ADA)
    await s.memory.session.put("a", "old")
    await s.checkpoint()
    await s.memory.session.put("a", "new")
    await s.memory.session.put("b", "new")
    (kept,) = (await s.history.checkpoints()).items
    await commit_puts(writer_of(s).journal, (), await s.memory.session.back_to(kept))
    assert {each.name: each.value for each in await s.memory.session.list()} == {"a": "old"}


async def test_a_checkpoint_is_dated_as_events_are(skewed: limpet.Limpet) -> None:
    """Between the event before it and the event after it."""
    s = await skewed.create("support", "ada", actor=ADA)
    before = await s.append("note.made", {})
    await s.checkpoint()
    after = await s.append("note.made", {})
    (kept,) = (await s.history.checkpoints()).items
    assert before.at <= kept.at <= after.at
    assert s.history.last_checkpoint_at == kept.at


async def test_a_span_counts_from_the_stores_time(skewed: limpet.Limpet) -> None:
    """A timer that is due at once is due, and one of half an hour is not."""
    s = await skewed.create("support", "ada", id="due", actor=ADA)
    await s.lifecycle.set_timer("now", timedelta(0))
    other = await skewed.create("support", "ada", id="later", actor=ADA)
    await other.lifecycle.set_timer("later", HOUR / 2)
    leases = await skewed.work.claim("w", limit=2, lease_seconds=60)
    assert [lease.key.id for lease in leases] == ["due"]


async def test_a_lease_is_judged_by_the_stores_time(skewed: limpet.Limpet) -> None:
    """A session is shown as running while its lease lasts, and no longer."""
    s = await skewed.create("support", "ada", actor=ADA)
    lease = await skewed.work.lock(s.key, worker="w", lease_seconds=600)
    assert (await s.refresh()).status == "running"
    await skewed.work.release(lease)
    assert (await s.refresh()).status == "idle"


async def test_durations_are_of_the_stores_time(skewed: limpet.Limpet) -> None:
    """A new session has not been active for an hour, nor for no time at all."""
    s = await skewed.create("support", "ada", actor=ADA)
    await s.append("note.made", {})
    assert 0 < s.lifecycle.durations.active < 600


async def test_fresh_events_are_not_too_old(skewed: limpet.Limpet) -> None:
    """What was recorded a moment ago is not compacted for its age."""
    s = await skewed.create("support", "ada", actor=ADA)
    for _ in range(5):
        await s.append("note.made", {})
    await s.history.retention(age=HOUR / 2)
    assert (await skewed.maintenance.compact(s.key)).events == 0


async def test_an_absolute_timeout_has_not_passed(skewed: limpet.Limpet) -> None:
    """A session may be renewed until its time is over by the store's clock."""
    timeouts = limpet.Timeouts(idle=HOUR / 4, absolute=HOUR / 2)
    s = await skewed.create("support", "ada", timeouts=timeouts, actor=ADA)
    assert (await s.lifecycle.renew(idle=HOUR / 4)).data


async def test_now_is_the_stores_time(skewed: limpet.Limpet) -> None:
    """Between the event before it and the event after it, in UTC; a closed store has none."""
    s = await skewed.create("support", "ada", actor=ADA)
    before = await s.append("note.made", {})
    now = skewed.now()
    after = await s.append("note.made", {})
    assert before.at <= now <= after.at
    assert now.utcoffset() == timedelta(0)
    await skewed.close()
    with pytest.raises(limpet.errors.StoreClosed):
        skewed.now()
