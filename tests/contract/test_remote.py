"""A store behind a server against the contract: memory, SQLite and PostgreSQL, over a websocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from limpet.model import FrozenDict
from limpet.ops import Set
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Store
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, addition, create, draft, key
from limpet.testing.contract import (
    BlobLaws,
    DeadlineLaws,
    DocumentLaws,
    DurableBlobLaws,
    DurableLaws,
    DurableMarkLaws,
    FeedLaws,
    LiveLaws,
    MarkLaws,
    OverviewLaws,
    Reopen,
    SetBackLaws,
    SharedBlobLaws,
    SharedLaws,
    SharedMarkLaws,
    SharedWorkLaws,
    StoreContract,
    TimeLaws,
    WorkLaws,
)
from tests.contract.test_postgres import OnServer
from tests.support.served import client, served

A = key("a")


async def _until(true: Callable[[], bool]) -> None:
    """Wait for news to come."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  # it comes by itself
            await asyncio.sleep(0)


class OverHTTP(
    StoreContract,
    FeedLaws,
    LiveLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    SharedLaws,
    SharedWorkLaws,
    DocumentLaws,
    BlobLaws,
    SharedBlobLaws,
    MarkLaws,
    SharedMarkLaws,
):
    """What the laws ask for, of two clients of one server."""

    async def test_the_pulse_tells_of_the_others_commits(self, store: Store, other: Store) -> None:
        """It changes soon after every commit of another client, and after a deletion."""
        await create(store, A)
        for _ in range(5):
            before = store.pulse()
            await store.load(A, tail=0)  # the server knows that this client wants to be told
            await add(other, A)
            await _until(lambda before=before: store.pulse() != before)
        before = store.pulse()
        await other.delete(A)
        await _until(lambda: store.pulse() != before)

    async def test_a_commit_that_cannot_be_planned_fails_alone(self, store: Store) -> None:
        """What a client made of a body is not believed: the server reads the body itself."""
        await create(store, A)
        good = draft("agent.message", {"text": "hi"})
        forged = {"data": FrozenDict({"text": "forged"}), "plain_ops": (Set(("x",), 1),)}
        lies = msgspec.structs.replace(good, **forged, header=b"x" * 32, plain=True, sets={"y": 2})
        (made,) = await store.commit([addition(A, lies)])
        assert (made.events[0].data, made.fields) == ({"text": "hi"}, {})
        assert (await store.verify(None)).findings == ()

    @pytest.fixture
    async def store(self, served_url: str) -> AsyncIterator[Store]:
        async with client(served_url) as store:
            yield store

    @pytest.fixture
    async def other(self, served_url: str) -> AsyncIterator[Store]:
        async with client(served_url) as other:
            yield other

    @pytest.fixture
    def elsewhere(self, other: Store) -> Store:
        return other

    @pytest.fixture
    async def reopen(self, store: Store, served_url: str) -> AsyncIterator[Reopen]:
        async with AsyncExitStack() as opened:

            async def reopen() -> Store:
                await store.close()
                return await opened.enter_async_context(client(served_url))

            yield reopen


class OnClock(OverHTTP, TimeLaws):
    async def test_the_store_says_what_time_it_is(self, store: Store, clock: FakeClock) -> None:
        """The time is the server's, as its last answer told it, carried on by the clock here."""
        clock.advance(timedelta(hours=1))
        made = await create(store, A)
        assert made.events[0].at_us == clock.now_us
        assert 0 <= store.now_us() - clock.now_us < 10_000_000


class TestMemoryOverHTTP(OnClock):
    @pytest.fixture
    async def served_url(self, clock: FakeClock) -> AsyncIterator[str]:
        async with served(MemoryStore(clock.clock())) as url:
            yield url


class TestSQLiteOverHTTP(OnClock, DurableLaws, DurableBlobLaws, DurableMarkLaws):
    @pytest.fixture
    async def served_url(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[str]:
        path = tmp_path / "store.db"
        async with served(await SQLiteStore.open(path, sync="normal", clock=clock.clock())) as url:
            yield url


class TestPostgresOverHTTP(OnServer, OverHTTP, DurableLaws, DurableBlobLaws, DurableMarkLaws):  # type: ignore[misc]  # both have fixtures of these names
    store = OverHTTP.store
    other = OverHTTP.other
    elsewhere = OverHTTP.elsewhere
    reopen = OverHTTP.reopen

    @pytest.fixture
    async def served_url(self, url: str) -> AsyncIterator[str]:
        async with served(await PostgresStore.open(url)) as served_at:
            yield served_at
