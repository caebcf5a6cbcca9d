"""PostgreSQL behind a pooler in transaction mode: nothing is left in a session of the server.

Through a relay of our own, which swaps the server's sessions and resets nothing; and through
PgBouncer where it is installed.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

import limpet
from limpet.errors import InvalidURL, StoreUnopened
from limpet.store.open import look_at
from limpet.store.postgres import store as postgres_store
from limpet.store.postgres.server import settings
from limpet.store.postgres.server.pooler import Through, connect_alone
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Check
from limpet.testing.laws.reads.live import ends, partial, taken
from tests.support import pooler, postgres


@pytest.fixture(params=["relay", "pgbouncer"])
async def through(
    request: pytest.FixtureRequest, postgres_server: postgres.Server
) -> AsyncIterator[str]:
    """The URL of an empty database, by way of a pooler."""
    if request.param == "pgbouncer" and shutil.which("pgbouncer") is None:
        pytest.skip("pgbouncer is not installed: only the relay stands in for it")
    way = pooler.relaying if request.param == "relay" else pooler.bouncing
    async with way(postgres_server) as url:
        yield url


@pytest.fixture
def past(postgres_server: postgres.Server, through: str) -> str:
    """The same, with the way to the server itself beside it."""
    return f"{through}&direct={quote(postgres_server.url)}"


async def work(lp: limpet.Limpet) -> limpet.Session:
    """A bit of everything that changes a store."""
    session = await lp.create("shop", "ada", labels={"tier": "gold"}, actor="user:ada")
    await asyncio.gather(*[session.append("note.added", {"n": n}) for n in range(20)])
    shared = {"cart": ["lamp"], "user:name": "Ada", "app:open": True}
    await session.append("cart.changed", set=shared)
    await session.append("user.message", {"text": "hello"})
    (claimed,) = await lp.work.claim("w1")
    assert await lp.work.release(await lp.work.renew(claimed))
    gone, erased = await lp.create("shop", "bob"), await lp.create("shop", "eve")
    await lp.work.release(await lp.work.lock(gone.key, worker="w2"))
    await lp.delete(gone.key)
    await lp.erase(erased.key)
    return session


async def test_a_store_works_through_a_pooler_and_leaves_nothing_there(through: str) -> None:
    """Two processes write, claim, read, list and verify; no session of the server keeps a trace."""
    async with limpet.open(through) as lp, limpet.open(through) as other:
        session = await work(lp)
        found = await other.get(session.key)
        assert found.values["cart"] == ["lamp"]
        assert found.values["user:name"] == "Ada"
        assert [head.key for head in (await other.list(app="shop")).items] == [session.key]
        assert len(await found.pending()) == 1
        await found.append("note.added", {"n": 20}, actor="user:ada")
        await session.refresh()
        assert session.version == found.version
        assert (await other.maintenance.verify()).ok
    assert await pooler.left_behind(through) == set()


async def test_a_follower_behind_a_pooler_hears_of_other_processes(through: str) -> None:
    """It polls: nobody listens on the server."""
    async with limpet.open(through) as lp, limpet.open(through) as other:
        session = await lp.create("shop", "ada", actor="user:ada")
        theirs = await other.get(session.key)
        heard = session.follow(after=session.version)
        first = asyncio.ensure_future(anext(heard))
        await theirs.append("note.added", {"n": 1}, actor="user:ada")
        async with asyncio.timeout(60):
            assert (await first).data == {"n": 1}
        await heard.aclose()
        assert await pooler.left_behind(through) == set()


async def test_sessions_that_the_server_ends_cost_no_event_and_double_none(
    postgres_server: postgres.Server,
) -> None:
    """Whatever transaction they were in: each append is recorded once."""
    admin = await asyncpg.connect(postgres_server.url)
    async with pooler.relaying(postgres_server) as through, limpet.open(through) as lp:
        session = await lp.create("shop", "ada", actor="user:ada")
        ended = 0
        for start in range(0, 40, 10):
            appends = [session.append("note.added", {"n": start + n}) for n in range(10)]
            gathered = asyncio.gather(*appends)
            await asyncio.sleep(0)  # they are on their way
            ended += len(
                await admin.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = $1",
                    pooler.NAME,
                )
            )
            await gathered
        notes = await session.read(after=1, limit=100)
        assert sorted([event.data["n"] for event in notes]) == list(range(40))
        assert (await lp.maintenance.verify()).ok
    await admin.close()
    assert ended >= pooler.SESSIONS


EXPECTED = {
    "synchronous_commit": "on",
    "transaction_isolation": "read committed",
    "lock_timeout": "7s",
    "statement_timeout": "30s",
    "search_path": "pg_catalog",
    "enable_seqscan": "off",
}


async def shown(conn: Any) -> dict[str, str]:
    """The settings under which a call runs."""
    names = ", ".join(f"current_setting('{name}') AS {name}" for name in EXPECTED)
    return dict(await conn.fetchrow(f"SELECT {names}"))


async def test_every_transaction_has_the_settings_of_a_connection(
    postgres_server: postgres.Server,
) -> None:
    """Durable, bounded in time, read committed: against defaults of the role that say otherwise."""
    admin = await asyncpg.connect(postgres_server.url)
    bad = {"synchronous_commit": "off", "default_transaction_isolation": "serializable"}
    for name, value in bad.items():
        await admin.execute(f"ALTER ROLE limpet SET {name} = {value}")
    try:
        async with pooler.relaying(postgres_server) as through:
            wanted = settings.connection_settings(7) | settings.LOOKUP_PLANS
            conn = await connect_alone(through, wanted)
            for _ in range(2 * pooler.SESSIONS):
                assert await shown(conn) == EXPECTED
                async with conn.transaction():
                    assert await shown(conn) == EXPECTED
            await conn.close()
    finally:
        for name in bad:
            await admin.execute(f"ALTER ROLE limpet RESET {name}")
        await admin.close()


async def test_a_call_that_fails_or_is_cancelled_leaves_no_transaction(through: str) -> None:
    """Its connection serves the next call, and the server's session the next client."""
    conn: Through = await connect_alone(through, settings.connection_settings(7))
    for _ in range(pooler.SESSIONS):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.fetchval("SELECT 1 / 0")
        with pytest.raises(TimeoutError):
            await conn.fetchval("SELECT pg_sleep(60)", timeout=0.05)
    assert not conn.is_in_transaction()
    assert await conn.fetchval("SELECT 1") == 1
    await conn.close()
    assert await pooler.left_behind(through) == set()


