"""Ends and forks on PostgreSQL at the same time: nobody reads what is gone, nothing is left over.

Somebody else's transaction that ends a session is open; what races with it waits, and then sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import msgspec
import pytest

from limpet.errors import SessionDeleted, SessionErased, SessionHasForks
from limpet.model.commit import Base, Commit
from limpet.model.facts.creation import forked
from limpet.model.keys import Key
from limpet.model.values import checksum
from limpet.store.postgres import erasure
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import add, create, creation, draft, key, load, ready
from tests.support.postgres import waiting_backend

A, B, C = key("a"), key("b"), key("c")


@pytest.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_store_url)
    yield store
    await store.close()


async def forking(store: PostgresStore, of: Key, parent: Key, floor: int) -> Commit:
    """The commit that begins a session on a state of another."""
    fold = await store.fold_at(parent, floor)
    head, sum_ = (await load(store, parent)).head, checksum(fold.fields)
    base = Base(parent, head.uid, floor, fold.head.link, fold.fields, fold.versions, sum_)
    first = ready(forked(of, parent, uid=head.uid, floor=floor, checksum=sum_))
    return Commit(of, (first,), 0, base=base)


async def fork(store: PostgresStore, of: Key, parent: Key, floor: int) -> None:
    await store.commit([await forking(store, of, parent, floor)])


@asynccontextmanager
async def meanwhile(
    admin: asyncpg.Connection, end: Callable[[asyncpg.Connection], Awaitable[object]]
) -> AsyncIterator[None]:
    """Somebody ends a session; the block waits for that, which is committed once it does."""
    transaction = admin.transaction()
    await transaction.start()
    await end(admin)

    async def commit() -> None:
        await waiting_backend(admin)
        await transaction.commit()

    done = asyncio.create_task(commit())
    yield
    await done


def reader(store: PostgresStore) -> PostgresReader:
    return store._reader


async def test_a_fork_of_a_session_that_is_being_deleted_is_refused(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """It waits for the deletion, and then has no parent."""
    await create(store, A)
    made = await forking(store, B, A, 1)
    async with meanwhile(admin, lambda conn: erasure.delete(conn, A, "deleted", None)):
        with pytest.raises(SessionDeleted):
            await store.commit([made])
    assert (await store.verify(None)).ok


async def test_two_forks_that_end_at_once_leave_nothing_of_their_parent(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """The second sees that the first is gone, and takes the rest of the parent's log along."""
    await create(store, A)
    for of in (B, C):
        await fork(store, of, A, 1)
    await store.delete(A)
    async with meanwhile(admin, lambda conn: erasure.delete(conn, B, "deleted", None)):
        assert await store.delete(C)
    assert await admin.fetchval("SELECT count(*) FROM limpet.events") == 0
    assert (await store.verify(None)).ok


async def test_a_parent_and_its_fork_that_end_at_once_leave_nothing(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """Whoever is second purges for both."""
    await create(store, A)
    await fork(store, B, A, 1)
    async with meanwhile(admin, lambda conn: erasure.delete(conn, A, "deleted", None)):
        assert await store.delete(B)
    assert await admin.fetchval("SELECT count(*) FROM limpet.events") == 0


async def test_a_key_that_is_being_erased_is_not_taken_again(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """A creation that may use the key of a deleted session waits, and then finds it erased."""
    await create(store, A)
    await store.delete(A)
    again = msgspec.structs.replace(creation(A), reuse=True)
    async with meanwhile(
        admin, lambda conn: erasure.erase(conn, reader(store), A, "refuse", frozenset())
    ):
        with pytest.raises(SessionErased):
            await store.commit([again])
    assert (await store.verify(None)).ok


async def test_an_erasure_sees_the_fork_that_was_just_made(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """A fork on its way holds its parent: the erasure waits for it, and is refused."""
    await create(store, A)
    made = await forking(store, B, A, 1)
    async with meanwhile(admin, lambda conn: conn.execute(_HOLD)):
        forked_, refused = await asyncio.gather(
            store.commit([made]), store.erase(A), return_exceptions=True
        )
    outcomes = (isinstance(forked_, SessionErased), isinstance(refused, SessionHasForks))
    assert outcomes in ((True, False), (False, True))
    assert (await store.verify(None)).ok


_HOLD = "SELECT FROM limpet.sessions FOR UPDATE"


async def test_an_erased_users_names_do_not_come_back_from_memory(postgres_store_url: str) -> None:
    """Another process has the value of a version that now is another: it is not built upon."""
    one, two = [await PostgresStore.open(postgres_store_url) for _ in range(2)]
    await create(one, A)
    await add(one, A, draft(set={"user:seen": ["secret"]}))
    await create(one, key("z", user="bob"))
    await two.erase_user("shop", "ada")
    await create(two, B)
    await add(two, B, draft(set={"user:seen": []}))
    await create(one, C)
    await add(one, C, draft(add={"user:seen": ["new"]}))
    for store in (one, two):
        assert (await load(store, C)).scopes["user:seen"].value == ["new"]
        assert (await store.verify(None)).ok
        await store.close()


async def test_adding_a_name_reads_no_others(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts an owner's names as they come and go; nobody counts them again."""

    async def refuse(*_: object) -> dict[str, int]:
        raise AssertionError("all names of an owner were read")

    monkeypatch.setattr(PostgresReader, "sizes", refuse)
    await create(store, A)
    for n in range(5):
        await add(store, A, draft(set={f"app:n{n}": n, f"user:n{n}": n}))
    await add(store, A, draft(delete=["app:n0"]))
    assert (await store.verify(None)).ok


async def test_a_pinned_state_is_written_with_its_commit(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """In one transaction, under its number, and it goes with the session."""
    await create(store, A)
    await store.commit([Commit(A, (draft(set={"n": 1}),), pin=7)])
    await add(store, A, draft(inc={"n": 1}))
    found = await admin.fetch("SELECT seq, pin FROM limpet.snapshots")
    assert [tuple(row) for row in found] == [(2, 7)]
    assert (await store.fold_at(A, 2)).fields == {"n": 1}
    assert (await store.verify(None)).ok
    await store.delete(A)
    assert await admin.fetchval("SELECT count(*) FROM limpet.snapshots") == 0


@pytest.mark.parametrize("swap", [True, False])
async def test_a_snapshot_of_another_history_is_passed_over(
    store: PostgresStore, admin: asyncpg.Connection, postgres_store_url: str, swap: bool
) -> None:
    """Of another session, or of another event of the same: the one before it is taken."""
    for of, name in ((A, "ours"), (B, "theirs")):
        await create(store, of)
        for n in (1, 2):
            commit = Commit(of, (draft(set={"who": name, "n": n}),), pin=n)
            await store.commit([commit])
    columns = "flags = o.flags, body = o.body, crc = o.crc FROM limpet.snapshots o"
    other = "o.sid <> n.sid AND o.seq = n.seq" if swap else "o.sid = n.sid AND o.seq = 2"
    await admin.execute(f"UPDATE limpet.snapshots n SET {columns} WHERE n.seq = 3 AND {other}")
    fresh = await PostgresStore.open(postgres_store_url)
    assert (await load(fresh, A)).fields == {"who": "ours", "n": 2}
    many = await fresh.load_many([A, key("nobody"), B], tail=1)
    assert [None if each is None else each.fields["who"] for each in many] == [
        "ours",
        None,
        "theirs",
    ]
    assert "snapshot" in {finding.where for finding in (await fresh.verify(None)).findings}
    await fresh.close()
