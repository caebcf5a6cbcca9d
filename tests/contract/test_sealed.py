"""Stores that seal, and the seal of the tests, against their part of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Seal
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.contract import NewSeal, OpenSealed, SealedLaws, SealLaws
from tests.support.seal import FixedKeySeal


class Fixed:
    """The seal of the tests, whose keys all its instances share."""

    @pytest.fixture
    def new_seal(self) -> NewSeal:
        return FixedKeySeal


class TestFixedKeySeal(Fixed, SealLaws):
    pass


class TestSQLite(Fixed, SealedLaws):
    @pytest.fixture
    async def open_sealed(self, tmp_path: Path) -> AsyncIterator[OpenSealed]:
        opened: list[SQLiteStore] = []

        async def open_sealed(seal: Seal) -> SQLiteStore:
            opened.append(await SQLiteStore.open(tmp_path / "store.db", sync="normal", seal=seal))
            return opened[-1]

        yield open_sealed
        for store in opened:
            await store.close()


class TestPostgres(Fixed, SealedLaws):
    @pytest.fixture
    async def open_sealed(self, postgres_store_url: str) -> AsyncIterator[OpenSealed]:
        opened: list[PostgresStore] = []

        async def open_sealed(seal: Seal) -> PostgresStore:
            opened.append(await PostgresStore.open(postgres_store_url, seal=seal))
            return opened[-1]

        yield open_sealed
        for store in opened:
            await store.close()