async def test_without_the_option_a_pooler_is_named_in_the_error(through: str) -> None:
    """It refuses our settings, and the words say which option the URL lacks."""
    with pytest.raises(StoreUnopened, match="add pooler=transaction"):
        async with limpet.open(through.replace("&pooler=transaction", "")):
            pass


async def test_the_relay_shows_what_a_session_of_the_server_keeps(
    postgres_server: postgres.Server,
) -> None:
    """It would notice a setting, a LISTEN, a lock and a statement: each fails the tests above."""
    async with pooler.relaying(postgres_server) as through:
        url = through.replace("&pooler=transaction", "")
        conn = await asyncpg.connect(url, statement_cache_size=0)
        await conn.execute("SET lock_timeout = '3s'")
        await conn.execute("LISTEN limpet")
        await conn.execute("SELECT pg_advisory_lock(17)")
        await conn.execute("PREPARE mine AS SELECT 1")
        found = await pooler.left_behind(through)
        await conn.close()
    kept = {"setting lock_timeout = 3000", "listens to limpet", "lock 17", "statement mine"}
    assert kept <= found
    async with pooler.relaying(postgres_server) as through:
        conn = await asyncpg.connect(through.replace("&pooler=transaction", ""))
        assert await conn.fetchval("SELECT $1::int", 1) == 1  # prepared under a name, and kept
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await conn.fetchval("SELECT $1::int", 1)
        conn.terminate()


async def checked(url: str, name: str = "pooler") -> Check:
    """What a doctor that only looks says of poolers, or of the way past one."""
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        return next(check for check in (await lp.maintenance.doctor()).checks if check.name == name)


async def test_the_doctor_says_whether_a_pooler_is_in_the_way(
    postgres_server: postgres.Server, through: str
) -> None:
    """In the way and named; named and not in the way; neither."""
    async with limpet.open(through):
        pass
    assert (await checked(through)).found.startswith("in the way")
    assert "miss partial events of other processes" in (await checked(through)).found
    assert (await checked(through)).ok
    named = await checked(f"{postgres_server.url}&pooler=transaction")
    assert named.severity == "warning"
    assert "Take pooler=transaction out" in named.advice
    assert (await checked(postgres_server.url)).found == "none in the way"


@pytest.mark.parametrize("value", ["session", "statement", "", "Transaction", "yes"])
async def test_a_pooler_has_no_other_mode(value: str) -> None:
    """The words say which there is, and what to do about the others."""
    with pytest.raises(InvalidURL, match="pooler is transaction"):
        async with limpet.open(f"postgresql://ada@127.0.0.1:1/db?pooler={value}"):
            pass


