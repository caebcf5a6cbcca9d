"""Opening PostgreSQL: a server that is away, a schema that is not ours, a role that may not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import asyncpg
import pytest

import limpet
from limpet import errors
from limpet.store.open import look_at, refuse_missing
from limpet.store.postgres.server import schema, settings
from limpet.store.postgres.server.pool import PostgresWriteConnection
from limpet.store.postgres.server.schema import SCHEMA
from limpet.store.postgres.sql import SCRIPTS, SQL
from limpet.store.postgres.store import PostgresStore
from tests.support.postgres import Server, waiting_backend
from tests.support.processes import Child


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(postgres_url)
    yield conn
    await conn.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that may be put back to an earlier time."""
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def guest(postgres_server: Server, admin: asyncpg.Connection) -> AsyncIterator[str]:
    """The URL of a role that may connect and no more."""
    await admin.execute("CREATE ROLE guest LOGIN")
    yield postgres_server.url_as("guest")
    await admin.execute("DROP OWNED BY guest CASCADE")
    await admin.execute("DROP ROLE guest")


async def grant(admin: asyncpg.Connection, rights: str) -> None:
    """Let the guest work with the tables that are there."""
    await admin.execute("GRANT USAGE ON SCHEMA limpet TO guest")
    await admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA limpet TO guest")


async def refused(url: str, error: type[errors.LimpetError]) -> str:
    """Opening fails with exactly this error; what it says."""
    with pytest.raises(error) as info:
        async with limpet.open(url):
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
        text = await refused(url, errors.StoreUnreachable)
        assert "postgresql://ada@" in text
        assert "secret" not in text
        assert "running" in text


@pytest.mark.parametrize(
    ("role", "database", "options", "words"),
    [
        ("limpet", "nowhere", "", ['"nowhere" does not exist', "CREATE DATABASE"]),
        ("nobody", "postgres", "", ['"nobody" does not exist', "CREATE ROLE"]),
        ("limpet", "postgres", "&nonsense=1", ['"nonsense"', "after the ? in the URL"]),
        ("limpet", "postgres", "&work_mem=much", ['"work_mem"', "after the ? in the URL"]),
    ],
)
async def test_what_the_server_refuses_is_told_with_advice(
    postgres_server: Server, role: str, database: str, options: str, words: list[str]
) -> None:
    """The server's own words are passed on, and followed by what to do; doors that look too."""
    url = postgres_server.url_as(role, database=database) + options
    text = await refused(url, errors.StoreUnopened)
    assert [word for word in words if word not in text] == []
    with pytest.raises(errors.StoreUnopened) as info:
        await refuse_missing(url)
    assert str(info.value) == text


async def test_a_host_that_is_not_the_primary_may_become_it(postgres_server: Server) -> None:
    """While another server takes over: the URL may be right, and a retry helps then."""
    url = postgres_server.url_as("limpet") + "&target_session_attrs=standby"
    assert "target_session_attrs" in await refused(url, errors.StoreUnreachable)


async def test_a_store_opens_once_its_server_is_back(own_server: Server) -> None:
    """A program that begins while the server restarts goes by `retryable` alone."""
    own_server.stop()
    with pytest.raises(errors.StoreUnopened) as info:
        async with limpet.open(own_server.url):
            pass
    assert info.value.retryable
    own_server.start()
    async with limpet.open(own_server.url) as lp:
        assert (await lp.create("a", "u", "s")).version == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@127.0.0.1:notaport/x",
        "postgresql://ada:se/cret@127.0.0.1/x",
        "postgresql://ada:[secret]@127.0.0.1/x",
        "postgresql://ada:secret@127.0.0.1/x?sslmode=bogus",
    ],
)
async def test_a_url_that_cannot_be_read_is_no_fault_of_the_server(url: str) -> None:
    """InvalidURL, before anything is tried, and without the password."""
    assert "cret" not in await refused(url, errors.InvalidURL)
    with pytest.raises(errors.InvalidURL):
        await refuse_missing(url)


