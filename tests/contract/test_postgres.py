"""PostgreSQL against the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import Seal
from holdfast.testing.contract import DurableLaws, Reopen, SharedLaws, StoreContract
from tests.support.seal import FixedKeySeal


class TestPostgres(StoreContract, DurableLaws, SharedLaws):
    seal: Seal | None = None

    @pytest.fixture
    async def url(self, postgres_url: str) -> str:
        """An empty database."""
        return postgres_url

    @pytest.fixture
    async def store(self, url: str) -> AsyncIterator[PostgresStore]:
        store = await PostgresStore.open(url, seal=self.seal)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: PostgresStore, url: str) -> AsyncIterator[PostgresStore]:
        other = await PostgresStore.open(url, seal=self.seal)
        yield other
        await other.close()

    @pytest.fixture
    async def reopen(self, store: PostgresStore, url: str) -> AsyncIterator[Reopen]:
        opened: list[PostgresStore] = []

        async def reopen() -> PostgresStore:
            await store.close()
            opened.append(await PostgresStore.open(url, seal=self.seal))
            return opened[-1]

        yield reopen
        for each in opened:
            await each.close()


class TestPostgresSealed(TestPostgres):
    seal = FixedKeySeal()
