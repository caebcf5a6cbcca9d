"""A store behind a guard keeps the contract, for a principal that may do everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from limpet.security.access import Principal
from limpet.security.guard import Deciders, Guard
from limpet.security.guarded_store import guarded
from limpet.security.roles import RoleRules
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.contract import (
    BlobLaws,
    DeadlineLaws,
    DocumentLaws,
    FeedLaws,
    LiveLaws,
    MarkLaws,
    OverviewLaws,
    SetBackLaws,
    StoreContract,
    TimeLaws,
    WorkLaws,
)
from tests.contract.test_postgres import OnServer


def behind_guard(store: Any, rules: Deciders | None = None) -> Any:
    """The store for an admin of everything, who may write in anybody's name."""
    admin = Principal("system:test", role="admin")
    behind: Any = guarded(store, Guard(admin, rules or Deciders(), writes_as=("",)))
    behind.close = store.close  # it closes nothing itself
    return behind


class _Laws(
    StoreContract,
    FeedLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    TimeLaws,
    DocumentLaws,
    BlobLaws,
    MarkLaws,
):
    """The laws of a store that is open in one process."""


class TestGuardedMemory(_Laws):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[Any]:
        store = MemoryStore(clock.clock())
        yield behind_guard(store)
        await store.close()


@pytest.mark.deeper
class TestGuardedSQLite(_Laws):
    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Any]:
        store = await SQLiteStore.open(tmp_path / "store.db", clock=clock.clock())
        yield behind_guard(store)
        await store.close()


class TestGuardedPostgres(
    OnServer,
    StoreContract,
    FeedLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
    DocumentLaws,
    BlobLaws,
    MarkLaws,
):
    """On a server; its clock cannot be set, so the laws of time are left to the others."""

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[Any]:
        store = await PostgresStore.open(url)
        yield behind_guard(store)
        await store.close()


class TestGuardedLive(LiveLaws):
    """By roles alone: isolation shows no partial of a session that was never read, as these are."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[Any]:
        store = MemoryStore()
        yield behind_guard(store, Deciders((RoleRules(),)))
        await store.close()
