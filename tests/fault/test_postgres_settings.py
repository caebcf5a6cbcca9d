"""Settings under which every write would fail: they are named, and no retry is promised."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

import limpet
from limpet.errors import StoreReadOnly, StoreUnopened
from limpet.store.open import look_at
from limpet.store.postgres.server import settings
from limpet.store.postgres.server.settings import UTF8_DATABASE
from limpet.store.protocol import Check
from tests.support import postgres

TEXT = "Zoë 東京 🎉"


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(postgres_url)
    await conn.execute("DROP DATABASE IF EXISTS latin")
    await conn.execute("DROP DATABASE IF EXISTS uni")
    yield conn
    await conn.execute("DROP DATABASE IF EXISTS latin")
    await conn.execute("DROP DATABASE IF EXISTS uni")
    await conn.close()


async def checked(url: str, name: str) -> Check:
    """One check of a doctor that only looks."""
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        return next(check for check in (await lp.maintenance.doctor()).checks if check.name == name)


async def write(url: str) -> None:
    """Text in every place that a server keeps as text."""
    async with limpet.open(url) as lp:
        session = await lp.create(TEXT, TEXT, id=TEXT, labels={TEXT: TEXT})
        await session.append(f"user.{TEXT.split()[1]}", {"text": TEXT}, actor=TEXT, id=TEXT)
        assert [head.key.id for head in (await lp.list(app=TEXT)).items] == [TEXT]
        assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_lacks_letters_is_not_opened(
    postgres_server: postgres.Server, admin: asyncpg.Connection, encoding: str
) -> None:
    """Nothing is made in it, no retry is promised, and what the error says to do helps."""
    await admin.execute(
        f"CREATE DATABASE latin TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
    )
    url = postgres_server.url_as("limpet", database="latin")
    with pytest.raises(StoreUnopened) as caught:
        async with limpet.open(url):
            pass
    assert not caught.value.retryable
    assert encoding in str(caught.value)
    there = await asyncpg.connect(url)
    assert not await there.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'limpet'")
    await there.close()
    advice = str(caught.value).partition("in the URL: ")[2].rstrip(".")
    await admin.execute(advice.replace("name", "uni"))
    await write(postgres_server.url_as("limpet", database="uni"))


async def test_the_doctor_tells_a_database_that_lacks_letters(
    postgres_server: postgres.Server, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an earlier release made can still be looked at."""
    await admin.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    url = postgres_server.url_as("limpet", database="latin")
    with monkeypatch.context() as patched:
        patched.setattr(settings, "check_encoding", lambda *_: None)
        async with limpet.open(url) as lp:
            await lp.create("shop", "ada")
    found = await checked(url, "encoding")
    assert found.severity == "problem"
    assert "LATIN1" in found.found
    assert UTF8_DATABASE in found.advice


async def test_the_encoding_of_the_line_is_ours(
    postgres_url: str, admin: asyncpg.Connection
) -> None:
    """What the URL or the role asks for is not followed: texts come and go whole."""
    role = await admin.fetchval("SELECT current_user")
    await admin.execute(f'ALTER ROLE "{role}" SET client_encoding = latin1')
    try:
        await write(f"{postgres_url}&client_encoding=latin1")
    finally:
        await admin.execute(f'ALTER ROLE "{role}" RESET client_encoding')


@pytest.mark.parametrize("made", [False, True])
async def test_a_server_that_refuses_writes_by_a_setting_says_so(
    postgres_url: str, admin: asyncpg.Connection, *, made: bool
) -> None:
    """Before and after the schema was made: which setting it is, and that no retry helps."""
    role = await admin.fetchval("SELECT current_user")
    if made:
        async with limpet.open(postgres_url) as lp:
            await lp.create("shop", "ada", id="one")
    await admin.execute(f'ALTER ROLE "{role}" SET default_transaction_read_only = on')
    try:
        with pytest.raises(StoreReadOnly) as caught:
            await write(postgres_url)
        assert not caught.value.retryable
        assert "default_transaction_read_only" in str(caught.value)
        if made:
            found = await checked(postgres_url, "writes")
            assert found.severity == "problem"
            assert "default_transaction_read_only" in found.found
            async with limpet.open(postgres_url) as lp:
                assert (await lp.get(("shop", "ada", "one"))).version == 1
    finally:
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f'ALTER ROLE "{role}" RESET default_transaction_read_only')
