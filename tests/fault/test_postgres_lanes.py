"""The tasks of the lanes are cancelled from outside, as by somebody who cancels all of a loop.

What was on its way is answered with an error that says what to do; what was queued is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, cast

import pytest

from limpet.errors import StoreFailed
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.batch import CommitReply, PostgresBatch
from limpet.store.postgres.writing.lane import Flight
from limpet.store.protocol import Committed
from limpet.testing.commits import add, create, draft, key, load

MANY = 40  # as many as both lanes share
LATER = 5
A = key("a")


@pytest.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    yield store
    await store.close()


class Queue:
    """Commits on their way on both lanes, of which none is sent, and others queued behind them."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._committer, self._send, self._patch = store._committer, PostgresBatch.send, monkeypatch
        self.sent = self.queued = asyncio.gather()
        self._store = store

    async def fill(self) -> None:
        async def never(batch: PostgresBatch, conn: Connection) -> CommitReply:
            await asyncio.Event().wait()
            raise AssertionError

        self._patch.setattr(PostgresBatch, "send", never)
        self.sent = self._added(range(MANY))
        while len(self._committer._flights) < 2:  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
        self.queued = self._added(range(MANY, MANY + LATER))
        while len(self._committer._waiting) < LATER:  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
        self._patch.setattr(PostgresBatch, "send", self._send)

    def _added(self, numbers: range) -> asyncio.Future[list[Committed | BaseException]]:
        adds = [add(self._store, A, draft(set={"n": n})) for n in numbers]
        return asyncio.gather(*adds, return_exceptions=True)

    def cancel(self) -> None:
        """Both lanes, and nobody else."""
        for task in self._committer._tasks:
            task.cancel()

    async def check(self) -> None:
        """Every commit has its answer, and what is acknowledged is there, in order."""
        sent, queued = await self.sent, await self.queued
        assert {type(answer) for answer in sent} == {StoreFailed}
        assert "error.ids" in str(sent[0])
        versions = [answer.head.version for answer in queued if isinstance(answer, Committed)]
        assert versions == list(range(2, 2 + LATER))


async def test_what_is_queued_is_recorded_when_the_lanes_are_cancelled(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to commit once more for it, and no lane is left that waits for more."""
    queue = Queue(store, monkeypatch)
    await queue.fill()
    async with asyncio.timeout(20):
        queue.cancel()
        await queue.check()
        await asyncio.wait(store._committer._tasks)
    loaded = await load(store, A)
    assert (loaded.head.version, loaded.fields) == (1 + LATER, {"n": MANY + LATER - 1})
    assert (await add(store, A)).head.version == 2 + LATER
    assert (await store.verify(None)).ok


async def test_lanes_that_are_cancelled_before_they_began_leave_nothing_queued(
    store: PostgresStore, postgres_store_url: str
) -> None:
    """A task that is cancelled before its first step runs no line of ours."""
    other = await PostgresStore.open(postgres_store_url)
    asked = asyncio.ensure_future(add(other, A))
    await asyncio.sleep(0)
    for task in other._committer._tasks:
        assert getcoroutinestate(cast(Coroutine[Any, Any, None], task.get_coro())) == CORO_CREATED
        task.cancel()
    async with asyncio.timeout(20):
        assert (await asked).head.version == 2
    await other.close()


async def test_what_is_durable_is_answered_though_its_lane_is_cancelled(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane lets the next batch go before it answers its own: cancelled there, it knows both that
    its batch was recorded and what of it."""
    answered, cancelled = Flight.answer, []

    def cancel(flight: Flight, *, held: bool) -> None:
        answered(flight, held=held)
        flight.followed = True  # as by a batch that was planned on top of it
        task = asyncio.current_task()
        if task is not None and not cancelled:
            cancelled.append(task.cancel())

    monkeypatch.setattr(Flight, "answer", cancel)
    adds = [add(store, A, draft(set={"n": n})) for n in range(MANY)]
    async with asyncio.timeout(20):
        found = await asyncio.gather(*adds, return_exceptions=True)
    assert [type(answer) for answer in found] == [Committed] * MANY
    assert cancelled == [True]
    assert (await load(store, A)).head.version == 1 + MANY


async def test_close_answers_what_is_queued_though_the_lanes_were_cancelled(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, after every commit has its answer; even if nobody was told yet that they ended."""
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    queue = Queue(store, monkeypatch)
    await queue.fill()
    queue.cancel()
    async with asyncio.timeout(20):
        while not all([task.done() for task in store._committer._tasks]):  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
        await store.close()
    assert queue.queued.done()
    await queue.check()


def test_a_commit_while_all_tasks_are_cancelled_is_answered(
    postgres_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`asyncio.run` cancels what is left and waits for it: also for who commits on its way out."""
    answers: list[Committed] = []

    async def leaves_late(store: PostgresStore, started: asyncio.Event) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(20):
                answers.append(await add(store, A))
                await store.close()

    async def main() -> asyncio.Task[None]:
        store = await PostgresStore.open(postgres_store_url)
        await create(store, A)
        started = asyncio.Event()
        task = asyncio.create_task(leaves_late(store, started))
        await started.wait()
        return task

    asyncio.run(main())
    assert [answer.head.version for answer in answers] == [2]
    assert "Task was destroyed" not in caplog.text