async def test_partials_stay_in_their_process_and_recorded_events_do_not(
    through: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can LISTEN behind a pooler, as the log says; a follower elsewhere has the final event
    all the same."""
    caplog.set_level("INFO", "limpet.store.postgres")
    async with limpet.open(through) as lp, limpet.open(through) as other:
        session = await lp.create("shop", "ada", actor="agent:main")
        here, there = session.follow(after=1), (await other.get(session.key)).follow(after=1)
        first = asyncio.ensure_future(anext(there))
        near = asyncio.ensure_future(anext(here))
        await asyncio.sleep(0)  # both follow
        await session.append("agent.message", {"text": "h"}, partial=True, id="final")
        async with asyncio.timeout(60):
            assert (await near).partial
            await session.append("agent.message", {"text": "hello"}, id="final")
            found = await first
        assert (found.seq, found.data) == (2, {"text": "hello"})
        await here.aclose()
        await there.aclose()
    told = [each for each in caplog.messages if each.startswith("live channel not opened: store=")]
    assert [each.rpartition(" ")[2] for each in told] == ["error=pooler"] * 2, "one for each Limpet"


# --- past the pooler -----------------------------------------------------------------------------


@pytest.mark.parametrize("follower", ["past", "direct"])
async def test_partials_cross_from_behind_a_pooler_to_who_can_listen(
    postgres_server: postgres.Server, through: str, past: str, follower: str
) -> None:
    """A publisher needs no LISTEN: what it says reaches who goes past the pooler, or knows none."""
    listening = past if follower == "past" else postgres_server.url
    async with limpet.open(through) as lp, limpet.open(listening) as other:
        session = await lp.create("shop", "ada", actor="agent:main")
        heard = (await other.get(session.key)).follow()
        async with asyncio.timeout(60):
            assert (await anext(heard)).seq == 1  # it has joined
            await session.append("agent.message", {"text": "h"}, partial=True, id="final")
            piece = await anext(heard)
            await session.append("agent.message", {"text": "hello"}, id="final")
            final = await anext(heard)
        assert (piece.partial, piece.data) == (True, {"text": "h"})
        assert (final.seq, final.data) == (2, {"text": "hello"})
        await heard.aclose()
    assert await pooler.left_behind(through) == set()


async def test_large_messages_pass_a_pooler_whole(through: str, past: str) -> None:
    """All pieces of one are a single transaction, whichever session of the server has it."""
    sent = [partial(text=str(n) * 20_000) for n in range(2 * pooler.SESSIONS)]
    near, far = await PostgresStore.open(through), await PostgresStore.open(past)
    async with ends(near, far) as (here, there):
        for each in sent:
            await here.publish([each])
        assert await taken(there, len(sent)) == sent
    await near.close()
    await far.close()


async def test_a_follower_past_a_pooler_is_notified(
    through: str, past: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears, and does not only poll: here it would poll once in a long while."""
    for name in ("POLL_SECONDS", "UNHEARD_POLL_SECONDS"):
        monkeypatch.setattr(postgres_store, name, 1e9)
    async with limpet.open(through) as lp, limpet.open(past) as other:
        session = await lp.create("shop", "ada", actor="user:ada")
        heard = (await other.get(session.key)).follow()
        async with asyncio.timeout(60):
            assert (await anext(heard)).seq == 1
            for seq in range(2, 6):
                coming = asyncio.ensure_future(anext(heard))
                for _ in range(5):  # meanwhile it has found nothing new, and waits
                    await session.refresh()
                await session.append("note.added", {"n": seq})
                assert (await coming).seq == seq
        await heard.aclose()
    assert await pooler.left_behind(through) == set()


@pytest.mark.parametrize("host", ["127.0.0.1:1", "x" * 64], ids=["closed", "impossible"])
async def test_a_way_past_that_leads_nowhere_costs_no_recorded_event(
    through: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and followers poll; a password in it is shown nowhere."""
    nowhere = f"{through}&direct={quote(f'postgresql://ada:secret@{host}/db')}"
    async with limpet.open(nowhere) as lp, limpet.open(through) as other:
        session = await lp.create("shop", "ada", actor="user:ada")
        theirs = await other.get(session.key)
        heard = session.follow(after=1)
        first = asyncio.ensure_future(anext(heard))
        await theirs.append("note.added", {"n": 1}, actor="user:ada")
        async with asyncio.timeout(60):
            assert (await first).data == {"n": 1}
        await heard.aclose()
    lost = [each for each in caplog.messages if each.startswith("connection lost: ")]
    assert {each.split()[3] for each in lost} == {"connection=live", "connection=listener"}
    assert all([f"store=postgresql://ada@{host}/db " in each for each in lost])
    assert "secret" not in caplog.text


async def test_the_doctor_tries_the_way_past_a_pooler(
    postgres_server: postgres.Server, through: str, past: str
) -> None:
    """It reaches the same database, another, none, or one more pooler."""
    async with limpet.open(past):
        pass
    assert "go past it" in (await checked(past)).found
    found = await checked(past, "direct")
    assert (found.found, found.severity) == ("the same database, past the pooler", "ok")

    other = postgres_server.url.replace("/postgres?", "/template1?")
    assert "another database" in (await checked(f"{through}&direct={quote(other)}", "direct")).found

    again = through.replace("&pooler=transaction", "")
    assert "another pooler" in (await checked(f"{through}&direct={quote(again)}", "direct")).found

    nowhere = quote("postgresql://ada:secret@127.0.0.1:1/db")
    found = await checked(f"{through}&direct={nowhere}", "direct")
    assert found.severity == "warning"
    assert "cannot be reached" in found.found
    assert "secret" not in found.advice
