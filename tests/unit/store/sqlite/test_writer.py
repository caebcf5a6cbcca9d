"""The writer: bounded, answering everyone, and never in doubt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from limpet.errors import StoreClosed, StoreError
from limpet.store import jobs
from limpet.store.protocol import Committed
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, load, log
from tests.support.inside import on_writer

A = key("a")
SOON = 60.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(tmp_path / "store.db", sync="normal")
    yield store
    await store.close()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that holds two jobs and batches of two."""
    monkeypatch.setattr(jobs, "WAITING_MAX", 2)
    monkeypatch.setattr(jobs, "BATCH_MAX", 2)


def writers() -> set[threading.Thread]:
    """The threads that write, of every store in this process."""
    return {thread for thread in threading.enumerate() if thread.name == "limpet-writer"}


async def test_reading_starts_no_thread(store: SQLiteStore) -> None:
    """A process that only looks has nothing running beside it."""
    before = writers()
    with pytest.raises(LookupError):
        await load(store, A)
    assert writers() <= before  # a store that another test left to the collector may end meanwhile


@pytest.mark.usefixtures("narrow")
async def test_a_full_queue_makes_callers_wait(store: SQLiteStore) -> None:
    """More callers than the queue holds are all served, a few at a time."""
    await create(store, A)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(add(store, A, draft(inc={"n": 1})) for _ in range(50)))
    assert (await load(store, A)).fields == {"n": 50}


@pytest.mark.usefixtures("narrow")
async def test_a_caller_may_give_up_in_front_of_a_full_queue(store: SQLiteStore) -> None:
    """Those who go on waiting are served, those who left are not recorded."""
    await create(store, A)
    tasks = [asyncio.create_task(add(store, A, draft(id=f"d{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[10:]:
        task.cancel()
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    recorded = {event.id for event in (await log(store, A))[1:]}
    for n, answer in enumerate(answers):
        assert (f"d{n}" in recorded) >= isinstance(answer, Committed)
    assert {f"d{n}" for n in range(10)} <= recorded


@pytest.mark.usefixtures("narrow")
async def test_closing_answers_those_who_wait_in_front_of_a_full_queue(
    store: SQLiteStore,
) -> None:
    """Nobody is left waiting for a writer that is gone."""
    await create(store, A)
    tasks = [asyncio.create_task(add(store, A)) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        await store.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, Committed) or type(answer) is StoreClosed


async def test_whoever_was_taken_is_told_when_the_writer_cannot_go_on(store: SQLiteStore) -> None:
    """Also one whose turn had not come: a transaction could not be ended, nor a connection made.
    The next caller gets a new writer."""
    await create(store, A)
    held, running = threading.Event(), store._write()

    def fail(_: object) -> None:
        running._writes.conn.execute("BEGIN IMMEDIATE")
        raise apsw.IOError("the disk is gone")

    def refuse() -> None:
        raise apsw.CantOpenError("no file can be opened")

    running._commit = fail  # type: ignore[assignment,method-assign]
    running._writes.open = refuse  # type: ignore[method-assign]
    waiting = [asyncio.create_task(on_writer(store, lambda _: held.wait()))]
    waiting += [asyncio.create_task(add(store, A)) for _ in range(3)]
    waiting += [asyncio.create_task(store.claim("w", limit=1, lease_seconds=1))]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    held.set()
    async with asyncio.timeout(SOON):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers[1:])
    assert (await add(store, A)).head.version == 2
