"""PostgreSQL fails under the store: restarts, crashes, killed backends, lost answers.

On a server that writes through to the disk, as one that is to be trusted does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import asyncpg
import pytest

import limpet
from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import add, addition, create, draft, key, load
from tests.support import postgres
from tests.support.examples import tries
from tests.support.postgres import Server, terminate_backends, waiting_backend
from tests.support.streams import Stream, check
from tests.support.wire import wire

KEYS = [key(f"s{n}") for n in range(4)]
A, B = key("a"), key("b")


@pytest.fixture(scope="module")
def any_postgres() -> Iterator[postgres.Server | postgres.Elsewhere]:
    """In place of the server without fsync: what is said here about durability is meant."""
    with postgres.running(fsync="on") as server:
        yield server


@pytest.fixture
async def stores(postgres_server: Server) -> AsyncIterator[list[PostgresStore]]:
    async with AsyncExitStack() as stack:
        stores = [await PostgresStore.open(postgres_server.url) for _ in range(2)]
        for store in stores:
            stack.push_async_callback(store.close)
        yield stores


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's."""
    conn = await asyncpg.connect(postgres_url)
    yield conn
    await conn.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["clean", "crash"])
async def test_a_restart_in_mid_stream_costs_nothing_but_time(
    postgres_server: Server, stores: list[PostgresStore], how: signal.Signals
) -> None:
    """Twelve writers over two stores: acknowledged is recorded once, and all of them go on."""
    for each in KEYS:
        await create(stores[0], each)
    async with Stream(stores, KEYS, 12) as stream:
        for _ in range(2):
            await stream.more(40)
            await asyncio.to_thread(postgres_server.restart, how)
        await stream.more(40)
    await check(stores[1], stream)


async def test_a_backend_killed_in_mid_stream_costs_nothing_but_time(
    postgres_server: Server, stores: list[PostgresStore]
) -> None:
    """kill -9 of a backend makes the server drop everybody and recover; the writers go on."""
    for each in KEYS:
        await create(stores[0], each)
    async with Stream(stores, KEYS, 12) as stream:
        for _ in range(2):
            await stream.more(40)
            conn = await asyncpg.connect(postgres_server.url)
            pid = await conn.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'limpet' "
                "ORDER BY state = 'active' DESC LIMIT 1"
            )
            os.kill(pid, signal.SIGKILL)
            await dropped(conn)
        await stream.more(40)
    await check(stores[1], stream)


async def dropped(conn: asyncpg.Connection) -> None:
    """Return when the server has dropped this connection: what comes later is after the crash."""
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        while True:
            await conn.fetchval("SELECT 1")
    conn.terminate()


async def test_backends_ended_in_mid_stream_cost_nothing_but_time(
    postgres_server: Server, stores: list[PostgresStore], admin: asyncpg.Connection
) -> None:
    """An administrator who ends all backends again and again makes nobody fail."""
    for each in KEYS:
        await create(stores[0], each)
    async with Stream(stores, KEYS, 12) as stream:
        for _ in range(8):
            await stream.more(25)
            await terminate_backends(admin)
        await stream.more(25)
    await check(stores[1], stream)


