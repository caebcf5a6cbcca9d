"""Batches planned on top of one that is on its way: what is sent when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

import asyncpg
import pytest

from limpet.model import Key
from limpet.model.facts.labels import LABELED
from limpet.model.facts.timeouts import Timeouts, timeouts_set
from limpet.store.cache import CachedSession
from limpet.store.postgres.server.pool import PostgresWriteConnection
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.batch import CommitReply, PostgresBatch
from limpet.store.postgres.writing.jobs import PostgresJob
from limpet.store.postgres.writing.lane import Lane, PackedBatch
from limpet.store.postgres.writing.view import PostgresView
from limpet.store.protocol import Committed, Query
from limpet.testing.commits import add, create, draft, key, load, ready
from tests.support.seal import KeylessSeal

MANY = 40  # more than one batch takes
A = key("a")


@pytest.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    yield store
    await store.close()


async def burst(store: PostgresStore, of: Key) -> list[int]:
    """The versions that as many appends at once were answered with."""
    answers = await asyncio.gather(*[add(store, of, draft(set={"n": n})) for n in range(MANY)])
    return [answer.head.version for answer in answers]


def awaited_by(task: asyncio.Task[None]) -> list[object]:
    """What a lane that rests is waiting for."""
    return [task._fut_waiter]  # type: ignore[attr-defined]  # there is no other way to see it


class Sends:
    """Notes on what each plan was made, and holds the first batch back until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: PostgresStore) -> None:
        self.plans: list[tuple[list[Key], int]] = []  # sessions, and batches before it on their way
        self.early = 0  # batches that were sent although the one before had not held
        self.first = 0  # jobs before a batch that were not answered yet when it was sent
        self.release = asyncio.Event()
        ready, send = Lane._pack, PostgresBatch.send

        async def noted(
            lane: Lane,
            conn: Connection,
            jobs: Sequence[PostgresJob],
            left: Mapping[Key, CachedSession],
        ) -> PackedBatch:
            flights = [flight.jobs for flight in store._committer._flights.values()]
            (own,) = [place for place, of in enumerate(flights) if jobs[0] in of]
            self.plans.append((list(left), own))
            return await ready(lane, conn, jobs, left)

        async def held_back(batch: PostgresBatch, conn: Connection) -> CommitReply:
            flights = list(store._committer._flights.values())
            own = [flight._batch for flight in flights].index(batch)
            before = [flight for flight in flights[:own] if flight.touched & flights[own].touched]
            self.early += sum(not f.held.done() or not f.held.result() for f in before)
            self.first += sum(not job.settled for flight in before for job in flight.jobs)
            await self.release.wait()
            return await send(batch, conn)

        monkeypatch.setattr(Lane, "_pack", noted)
        monkeypatch.setattr(PostgresBatch, "send", held_back)

    async def turns(self) -> None:
        """Let everybody come as far as they can without an answer of the server."""
        for _ in range(50):
            await asyncio.sleep(0)
        self.release.set()

    async def two_plans(self) -> None:
        while len(self.plans) < 2:  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
        self.release.set()


