"""The built-in seal, and stores that are opened with keys, against the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from limpet.security.keys import KeySeal, open_masters
from limpet.security.ring import FileRing, MemoryRing, Ring, ServerRing
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Seal
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.contract import NewSeal, OpenSealed, SealedLaws, SealLaws
from tests.contract.test_postgres import TestPostgres as PostgresContract
from tests.contract.test_stores import TestSQLite as SQLiteContract
from tests.support.keys import memory_seal


class Shared:
    """Seals that share one ring, as processes do."""

    @pytest.fixture
    def new_seal(self) -> NewSeal:
        ring = MemoryRing()
        memory_seal(ring)
        return lambda: memory_seal(ring)


class TestKeySeal(Shared, SealLaws):
    pass


class TestSQLiteSeal(Shared, SealedLaws):
    @pytest.fixture
    async def open_sealed(self, tmp_path: Path) -> AsyncIterator[OpenSealed]:
        opened: list[SQLiteStore] = []

        async def open_sealed(seal: Seal) -> SQLiteStore:
            opened.append(await SQLiteStore.open(tmp_path / "store.db", sync="normal", seal=seal))
            return opened[-1]

        yield open_sealed
        for store in opened:
            await store.close()


async def opened_seal(ring: Ring) -> KeySeal:
    seal = KeySeal(open_masters("memory:"), ring)
    await seal.open_ring(None)
    return seal


@pytest.mark.deeper
class TestSQLiteKeys(SQLiteContract):
    """Every law of the store, each process with a seal of its own on one ring."""

    sync = "normal"

    async def _open(self, path: Path, clock: FakeClock) -> SQLiteStore:
        seal = await opened_seal(FileRing(path.with_name("ring.db")))
        return await SQLiteStore.open(path, sync=self.sync, seal=seal, clock=clock.clock())


@pytest.mark.deeper
class TestPostgresKeys(PostgresContract):
    """The same on a server."""

    @pytest.fixture(autouse=True)
    async def keys(self, postgres_store_url: str) -> AsyncIterator[None]:
        ring = ServerRing(postgres_store_url)
        self.seal = await opened_seal(ring)
        yield
        await ring.close()


class TestPostgresSeal(Shared, SealedLaws):
    @pytest.fixture
    async def open_sealed(self, postgres_store_url: str) -> AsyncIterator[OpenSealed]:
        opened: list[PostgresStore] = []

        async def open_sealed(seal: Seal) -> PostgresStore:
            opened.append(await PostgresStore.open(postgres_store_url, seal=seal))
            return opened[-1]

        yield open_sealed
        for store in opened:
            await store.close()
