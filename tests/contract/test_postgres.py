"""PostgreSQL against the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Seal
from limpet.testing.contract import (
    Age,
    BlobLaws,
    DeadlineLaws,
    DocumentLaws,
    DurableBlobLaws,
    DurableLaws,
    DurableMarkLaws,
    FeedLaws,
    Leap,
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
    WorkLaws,
)
from tests.support.seal import FixedKeySeal

_NOW = (
    "CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS "
    "$$ SELECT ((extract(epoch FROM clock_timestamp()) + {}) * 1000000)::bigint $$"
)
_AGE = (
    "UPDATE limpet.sessions SET lease_us = lease_us - $1, leased_us = leased_us - $1 "
    "WHERE lease_us IS NOT NULL"
)


class OnServer:
    """What the laws ask for, on a server."""

    seal: Seal | None = None

    @pytest.fixture
    async def age(self, direct: str) -> AsyncIterator[Age]:
        """The server's clock cannot be set, so the leases are moved back instead."""
        conn = await asyncpg.connect(direct)

        async def age(seconds: float) -> None:
            await conn.execute(_AGE, round(seconds * 1_000_000))

        yield age
        await conn.close()

    @pytest.fixture
    async def leap(self, direct: str) -> AsyncIterator[Leap]:
        """The server's clock cannot be set, so the function by which we read it is."""
        conn = await asyncpg.connect(direct)
        ahead = 0.0

        async def leap(seconds: float) -> None:
            nonlocal ahead
            ahead += seconds
            await conn.execute(_NOW.format(ahead))

        yield leap
        await conn.close()

    @pytest.fixture
    async def direct(self, postgres_store_url: str) -> str:
        """The server itself, for those who change it behind the store's back."""
        return postgres_store_url

    @pytest.fixture
    async def url(self, direct: str) -> str:
        """A store with nothing in it."""
        return direct

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
    def elsewhere(self, other: PostgresStore) -> PostgresStore:  # type: ignore[override]  # its own
        return other

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


class WithoutPartials(
    OnServer,
    StoreContract,
    FeedLaws,
    WorkLaws,
    DeadlineLaws,
    OverviewLaws,
    SetBackLaws,
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
    """Every law but those of the live channel."""


class TestPostgres(WithoutPartials, LiveLaws):
    pass


@pytest.mark.deeper
class TestPostgresSealed(TestPostgres):
    seal = FixedKeySeal()