async def test_a_burst_to_one_session_is_planned_while_the_server_works(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch is ready before the first is answered, and its plan stands."""
    sends = Sends(monkeypatch, store)
    burst_on = asyncio.create_task(burst(store, A))
    await asyncio.wait_for(sends.two_plans(), 20)
    assert await burst_on == list(range(2, MANY + 2))
    assert sends.plans[:2] == [([], 0), ([A], 1)]
    assert all(plan in (([], 0), ([A], 1)) for plan in sends.plans)
    assert sends.early == 0
    assert sends.first > 0  # the server does not wait until the callers are answered
    assert (await load(store, A)).fields == {"n": MANY - 1}
    assert (await store.verify(None)).findings == ()


async def test_a_plan_on_top_of_a_batch_that_did_not_hold_is_dropped(
    store: PostgresStore, postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs wait until the earlier ones are recorded: nobody overtakes them."""
    other = await PostgresStore.open(postgres_store_url)
    await add(other, A)  # the first batch is planned on what is no longer true
    await other.close()
    sends = Sends(monkeypatch, store)
    burst_on = asyncio.create_task(burst(store, A))
    await asyncio.wait_for(sends.two_plans(), 20)
    assert await burst_on == list(range(3, MANY + 3))
    assert sends.plans[:4] == [([], 0), ([A], 1), ([], 0), ([], 0)]
    assert sends.early == 0
    assert (await store.verify(None)).findings == ()


async def test_jobs_of_a_batch_that_was_split_are_not_overtaken(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refused to read for it, so each job is sent alone: that the first was recorded
    does not let those in that come after all of them."""
    fetch, send = PostgresView.fetch, PostgresBatch.send
    later: list[asyncio.Future[Committed]] = []

    async def canceled(view: PostgresView, conn: Connection, jobs: Sequence[PostgresJob]) -> None:
        monkeypatch.setattr(PostgresView, "fetch", fetch)
        raise asyncpg.QueryCanceledError("canceled")

    async def held_back(batch: PostgresBatch, conn: Connection) -> CommitReply:
        if not later:
            later.append(asyncio.ensure_future(add(store, A)))  # which wakes the other lane
            for _ in range(50):
                await asyncio.sleep(0)
        return await send(batch, conn)

    monkeypatch.setattr(PostgresView, "fetch", canceled)
    monkeypatch.setattr(PostgresBatch, "send", held_back)
    assert await burst(store, A) == list(range(2, MANY + 2))
    assert (await later[0]).head.version == MANY + 2


async def test_jobs_that_are_sent_one_by_one_are_not_overtaken(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of one session are missing, so each job of the batch is sent alone: that the first was
    recorded does not let those in that come after all of them."""
    cold = key("cold")
    store = await PostgresStore.open(postgres_store_url, seal=KeylessSeal())
    await create(store, cold)
    await store.close()
    store = await PostgresStore.open(postgres_store_url, seal=KeylessSeal())
    await create(store, A)
    sends = Sends(monkeypatch, store)
    adds = [add(store, of) for of in (cold, *[A] * MANY)]
    late, *answers = (await asyncio.gather(sends.turns(), *adds))[1:]
    assert late.head.version == 2
    assert [answer.head.version for answer in answers] == list(range(2, MANY + 2))
    assert sends.early == 0
    await store.close()


async def test_rows_are_not_locked_while_a_batch_before_may_want_them(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that lost its first attempt before it had a plan sends its jobs one by one, each under
    locks. It waits with that, or the two would wait for each other."""
    sends = Sends(monkeypatch, store)
    get, failed = PostgresWriteConnection.get, asyncio.Event()

    async def fails_once(writer: PostgresWriteConnection) -> Connection:
        conn = await get(writer)
        if len(store._committer._flights) == 2 and not failed.is_set():
            failed.set()
            raise asyncpg.QueryCanceledError("while the connection was set up")
        return conn

    monkeypatch.setattr(PostgresWriteConnection, "get", fails_once)
    released: list[bool] = []
    lock = Lane._lock

    async def noted(lane: Lane, conn: Connection, job: PostgresJob) -> None:
        released.append(sends.release.is_set())
        await lock(lane, conn, job)

    monkeypatch.setattr(Lane, "_lock", noted)
    burst_on = asyncio.create_task(burst(store, A))
    await asyncio.wait_for(failed.wait(), 20)
    for _ in range(20):  # as long as it takes to begin a transaction
        if not released:
            await store.heads(Query(), cursor=None, limit=1)
    sends.release.set()
    assert await burst_on == list(range(2, MANY + 2))
    assert released
    assert all(released)


async def test_a_lane_that_is_ended_while_it_rests_is_not_woken(store: PostgresStore) -> None:
    """Whoever commits before the lane has noticed wakes the other one."""
    await burst(store, A)
    while len(store._committer._idle) < 2:  # noqa: ASYNC110 - a turn
        await asyncio.sleep(0)
    last = store._committer._idle[-1]
    (task,) = [task for task in store._committer._tasks if last in awaited_by(task)]
    async with asyncio.timeout(20):
        task.cancel()
        answer = await add(store, A)  # in the same turn
    assert answer.head.version == MANY + 2


async def test_a_session_that_is_being_created_is_not_planned_on(store: PostgresStore) -> None:
    """Only the server knows its number: what is added to it waits."""
    new = key("new")
    made, *added = await asyncio.gather(
        create(store, new), *[add(store, new, draft(set={"n": n})) for n in range(MANY)]
    )
    assert [answer.head.version for answer in added] == list(range(2, MANY + 2))
    assert made.head.version == 1


async def test_the_last_of_a_batch_says_what_its_changes_came_to(
    store: PostgresStore, postgres_store_url: str
) -> None:
    """A label that is put on and taken off again by two commits at once is not there."""
    labels = [{"team": "red"}, {"team": None}]
    await asyncio.gather(*[add(store, A, draft(LABELED, {"labels": each})) for each in labels])
    other = await PostgresStore.open(postgres_store_url)
    head = (await load(other, A)).head
    await other.close()
    assert (head.labels, head.version) == ({}, 3)
    assert (await store.verify(None)).findings == ()


@pytest.mark.parametrize(
    "types", [("note.made", "agent.said"), ("agent.said", "note.made"), ("note.made",)]
)
async def test_activity_is_stored_as_it_was_planned(
    store: PostgresStore, postgres_store_url: str, types: tuple[str, ...]
) -> None:
    """Whichever of the events of a batch counts as activity."""
    answers = await asyncio.gather(*[add(store, A, draft(type)) for type in types])
    other = await PostgresStore.open(postgres_store_url)
    head = (await load(other, A)).head
    await other.close()
    assert (head.active_us, head.updated_us) == (
        answers[-1].head.active_us,
        answers[-1].head.updated_us,
    )


async def test_an_append_that_changes_nothing_else_moves_the_deadline_of_an_idle_session(
    store: PostgresStore,
) -> None:
    """Its facts are as they were, and say that the deadline follows activity."""
    await add(store, A, ready(timeouts_set(Timeouts(idle=timedelta(microseconds=1)))))
    await add(store, A, draft("agent.said"))
    assert (await store.verify(None)).findings == ()


async def test_a_lease_that_the_server_does_not_have_is_not_answered(store: PostgresStore) -> None:
    """It was granted before the server was restored: the head is as the server has it."""
    live = store._committer.cache.peek(A)
    assert live is not None
    live.lease(1, 2**60, "w", 1)
    assert (await add(store, A)).head.worker is None
    assert (await load(store, A)).head.fence == 0
