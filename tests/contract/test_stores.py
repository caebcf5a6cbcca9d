"""Every store against the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from limpet.store.memory import MemoryStore
from limpet.store.protocol import Seal
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
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
from tests.support.seal import FixedKeySeal


class TestMemory(
    StoreContract,
    FeedLaws,
    LiveLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    TimeLaws,
    DocumentLaws,
    BlobLaws,
    MarkLaws,
):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[MemoryStore]:
        store = MemoryStore(clock.clock())
        yield store
        await store.close()


class TestSQLite(
    StoreContract,
    FeedLaws,
    LiveLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    TimeLaws,
    DurableLaws,
    SharedLaws,
    SharedWorkLaws,
    DocumentLaws,
    BlobLaws,
    DurableBlobLaws,
    SharedBlobLaws,
    MarkLaws,
    DurableMarkLaws,
    SharedMarkLaws,
):
    seal: Seal | None = None
    sync = "full"

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @pytest.fixture
    async def store(self, path: Path, clock: FakeClock) -> AsyncIterator[SQLiteStore]:
        async with closing(await self._open(path, clock)) as store:
            yield store

    @pytest.fixture
    async def other(
        self, store: SQLiteStore, path: Path, clock: FakeClock
    ) -> AsyncIterator[SQLiteStore]:
        async with closing(await self._open(path, clock)) as other:
            yield other

    @pytest.fixture
    def elsewhere(self, other: SQLiteStore) -> SQLiteStore:  # type: ignore[override]  # its own
        return other

    @pytest.fixture
    async def reopen(
        self, store: SQLiteStore, path: Path, clock: FakeClock
    ) -> AsyncIterator[Reopen]:
        async with AsyncExitStack() as opened:

            async def reopen() -> SQLiteStore:
                await store.close()
                return await opened.enter_async_context(closing(await self._open(path, clock)))

            yield reopen

    async def _open(self, path: Path, clock: FakeClock) -> SQLiteStore:
        return await SQLiteStore.open(path, sync=self.sync, seal=self.seal, clock=clock.clock())


@pytest.mark.deeper
class TestSQLiteSealed(TestSQLite):
    seal = FixedKeySeal()
    sync = "normal"


@asynccontextmanager
async def closing(store: SQLiteStore) -> AsyncIterator[SQLiteStore]:
    try:
        yield store
    finally:
        await store.close()