async def test_a_limit_of_connections_is_told_as_such(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """At opening and later: not as a lock, to be tried again, and the store works when it can."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    await grant(admin, "ALL")
    await admin.execute("ALTER ROLE guest CONNECTION LIMIT 0")
    assert "no connection is free" in await refused(guest, errors.StoreBusy)
    await admin.execute("ALTER ROLE guest CONNECTION LIMIT 10")
    async with limpet.open(guest) as lp:
        session = lp.session(("a", "b", "c"), actor="x")
        await admin.execute("ALTER ROLE guest CONNECTION LIMIT 0")
        answers = await asyncio.gather(
            *(session.append("x.y") for _ in range(5)), return_exceptions=True
        )
        for answer in answers:
            assert type(answer) is errors.StoreBusy
            assert answer.retryable
            assert "no connection is free" in str(answer)
        await admin.execute("ALTER ROLE guest CONNECTION LIMIT 10")
        assert (await session.append("x.y")).seq == 2


async def test_a_role_without_privileges_is_told_what_it_lacks(guest: str) -> None:
    """It may not create the schema: the message says which right to grant."""
    assert "GRANT" in await refused(guest, errors.StoreUnopened)


async def test_a_schema_of_another_role_is_told_to_one_without_rights(
    postgres_url: str, guest: str
) -> None:
    """The schema is ours and current, but this role may not even look at it."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    assert "GRANT" in await refused(guest, errors.StoreUnopened)


async def test_a_role_with_rights_on_the_tables_shares_them(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """Whoever was granted the tables writes, without owning or migrating the schema."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    await grant(admin, "ALL")
    async with limpet.open(guest) as lp:
        session = await lp.get(("a", "b", "c"))
        assert (await session.append("x.y", actor="z")).seq == 2


async def test_a_role_that_may_only_read_reads(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """Writing is refused with our error, and reading goes on."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    await grant(admin, "SELECT")
    async with limpet.open(guest) as lp:
        session = await lp.get(("a", "b", "c"))
        with pytest.raises(errors.StoreReadOnly):
            await session.append("x.y", actor="z")
        with pytest.raises(errors.StoreReadOnly):
            await lp.delete(session.key)
        assert (await lp.get(session.key)).version == 1


@pytest.mark.parametrize(
    "made",
    [
        "CREATE SCHEMA limpet; CREATE TABLE limpet.meta (diary text)",
        "CREATE SCHEMA limpet; CREATE TABLE limpet.meta (name text, value bytea)",
        "CREATE SCHEMA limpet; CREATE TABLE limpet.meta (name text, value bytea);"
        "INSERT INTO limpet.meta VALUES ('schema', 'one')",
    ],
    ids=["other columns", "no number", "no such number"],
)
async def test_a_schema_of_another_program_is_refused(
    postgres_url: str, admin: asyncpg.Connection, made: str
) -> None:
    """It has our name and not our mark: it is left alone."""
    await admin.execute(made)
    await refused(postgres_url, errors.StoreForeign)
    assert not await admin.fetchval("SELECT to_regclass('limpet.events') IS NOT NULL")


async def test_a_newer_schema_is_refused(postgres_url: str, admin: asyncpg.Connection) -> None:
    """An old release does not touch what a new one has made."""
    async with limpet.open(postgres_url):
        pass
    newer = str(SCHEMA + 1).encode()
    await admin.execute("UPDATE limpet.meta SET value = $1 WHERE name = 'schema'", newer)
    assert f"schema {SCHEMA + 1}" in await refused(postgres_url, errors.StoreNewer)


async def test_no_more_connections_are_taken_than_were_given(
    postgres_url: str, guest: str, admin: asyncpg.Connection
) -> None:
    """With six, and a role that has no more: reads, commits, claims, watchers and partials."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    await grant(admin, "ALL")
    await admin.execute("ALTER ROLE guest CONNECTION LIMIT 6")
    async with limpet.open(guest, connections=6) as lp:
        session = lp.session(("a", "b", "c"), actor="x")
        watcher = lp.watch()
        following = session.follow()
        assert (await anext(watcher)).event.seq == (await anext(following)).seq == 1
        await session.append("x.y", partial=True)
        await asyncio.gather(
            *(session.append("x.y") for _ in range(30)),
            *(lp.get(session.key) for _ in range(30)),
            *(lp.work.claim("w") for _ in range(30)),
        )
        for seq in range(2, 32):
            assert (await anext(watcher)).event.seq == seq
        (found,) = [c for c in (await lp.maintenance.doctor()).checks if c.name == "connections"]
        assert "up to 6" in found.found


async def test_a_server_that_is_too_old_is_refused(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By programs and by doors that only look, before anything is made."""
    has, needed = admin.get_server_version().major, 99
    monkeypatch.setattr(settings, "VERSION_MIN", needed)
    text = await refused(postgres_url, errors.StoreUnopened)
    assert f"PostgreSQL {has}." in text
    assert f"needs {needed} or newer" in text
    for look in (refuse_missing, look_at):
        with pytest.raises(errors.StoreUnopened) as info:
            await look(postgres_url)
        assert str(info.value) == text
    assert not await admin.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'limpet'")


async def test_many_open_a_new_database_at_once(postgres_url: str) -> None:
    """One brings the schema forward, all of them work with it, and share one secret."""
    stores = await asyncio.gather(*(PostgresStore.open(postgres_url) for _ in range(8)))
    assert len({store._reader._secret for store in stores}) == 1
    for store in stores:
        assert (await store.verify(None)).ok
        await store.close()


async def test_a_schema_may_take_longer_to_come_than_any_statement(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is bringing it forward: opening waits beyond the limits of all else."""
    migrate = schema._migrate_unhurried

    async def limited(url: str) -> None:
        """A connection that is made now and keeps to the limits has little time."""
        with monkeypatch.context() as patch:
            patch.setattr(settings, "STATEMENT_SECONDS_MAX", 0.2)
            patch.setattr(settings, "LOCK_SECONDS_MAX", 0.1)
            await migrate(url)

    monkeypatch.setattr(schema, "_migrate_unhurried", limited)
    async with admin.transaction():
        await admin.execute(SQL["lock_migration"])
        opening = asyncio.create_task(PostgresStore.open(postgres_url))
        await waiting_backend(admin)
        await admin.execute("SELECT pg_sleep(0.5)")
        assert not opening.done()
    await (await opening).close()


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
    async with limpet.open(postgres_url) as lp:
        assert len((await lp.list(app="a")).items) == 2
        assert (await lp.maintenance.verify()).ok


async def test_a_dump_restored_on_another_server_goes_on(
    postgres_server: Server, postgres_url: str
) -> None:
    """Its transactions bear higher numbers than the new server's: all stay in order."""
    async with limpet.open(postgres_url) as lp:
        session = await lp.create("shop", "ada", id="a", actor="x")
        for _ in range(3):
            await session.append("before.move")
    admin = await asyncpg.connect(postgres_url)
    # As if the dump came from a server that has seen a thousand million transactions.
    await admin.execute("UPDATE limpet.meta SET value = 'elsewhere' WHERE name = 'home'")
    later = "xid = (xid::text::bigint + 1000000000)::text::xid8"
    await admin.execute(f"UPDATE limpet.sessions SET {later}")
    await admin.execute(f"UPDATE limpet.events SET {later}")
    await admin.close()
    async with limpet.open(postgres_url) as lp:
        await lp.session(("shop", "ada", "a"), actor="x").append("after.move")
        store = lp._journal.store
        changes, position = await store.changes(None, app=None, key=None, limit=100)
        assert [change.event.seq for change in changes] == [1, 2, 3, 4, 5]
        await lp.session(("shop", "ada", "a"), actor="x").append("after.move")
        (change,), _ = await store.changes(position, app=None, key=None, limit=100)
        assert change.event.seq == 6


@pytest.mark.parametrize("promoted", [False, True], ids=["restored", "promoted"])
@pytest.mark.parametrize("stays_open", [False, True], ids=["opened anew", "open"])
async def test_a_server_put_back_to_an_earlier_time_hides_nothing_from_watchers(
    tmp_path: Path, own_server: Server, *, stays_open: bool, promoted: bool
) -> None:
    """It gives the numbers of lost transactions again; positions of before lead on all the same,
    whether the store is opened anew or was open all the while, and so after a second time."""
    async with limpet.open(own_server.url) as lp:
        await lp.create("shop", "ada", id="a", actor="x")
    own_server.stop()
    shutil.copytree(own_server.data, tmp_path / "kept")
    own_server.start()
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(limpet.open(own_server.url))
        for _ in range(5):
            await lp.session(("shop", "ada", "a"), actor="x").append("lost.event")
        position = (await seen(lp, None, 6))[-1].position
        for _ in range(2):
            if not stays_open:
                await lp.close()
            own_server.stop()
            own_server.put_back(tmp_path / "kept", promoted=promoted)
            if not stays_open:
                lp = await stack.enter_async_context(limpet.open(own_server.url))
            for _ in range(8):
                await lp.session(("shop", "ada", "a"), actor="x").append("new.event")
            entries = await seen(lp, position, 8)
            assert [entry.event.seq for entry in entries] == list(range(2, 10))
            position = entries[-1].position


async def seen(lp: limpet.Limpet, position: str | None, count: int) -> list[limpet.FeedEntry]:
    """So many entries beyond a position."""
    async with asyncio.timeout(60), aclosing(lp.watch(after=position)) as feed:
        return [await anext(feed) for _ in range(count)]


async def test_a_watcher_notices_by_itself_that_the_server_was_put_back(
    tmp_path: Path, own_server: Server
) -> None:
    """Nobody has written yet: its position is beyond all numbers, until the epoch is raised."""
    async with limpet.open(own_server.url) as lp:
        session = await lp.create("shop", "ada", id="a", actor="x")
    own_server.stop()
    shutil.copytree(own_server.data, tmp_path / "kept")
    own_server.start()
    async with limpet.open(own_server.url) as watching:
        session = watching.session(("shop", "ada", "a"), actor="x")
        for _ in range(5):
            await session.append("lost.event")
        position = (await seen(watching, None, 6))[-1].position
        own_server.stop()
        own_server.put_back(tmp_path / "kept")
        feed = watching.watch(after=position)
        waiting = asyncio.create_task(anext(feed))
        async with limpet.open(own_server.url) as lp:
            await lp.session(("shop", "ada", "a"), actor="x").append("new.event")
        async with asyncio.timeout(60):
            assert (await waiting).event.type == "new.event"
        await feed.aclose()


async def test_a_role_that_cannot_raise_the_epoch_works_on_and_the_doctor_tells(
    postgres_url: str, admin: asyncpg.Connection, guest: str
) -> None:
    """After a standby took the server's place nobody is kept from working."""
    async with limpet.open(postgres_url):
        pass
    await grant(admin, "SELECT, INSERT, UPDATE, DELETE")
    moved = await admin.fetchval(
        "UPDATE limpet.meta SET value = value || '0' WHERE name = 'home' RETURNING value"
    )
    async with limpet.open(guest) as lp:
        await lp.create("a", "b", id="c")
        (schema,) = [
            check for check in (await lp.maintenance.doctor()).checks if check.name == "schema"
        ]
        assert (schema.severity, "CREATE" in schema.advice) == ("warning", True)
    for url in (guest, postgres_url):  # who only looks leaves it so
        await (await look_at(url)).close()
    assert await admin.fetchval("SELECT value FROM limpet.meta WHERE name = 'home'") == moved
    async with limpet.open(postgres_url) as lp:
        assert all(
            check.ok for check in (await lp.maintenance.doctor()).checks if check.name == "schema"
        )


LATER = """
CREATE TABLE limpet.moods (sid bigint PRIMARY KEY, mood text NOT NULL);
INSERT INTO limpet.moods SELECT sid, 'calm ' || version FROM limpet.sessions;
"""


def later_release(monkeypatch: pytest.MonkeyPatch, sql: str = LATER) -> None:
    """From now on this process is a release with one more schema."""
    monkeypatch.setattr(schema, "SCHEMA", SCHEMA + 1)
    monkeypatch.setattr(schema, "SCRIPTS", {**SCRIPTS, f"{SCHEMA + 1:04}": sql})


async def test_a_door_that_only_looks_does_not_bring_the_schema_forward(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which release could look, and changes nothing."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("shop", "ada", id="a")
    later_release(monkeypatch)
    with pytest.raises(errors.StoreOlder):
        await refuse_missing(postgres_url)
    number = await admin.fetchval("SELECT value FROM limpet.meta WHERE name = 'schema'")
    assert number == str(SCHEMA).encode()


async def test_a_later_release_brings_the_schema_forward_and_keeps_everything(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its numbered script, once; the release before it then says that it is too old."""
    async with limpet.open(postgres_url) as lp:
        session = await lp.create("shop", "ada", id="a", actor="x")
        await session.append("a.b", set={"n": 1})
    later_release(monkeypatch)
    for _ in range(2):
        async with limpet.open(postgres_url) as lp:
            assert (await lp.get(("shop", "ada", "a"))).state["n"] == 1
            assert (await lp.maintenance.verify()).ok
    assert await admin.fetchval("SELECT mood FROM limpet.moods") == "calm 2"
    monkeypatch.undo()
    with pytest.raises(errors.StoreNewer):
        async with limpet.open(postgres_url):
            pass


async def test_a_schema_that_cannot_be_brought_forward_stays_as_it_was(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a migration or nothing: a script that fails leaves no table and no number."""
    async with limpet.open(postgres_url) as lp:
        await lp.create("shop", "ada", id="a")
    with monkeypatch.context() as patch:
        later_release(patch, LATER + "SELECT 1 / 0;")
        with pytest.raises(errors.StoreError):
            async with limpet.open(postgres_url):
                pass
    assert await admin.fetchval("SELECT to_regclass('limpet.moods')") is None
    async with limpet.open(postgres_url) as lp:
        assert (await lp.maintenance.verify()).ok


async def test_an_empty_schema_made_for_us_is_taken(postgres_url: str) -> None:
    """A database administrator may create it beforehand; one with other tables is left alone."""
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("DROP SCHEMA IF EXISTS limpet CASCADE; CREATE SCHEMA limpet")
    async with limpet.open(postgres_url) as lp:
        await lp.create("shop", "ada")
    await admin.execute("DROP SCHEMA limpet CASCADE; CREATE SCHEMA limpet")
    await admin.execute("CREATE TABLE limpet.theirs (n integer)")
    with pytest.raises(errors.StoreForeign):
        async with limpet.open(postgres_url):
            pass
    await admin.execute("DROP SCHEMA limpet CASCADE")
    await admin.close()


async def test_defaults_of_the_role_do_not_change_what_is_seen_after_a_lock(
    postgres_url: str,
) -> None:
    """Two stores write one session under a role that prefers repeatable read."""
    admin = await asyncpg.connect(postgres_url)
    await admin.execute("ALTER ROLE limpet SET default_transaction_isolation = 'repeatable read'")
    try:
        async with limpet.open(postgres_url) as one, limpet.open(postgres_url) as two:
            await one.create("shop", "ada", id="a")
            sessions = [lp.session(("shop", "ada", "a"), actor="x") for lp in (one, two)]
            await asyncio.gather(*(s.append("a.b") for _ in range(20) for s in sessions))
            assert (await one.get(("shop", "ada", "a"))).version == 41
    finally:
        await admin.execute("ALTER ROLE limpet RESET default_transaction_isolation")
        await admin.close()


async def test_durability_is_not_left_to_the_defaults_of_a_role(
    postgres_url: str, admin: asyncpg.Connection
) -> None:
    """What is acknowledged is on disk, unless the URL itself asks for less."""
    name = await admin.fetchval("SELECT current_user")
    await admin.execute(f'ALTER ROLE "{name}" SET synchronous_commit = off')
    try:
        store = await PostgresStore.open(postgres_url)
        writer = PostgresWriteConnection(postgres_url)
        for conn in (await writer.get(), store._pools.waiting, store._pools.reading):
            assert await conn.fetchval("SHOW synchronous_commit") == "on"
        await writer.close()
        await store.close()
        asked = PostgresWriteConnection(f"{postgres_url}&synchronous_commit=off")
        assert await (await asked.get()).fetchval("SHOW synchronous_commit") == "off"
        await asked.close()
    finally:
        await admin.execute(f'ALTER ROLE "{name}" RESET synchronous_commit')


async def test_an_older_release_leaves_newer_functions_alone(
    postgres_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works with them; only a newer one replaces them, and a change without a number too."""
    mark = "SELECT value FROM limpet.meta WHERE name = 'functions'"
    monkeypatch.setattr(schema, "FUNCTIONS", schema.FUNCTIONS + 1)
    await (await PostgresStore.open(postgres_url)).close()
    newer = await admin.fetchval(mark)
    monkeypatch.undo()
    await admin.execute("UPDATE limpet.meta SET value = 'elsewhere' WHERE name = 'home'")
    async with limpet.open(postgres_url) as lp:
        await lp.create("a", "b", id="c")
    assert await admin.fetchval(mark) == newer
    await admin.execute("UPDATE limpet.meta SET value = 'of old' WHERE name = 'functions'")
    await (await PostgresStore.open(postgres_url)).close()
    assert (await admin.fetchval(mark)).startswith(f"{schema.FUNCTIONS} ".encode())