@pytest.mark.parametrize("kill", [False, True], ids=["terminated", "killed"])
async def test_a_backend_that_ends_inside_a_commit_is_replaced(
    postgres_server: Server, stores: list[PostgresStore], kill: bool
) -> None:
    """The commit waits for a row when its backend dies; it is sent again and recorded once."""
    await create(stores[0], A)
    holder = await asyncpg.connect(postgres_server.url)
    watcher = await asyncpg.connect(postgres_server.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM limpet.sessions WHERE id = 'a' FOR UPDATE")
    task = asyncio.create_task(add(stores[0], A, draft(inc={"n": 1})))
    pid = await waiting_backend(watcher)
    if kill:
        os.kill(pid, signal.SIGKILL)
        holder.terminate()
    else:
        await watcher.execute("SELECT pg_terminate_backend($1)", pid)
        await transaction.rollback()
        await holder.close()
    made = await task
    watcher.terminate()
    assert (made.head.version, made.fields) == (2, {"n": 1})
    assert (await load(stores[1], A)).fields == {"n": 1}


async def test_the_server_under_these_tests_writes_through(admin: asyncpg.Connection) -> None:
    """Else a crash would prove nothing about what was acknowledged."""
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await admin.fetchval(f"SHOW {name}") == "on"


@pytest.mark.parametrize("given", [False, True], ids=["new ids", "given ids"])
async def test_whichever_answer_is_lost_nothing_is_lost_or_doubled(
    postgres_server: Server, tmp_path_factory: pytest.TempPathFactory, given: bool
) -> None:
    """The line is cut at the nth answer, for every n (in the suite every fourth) until a run
    meets no cut."""
    folder = tmp_path_factory.mktemp("w")
    async with wire(postgres_server.folder, folder) as line:
        url = postgres_server.url_as("limpet", folder=folder)
        for answer in range(*tries((1 + 2 * given, 100, 4), (1, 100, 1))):
            one, two = key(f"one-{answer}"), key(f"two-{answer}")
            store = await PostgresStore.open(url)
            line.cut_after(answer)
            await script(store, one, two, "x" if given else None)
            struck = not line.waits
            line.cut_after(0)
            assert (await load(store, one)).fields == {"n": 3}
            assert [e.seq for e in (await load(store, one)).events] == [1, 2, 3, 4]
            assert (await load(store, two)).head.version == 2
            for each in (one, two):
                assert (await store.verify(each)).findings == ()
            if not struck:
                assert answer > 5
                assert (await store.verify(None)).findings == ()
            await store.close()
            if not struck:
                return
    raise AssertionError("the cuts never end")


async def script(store: PostgresStore, one: limpet.Key, two: limpet.Key, id: str | None) -> None:
    """Creations, appends, and a commit over two sessions: all are answered."""
    await create(store, one, {"n": 0})
    await create(store, two)
    more = {} if id is None else {"id": id}
    made = await add(store, one, draft(inc={"n": 1}, **more), expect=1)
    assert (made.head.version, made.fields["n"]) == (2, 1)
    both = [addition(one, draft(inc={"n": 1})), addition(two, draft(inc={"app:n": 1}))]
    assert [c.head.version for c in await store.commit(both)] == [3, 2]
    made = await add(store, one, draft(inc={"n": 1}))
    assert (made.head.version, made.fields["n"]) == (4, 3)


async def test_a_contended_commit_is_acknowledged_only_when_it_is_durable(
    postgres_server: Server, stores: list[PostgresStore], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Lines cut again and again while ten writers fight for one session: told is recorded."""
    folder: Path = tmp_path_factory.mktemp("w")
    await create(stores[0], A)
    async with wire(postgres_server.folder, folder) as line:
        url = postgres_server.url_as("limpet", folder=folder)
        through = [await PostgresStore.open(url) for _ in range(3)]
        async with Stream([*stores, *through], [A], 10) as stream:
            for n in range(tries(10, 30)):
                await stream.more(3)
                line.cut_after(1 + n % 5)
                await line.struck()
            await stream.more(10)
        for store in through:
            await store.close()
    await check(stores[0], stream)


async def test_reads_go_on_over_a_restart(
    postgres_server: Server, stores: list[PostgresStore]
) -> None:
    """A reader that asks while the server is away is answered when it is back."""
    await create(stores[0], A, {"n": 1})
    for how in (signal.SIGINT, signal.SIGQUIT):
        postgres_server.stop(how)
        readers = [asyncio.create_task(load(stores[n % 2], A)) for n in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(postgres_server.start)
        assert [found.fields["n"] for found in await asyncio.gather(*readers)] == [1] * 20
