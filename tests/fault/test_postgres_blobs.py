"""Blobs on a server: damage is found, races have one outcome, and nothing is left of what ended."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from limpet.errors import LimpetError, SessionCorrupt, SessionDeleted
from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import create, key
from limpet.testing.laws.resources.blobs import LARGE, SMALL, put

A = key("a")
ROWS = "SELECT (SELECT count(*) FROM limpet.blobs) + (SELECT count(*) FROM limpet.blob_chunks)"


async def execute(url: str, sql: str) -> Any:
    conn = await asyncpg.connect(url)
    try:
        return await conn.fetchval(sql)
    finally:
        await conn.close()


DAMAGE = {
    "a byte of a chunk": "UPDATE limpet.blob_chunks "
    "SET body = set_byte(body, 9, 1 # get_byte(body, 9)) WHERE number = 1",
    "a lost chunk": "DELETE FROM limpet.blob_chunks WHERE number = 1",
    "another hash": "UPDATE limpet.blobs SET hash = set_byte(hash, 0, 1 # get_byte(hash, 0))",
    "another version": "UPDATE limpet.blobs SET version = 0",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_to_a_blob_is_found(postgres_store_url: str, damage: str) -> None:
    """By verification, with the session's key; and no wrong chunk is read."""
    store = await PostgresStore.open(postgres_store_url)
    try:
        await create(store, A)
        blob = await put(store, A, LARGE)
        await execute(postgres_store_url, DAMAGE[damage])
        (finding,) = (await store.verify(None)).findings
        assert (finding.where, finding.key) == ("blob", A)
        try:
            assert await store.blobs.chunk(A, blob.hash, 1) in (LARGE[2**20 : 2**21], None)
        except SessionCorrupt:
            assert "chunk" in damage
    finally:
        await store.close()


@pytest.mark.parametrize("ending", ["delete", "erase"])
async def test_nothing_is_left_of_blobs_whose_session_ended_meanwhile(
    postgres_store_url: str, ending: str
) -> None:
    """However uploads race with the end, each is whole before it or refused, and no row stays."""
    store = await PostgresStore.open(postgres_store_url)
    try:
        for turn in range(5):
            of = key(f"race{turn}")
            await create(store, of)
            await store.blobs.put_chunk(of, f"begun{turn}", 0, SMALL)
            end = store.delete(of) if ending == "delete" else store.erase(of)
            puts = [put(store, of, bytes([n]), f"u{turn}/{n}") for n in range(turn + 1)]
            *answers, _ = await asyncio.gather(*puts, end, return_exceptions=True)
            assert [a for a in answers if isinstance(a, Exception) and not _is_gone(a)] == []
        assert await execute(postgres_store_url, ROWS) == 0
        assert (await store.verify(None)).ok
    finally:
        await store.close()


def _is_gone(error: Exception) -> bool:
    return isinstance(error, LimpetError) and (
        isinstance(error, SessionDeleted) or error.code == "session.erased"
    )
