"""Followers on PostgreSQL: over restarts and dropped connections every event comes once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

import limpet
from limpet.session import follow as watch
from limpet.store.postgres import store
from tests.support.postgres import Server, terminate_backends

KEY = ("shop", "ada", "a")
PATIENCE_SECONDS = 60.0


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened after it poll once in a long while."""
    monkeypatch.setattr(store, "POLL_SECONDS", 1e9)


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[tuple[limpet.Limpet, limpet.Limpet]]:
    """A writer's instance and a follower's, on one database with one session."""
    async with limpet.open(postgres_url) as here, limpet.open(postgres_url) as there:
        await here.create(*KEY[:2], id=KEY[2])
        yield here, there


class Follower:
    """A task that keeps what it is shown."""

    def __init__(self, lp: limpet.Limpet) -> None:
        self._lp = lp
        self.seen: list[limpet.Event] = []

    async def __aenter__(self) -> Follower:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def reached(self, seq: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.seen) < seq:
            assert time.monotonic() < deadline, f"{len(self.seen)} of {seq} events came"
            assert not self._task.done(), "the follower has ended"
            await asyncio.sleep(0.005)

    async def _follow(self) -> None:
        async for event in self._lp.session(KEY).follow():
            self.seen.append(event)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["clean", "crash"])
async def test_a_follower_across_a_restart_sees_every_event_once(
    postgres_server: Server, two: tuple[limpet.Limpet, limpet.Limpet], how: signal.Signals
) -> None:
    """The server goes away and comes back twice while events are written and followed."""
    here, there = two
    session = here.session(KEY, actor="x")
    async with Follower(there) as follower, Follower(here) as near:
        for _ in range(2):
            for _ in range(10):
                await session.append("a.b")
            restart = asyncio.create_task(asyncio.to_thread(postgres_server.restart, how))
            while not restart.done():
                await session.append("a.b")
            await restart
        last = (await session.append("a.b")).seq
        for each in (follower, near):
            await each.reached(last)
            assert [event.seq for event in each.seen] == list(range(1, last + 1))


async def test_a_follower_whose_lines_are_cut_sees_every_event_once(
    postgres_server: Server, two: tuple[limpet.Limpet, limpet.Limpet]
) -> None:
    """Ended backends cost a follower nothing but time."""
    here, there = two
    session = here.session(KEY, actor="x")
    admin = await asyncpg.connect(postgres_server.url)
    async with Follower(there) as follower:
        for n in range(60):
            last = (await session.append("a.b", {"n": n})).seq
            if n % 15 == 7:
                await terminate_backends(admin)
        await follower.reached(last)
    await admin.close()
    assert [event.seq for event in follower.seen] == list(range(1, last + 1))


async def test_hints_come_again_after_a_restart(
    postgres_server: Server, seldom: None, two: tuple[limpet.Limpet, limpet.Limpet]
) -> None:
    """A follower hears, and does not only poll: here it would poll once in a long while."""
    here, there = two
    session = here.session(KEY, actor="x")
    async with Follower(there) as follower:
        await follower.reached((await session.append("a.b")).seq)
        await asyncio.to_thread(postgres_server.restart)
        for _ in range(20):
            await follower.reached((await session.append("a.b")).seq)


async def test_a_watch_over_a_crash_misses_nothing(
    postgres_server: Server, postgres_url: str
) -> None:
    """Numbers of transactions that left no trace are given again: no position may rest on them."""
    async with limpet.open(postgres_url) as lp:
        session = await lp.create(*KEY[:2], id=KEY[2], actor="x")
        admin = await asyncpg.connect(postgres_url)
        for _ in range(50):
            await admin.execute("SELECT pg_current_xact_id()")
        await admin.close()
        feed = watch.feed_of(lp._journal.store)
        _, position = await feed.changes(None, app=None, key=None, limit=100)
        await asyncio.to_thread(postgres_server.restart, signal.SIGQUIT)
        await session.append("a.b")
        changes, _ = await feed.changes(position, app=None, key=None, limit=100)
        assert [change.event.type for change in changes] == ["a.b"]
