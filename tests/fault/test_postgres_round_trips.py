"""Round trips to PostgreSQL: what a commit, a batch and a claimed session cost, counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import asyncpg
import pytest

from limpet.model import PROCESSED, Commit, Key
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.committer import BATCH_SPLIT_MIN
from limpet.testing.commits import add, addition, create, draft, key, load
from tests.support.postgres import WAIT_SECONDS_MAX

MANY = [key(f"s{n}") for n in range(BATCH_SPLIT_MIN)]  # one batch, that one lane takes
A = MANY[0]


@pytest.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_store_url)
    for of in MANY:
        await create(store, of)
    yield store
    await store.close()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that connections send meanwhile, by the name of what they ask for."""
    sent: list[str] = []
    execute = asyncpg.Connection._do_execute

    async def noted(self: asyncpg.Connection, query: str, *args: object, **more: object) -> object:
        sent.append(_name(query))
        return await execute(self, query, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "_do_execute", noted)
        yield sent


def _name(query: str) -> str:
    names = {
        "SELECT limpet.commit(": "commit",
        "-- Sessions by their keys": "load",
        "SELECT k.i FROM unnest": "pending",
    }
    found = [name for begin, name in names.items() if query.startswith(begin)]
    return found[0] if found else query


async def test_a_commit_to_a_known_session_is_one_round_trip(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned on what is known and checked where it is written."""
    with counted(monkeypatch) as sent:
        await add(store, A)
        await add(store, A, draft(), draft())
    assert sent == ["commit", "commit"]


async def test_commits_of_many_callers_are_one_round_trip(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait while one is on its way go together."""
    with counted(monkeypatch) as sent:
        await asyncio.gather(*[add(store, of) for of in MANY])
    assert sent == ["commit"]


async def test_sessions_that_are_not_known_are_loaded_together(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch to many of them costs one round trip more, not one for each."""
    store._committer.cache.clear()
    with counted(monkeypatch) as sent:
        await asyncio.gather(*[add(store, of) for of in MANY])
    assert sent == ["load", "commit"]
    assert [(await load(store, of)).head.version for of in MANY] == [2] * len(MANY)


async def test_inputs_of_many_sessions_are_looked_for_together(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit that processes one is judged by its own session's rows."""
    await asyncio.gather(*[add(store, of, draft("user.asked")) for of in MANY])
    await store.commit([_processing(A)])
    with counted(monkeypatch) as sent:
        done = [store.commit([_processing(of)]) for of in MANY]
        answers = await asyncio.gather(*done, return_exceptions=True)
    assert sent[:2] == ["pending", "commit"]
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert [type(answers[0]).__name__, len(refused)] == ["NotPending", 1]


def _processing(of: Key) -> Commit:
    return addition(of, draft(PROCESSED, {"seqs": [2]}))


async def test_a_claimed_session_that_was_loaded_is_not_loaded_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's first commit is planned on what its turn has read."""
    await add(store, A, draft("user.asked"))
    (lease,) = await store.claim("w", limit=1, lease_seconds=60)
    store._committer.cache.clear()
    with counted(monkeypatch) as sent:
        await load(store, A)
        await store.commit([addition(A, draft(), fence=lease.fence)])
    assert sent == ["load", "commit"]


async def test_claimed_sessions_that_were_loaded_together_are_not_loaded_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for all that a worker has claimed at once."""
    await asyncio.gather(*[add(store, of, draft("user.asked")) for of in MANY])
    leases = await store.claim("w", limit=len(MANY), lease_seconds=60)
    store._committer.cache.clear()
    with counted(monkeypatch) as sent:
        await store.load_many([lease.key for lease in leases], tail=1)
        held = [addition(lease.key, draft(), fence=lease.fence) for lease in leases]
        await asyncio.gather(*[store.commit([commit]) for commit in held])
    assert (len(leases), sent) == (len(MANY), ["load", "commit"])


async def test_a_session_that_was_loaded_long_ago_is_planned_on_again(
    store: PostgresStore, postgres_store_url: str
) -> None:
    """Somebody else has written meanwhile: the server refuses the plan, and the next one holds."""
    await add(store, A, draft("user.asked"))
    (lease,) = await store.claim("w", limit=1, lease_seconds=60)
    store._committer.cache.clear()
    await load(store, A)
    other = await PostgresStore.open(postgres_store_url)
    await add(other, A)
    await other.close()
    (answer,) = await store.commit([addition(A, draft(), fence=lease.fence)])
    assert answer.head.version == 4
    assert (await store.verify(None)).ok


async def test_a_lone_commit_wakes_one_lane(store: PostgresStore) -> None:
    """The other goes on waiting: it would find nothing."""
    await _rest(store)
    waiting = list(store._committer._idle)
    await add(store, A)
    await _rest(store)
    assert len([waiter for waiter in waiting if waiter.done()]) == 1


async def test_a_lane_that_ends_as_it_is_woken_leaves_its_job_to_the_other(
    store: PostgresStore,
) -> None:
    """Nobody else would look at the queue."""
    await _rest(store)
    tasks = store._committer._tasks
    lanes = {task._fut_waiter: task for task in tasks}  # type: ignore[attr-defined]
    adding = asyncio.create_task(add(store, A))
    while not (woken := [waiter for waiter in lanes if waiter.done()]):  # noqa: ASYNC110 - a turn
        await asyncio.sleep(0)
    lanes[woken[0]].cancel()
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        assert (await adding).head.version == 2
        assert (await add(store, A)).head.version == 3


async def _rest(store: PostgresStore) -> None:
    """Return when every lane has nothing to do."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while len(store._committer._idle) < len(store._committer._lanes):  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
