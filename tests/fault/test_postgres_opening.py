"""Opening PostgreSQL: a server that is away, a schema that is not ours, a role that may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

import holdfast
from holdfast import errors
from holdfast.store.postgres.connect import SCHEMA
from holdfast.store.postgres.store import PostgresStore
from tests.support.postgres import Server
from tests.support.processes import Child


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(postgres_url)
    yield conn
    await conn.close()


@pytest.fixture
async def guest(postgres_server: Server, admin: asyncpg.Connection) -> AsyncIterator[str]:
    """The URL of a role that may connect and no more."""
    await admin.execute("CREATE ROLE guest LOGIN")
    yield postgres_server.url_as("guest")
    await admin.execute("DROP OWNED BY guest CASCADE")
    await admin.execute("DROP ROLE guest")


async def refused(url: str, error: type[errors.HoldfastError]) -> str:
    """Opening fails with exactly this error; what it says."""
    with pytest.raises(error) as info:
        async with holdfast.open(url):
            pass
    assert info.type is error
    assert str(info.value).endswith(".")
    return str(info.value)


async def test_a_server_that_is_down_is_told_with_advice(tmp_path: Path) -> None:
    """No socket and no port: the message names the place and what to look at."""
    for url in (
        f"postgresql://ada:secret@/postgres?host={tmp_path}",
        "postgresql://ada:secret@127.0.0.1:1/postgres",
    ):
        text = await refused(url, errors.StoreUnopened)
        assert "postgresql://ada@" in text
        assert "secret" not in text
        assert "running" in text


async def test_a_database_that_does_not_exist_is_told(postgres_server: Server) -> None:
    """The server's own words are passed on."""
    url = postgres_server.url_as("holdfast", database="nowhere")
    assert '"nowhere" does not exist' in await refused(url, errors.StoreUnopened)


async def test_a_role_without_privileges_is_told_what_it_lacks(guest: str) -> None:
    """It may not create the schema: the message says which right to grant."""
    assert "GRANT" in await refused(guest, errors.StoreUnopened)


async def test_a_schema_of_another_role_is_told_to_one_without_rights(
    postgres_url: str, guest: str
) -> None:
    """The schema is ours and current, but this role may not even look at it."""
    async with holdfast.open(postgres_url) as hf:
        await hf.create("a", "b", id="c")
    assert "GRANT" in await refused(guest, errors.StoreUnopened)


async def test_a_role_with_rights_on_the_tables_shares_them(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """Whoever was granted the tables writes, without owning or migrating the schema."""
    async with holdfast.open(postgres_url) as hf:
        await hf.create("a", "b", id="c")
    await admin.execute("GRANT USAGE ON SCHEMA holdfast TO guest")
    await admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO guest")
    async with holdfast.open(guest) as hf:
        session = await hf.get(("a", "b", "c"))
        assert (await session.append("x.y", actor="z")).seq == 2


async def test_a_role_that_may_only_read_reads(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """Writing is refused with our error, and reading goes on."""
    async with holdfast.open(postgres_url) as hf:
        await hf.create("a", "b", id="c")
    await admin.execute("GRANT USAGE ON SCHEMA holdfast TO guest")
    await admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO guest")
    async with holdfast.open(guest) as hf:
        session = await hf.get(("a", "b", "c"))
        with pytest.raises(errors.StoreReadOnly):
            await session.append("x.y", actor="z")
        with pytest.raises(errors.StoreReadOnly):
            await hf.delete(session.key)
        assert (await hf.get(session.key)).version == 1


@pytest.mark.parametrize(
    "made",
    [
        "CREATE SCHEMA holdfast",
        "CREATE SCHEMA holdfast; CREATE TABLE holdfast.meta (diary text)",
        "CREATE SCHEMA holdfast; CREATE TABLE holdfast.meta (name text, value bytea)",
        "CREATE SCHEMA holdfast; CREATE TABLE holdfast.meta (name text, value bytea);"
        "INSERT INTO holdfast.meta VALUES ('schema', 'one')",
    ],
    ids=["empty", "other columns", "no number", "no such number"],
)
async def test_a_schema_of_another_program_is_refused(
    postgres_url: str, admin: asyncpg.Connection, made: str
) -> None:
    """It has our name and not our mark: it is left alone."""
    await admin.execute(made)
    await refused(postgres_url, errors.StoreForeign)
    assert not await admin.fetchval("SELECT to_regclass('holdfast.events') IS NOT NULL")


async def test_a_newer_schema_is_refused(postgres_url: str, admin: asyncpg.Connection) -> None:
    """An old release does not touch what a new one has made."""
    async with holdfast.open(postgres_url):
        pass
    newer = str(SCHEMA + 1).encode()
    await admin.execute("UPDATE holdfast.meta SET value = $1 WHERE name = 'schema'", newer)
    assert f"schema {SCHEMA + 1}" in await refused(postgres_url, errors.StoreNewer)


async def test_many_open_a_new_database_at_once(postgres_url: str) -> None:
    """One brings the schema forward, all of them work with it, and share one secret."""
    stores = await asyncio.gather(*(PostgresStore.open(postgres_url) for _ in range(8)))
    assert len({store._reader._secret for store in stores}) == 1
    for store in stores:
        assert (await store.verify(None)).ok
        await store.close()


@pytest.fixture
def children(postgres_url: str) -> Iterator[list[Child]]:
    opener = "tests.support.opener"
    with Child(opener, postgres_url) as one, Child(opener, postgres_url) as two:
        yield [one, two]


async def test_two_processes_open_a_new_database_at_once(
    postgres_url: str, children: list[Child]
) -> None:
    """Both create the schema and a session of their own."""
    for child in children:
        assert child.line() == "ready"
    for child in children:
        child.tell("go")
    assert [child.line() for child in children] == ["1", "1"]
    async with holdfast.open(postgres_url) as hf:
        assert len((await hf.list(app="a")).items) == 2
        assert (await hf.verify()).ok
