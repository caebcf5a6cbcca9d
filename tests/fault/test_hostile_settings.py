"""Defaults of a role or a database that would break a store: it sets what it relies on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

import limpet
from limpet.store.open import look_at
from tests.support import pooler, postgres

BYTES = b"\x00\\'\xff" * 1_000
TEXT = "Zoë \\ ''' 東京"
# Of each setting a value under which a store that trusted the default would fail, or lose digits,
# letters or zones. Planner settings stand for all of them.
HOSTILE = {
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "bytea_output": "escape",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Asia/Kathmandu'",
    "search_path": "evil, pg_catalog",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "idle_session_timeout": "'30s'",
    "row_security": "off",
    "xmlbinary": "hex",
    "extra_float_digits": "-15",
    "jit_above_cost": "0",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "check_function_bodies": "off",
    "session_replication_role": "replica",
    "client_min_messages": "debug1",
    "client_encoding": "latin1",
    "exit_on_error": "on",
    "synchronous_commit": "off",
    "enable_indexscan": "off",
    "plan_cache_mode": "force_custom_plan",
    "work_mem": "64",
}
EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.clock_timestamp() RETURNS date LANGUAGE sql AS 'SELECT NULL::date';
CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT NULL';
CREATE FUNCTION evil.to_regclass(text) RETURNS regclass LANGUAGE sql AS 'SELECT NULL::regclass';
"""


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(postgres_url)
    await conn.execute(EVIL)
    yield conn
    await conn.execute("DROP SCHEMA evil CASCADE")
    await conn.close()


async def answers(turn: limpet.Turn) -> None:
    await turn.effect("pay", lambda eur: eur, eur=0.1, on_unknown="retry")
    await turn.say(TEXT)


async def live(url: str) -> None:
    """A bit of everything that a store does, and that nothing is other than it was written."""
    state = {"n": None, "tenth": 0.1, "small": 1e-300, "user:lang": TEXT, "app:list": [1.5, None]}
    async with limpet.open(url) as lp:
        s = await lp.create("shop", "ada", "one", state=state, labels={"plan": TEXT}, actor=TEXT)
        await s.append("user.message", {"text": TEXT}, id="e\\1")
        other = await lp.create("shop", "bob", "two", actor="user:bob")
        async with lp.commit() as c:
            c.append(s, "agent.asked", actor="agent:main", set={"asked": True})
            c.append(other, "agent.asked", actor="agent:main", set={"user:lang": None})
        ref = await s.blobs.put(BYTES)
        assert await s.blobs.get(ref) == BYTES
        await lp.agents.put("main", {"model": TEXT}, actor=TEXT)
        await s.checkpoint("here", full=True)
        fork = await s.fork(2, id="fork")
        await fork.append("agent.tried", set={"tried": 1})
        await s.merge(fork.key)
        await s.lifecycle.set_timer("nap", timedelta(days=1))
        assert (await lp.wake(s.key, answers)).error is None
        async for event in s.follow(after=s.version - 1):
            assert event.seq == s.version
            break
        await lp.policies.retention("shop", events=2, actor=TEXT)
        await lp.maintenance.compact()
        again = await lp.get(s.key)
        assert {name: again.state[name] for name in state} == state
        (message,) = await again.read(types=["user.message"])
        assert (message.data, message.id) == ({"text": TEXT}, "e\\1")
        assert [head.key.id for head in (await lp.list(app="shop", labels={"plan": TEXT})).items]
        await lp.delete(other.key)
        await lp.erase_user("shop", "bob")
        assert (await lp.maintenance.verify()).findings == ()
        found = {c.name for c in (await lp.maintenance.doctor()).checks if c.severity == "problem"}
        assert found <= {"fsync"}  # off, for the tests' sake
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        assert len((await lp.list()).items) == 2


@pytest.mark.parametrize("way", ["straight", "pooler"])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(HOSTILE), id="all at once"),
        *[pytest.param((name,), id=name, marks=pytest.mark.torture) for name in HOSTILE],
    ],
)
async def test_no_default_of_a_role_is_trusted(
    postgres_server: postgres.Server,
    postgres_url: str,
    admin: asyncpg.Connection,
    names: tuple[str, ...],
    way: str,
) -> None:
    """Everything works and nothing is changed, straight and behind a pooler."""
    role = await admin.fetchval("SELECT current_user")
    if way == "pooler":  # the statement that sets ours there begins under the role's own
        names = tuple([name for name in names if name != "statement_timeout"])
    try:
        for name in names:
            with contextlib.suppress(asyncpg.UndefinedObjectError):  # of a later server
                await admin.execute(f'ALTER ROLE "{role}" SET {name} = {HOSTILE[name]}')
        if way == "straight":
            await live(postgres_url)
        else:
            async with pooler.relaying(postgres_server) as through:
                await live(through)
    finally:
        await admin.execute(f'ALTER ROLE "{role}" RESET ALL')


async def test_limits_that_are_long_enough_stay(
    postgres_url: str, admin: asyncpg.Connection
) -> None:
    """Only what is too short to work under is lengthened."""
    role = await admin.fetchval("SELECT current_user")
    name = "idle_in_transaction_session_timeout"
    found: list[Any] = []
    for value in ("0", "'5s'", "'10min'"):
        await admin.execute(f'ALTER ROLE "{role}" SET {name} = {value}')
        try:
            async with limpet.open(postgres_url) as lp:
                store: Any = lp._journal.store
                async with store._pools.reading.acquire() as conn:
                    found.append(await conn.fetchval(f"SHOW {name}"))
        finally:
            await admin.execute(f'ALTER ROLE "{role}" RESET {name}')
    assert found == ["0", "1min", "10min"]
