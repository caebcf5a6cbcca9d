"""Every store against the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from limpet.store.files.store import FilesStore
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


class TestFiles(
    StoreContract,
    FeedLaws,
    LiveLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    TimeLaws,
    DurableLaws,
    DocumentLaws,
    BlobLaws,
    DurableBlobLaws,
    MarkLaws,
    DurableMarkLaws,
):
    seal: Seal | None = None
    compacts = False  # the log is compacted whenever nobody writes

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[FilesStore]:
        async with closing(await self._open(tmp_path, clock)) as store:
            yield store

    @pytest.fixture
    async def reopen(
        self, store: FilesStore, tmp_path: Path, clock: FakeClock
    ) -> AsyncIterator[Reopen]:
        async with AsyncExitStack() as opened:

            async def reopen() -> FilesStore:
                await store.close()
                return await opened.enter_async_context(closing(await self._open(tmp_path, clock)))

            yield reopen

    async def _open(self, path: Path, clock: FakeClock) -> FilesStore:
        store = await FilesStore.open(path / "store", seal=self.seal, clock=clock.clock())
        if self.compacts:
            store.compact_bytes = 1
        return store


@pytest.mark.deeper
class TestFilesSealed(TestFiles):
    seal = FixedKeySeal()


@pytest.mark.deeper
class TestFilesCompacted(TestFiles):
    compacts = True


@pytest.mark.deeper
class TestFilesSealedCompacted(TestFilesSealed):
    compacts = True


Opened = TypeVar("Opened", SQLiteStore, FilesStore)


@asynccontextmanager
async def closing(store: Opened) -> AsyncIterator[Opened]:
    try:
        yield store
    finally:
        await store.close()
