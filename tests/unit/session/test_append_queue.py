"""The queue while a commit is under way: a memory store whose commits stop where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from limpet import Limpet, Session, errors
from limpet.model import Commit
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed
from limpet.testing.clock import FakeClock


class Stopping(MemoryStore):
    """Its next commit stops, before or after it is recorded, until it is let go; or its answer is
    lost."""

    def __init__(self) -> None:
        super().__init__(FakeClock().clock())
        self.stop = ""
        self.stopped, self.go = asyncio.Event(), asyncio.Event()

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        stop, self.stop = self.stop, ""
        if stop == "before":
            await self._wait()
        answers = await super().commit(commits)
        if stop == "after":
            await self._wait()
        if stop == "lose":
            raise errors.StoreFailed("memory", "the answer was lost")
        return answers

    async def _wait(self) -> None:
        self.stopped.set()
        await self.go.wait()


@pytest.fixture
def store() -> Stopping:
    return Stopping()


@pytest.fixture
async def lp(store: Stopping) -> AsyncIterator[Limpet]:
    async with Limpet("memory://", store=store) as opened:
        yield opened


async def created(lp: Limpet, store: Stopping, stop: str) -> Session:
    """A session; the next commit stops."""
    s = await lp.create("shop", "ada", id="one", state={"n": 0}, actor="a")
    await s.append("a.b")  # the policy of the app is read here, not in the flush
    store.stop = stop
    return s


async def under_way(lp: Limpet, store: Stopping) -> asyncio.Task[None]:
    flush = asyncio.create_task(lp.flush())
    await store.stopped.wait()
    return flush


async def steps(s: Session) -> list[Any]:
    return [event.data["n"] for event in await s.read(after=2) if event.data is not None]


@pytest.mark.parametrize("stop", ["before", "after"])
async def test_a_flush_cancelled_in_its_commit_doubles_nothing(
    lp: Limpet, store: Stopping, stop: str
) -> None:
    """What it may have recorded is sent again under its id, before what was queued meanwhile."""
    s = await created(lp, store, stop)
    s.append_soon("a.b", {"n": 0})
    flush = await under_way(lp, store)
    s.append_soon("a.b", {"n": 1})
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    await lp.flush()
    assert await steps(s) == [0, 1]


async def test_a_commit_whose_answer_was_lost_is_sent_again_by_session(
    lp: Limpet, store: Stopping
) -> None:
    """Nobody knows whether it was recorded; each session is tried alone, and nothing doubled."""
    other = await lp.create("shop", "ada", id="two", actor="a")
    s = await created(lp, store, "lose")
    for n in range(3):
        s.append_soon("a.b", {"n": n})
        other.append_soon("a.b", {"n": n})
    await lp.flush()
    assert await steps(s) == [0, 1, 2]
    assert (await other.refresh()).version == 4


async def test_a_second_flush_waits_for_the_first(lp: Limpet, store: Stopping) -> None:
    """Or what was queued later would be recorded first."""
    s = await created(lp, store, "before")
    s.append_soon("a.b", {"n": 0})
    first = await under_way(lp, store)
    s.append_soon("a.b", {"n": 1})
    second = asyncio.create_task(lp.flush())
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(first, second)
    assert await steps(s) == [0, 1]


async def test_a_write_waits_for_the_flush_of_its_session_alone(
    lp: Limpet, store: Stopping
) -> None:
    """Another session is written meanwhile."""
    other = await lp.create("shop", "ada", id="two", actor="a")
    s = await created(lp, store, "before")
    s.append_soon("a.b", {"n": 0})
    flush = await under_way(lp, store)
    write = asyncio.create_task(s.append("a.b", {"n": 1}))
    await other.append("a.b")
    assert not write.done()
    store.go.set()
    await asyncio.gather(flush, write)
    assert await steps(s) == [0, 1]


async def test_a_write_is_refused_with_what_a_flush_under_way_had_taken(
    lp: Limpet, store: Stopping
) -> None:
    """The flush names the events; the write that was to come after them is not recorded."""
    s = await created(lp, store, "before")
    id = s.append_soon("a.b", {"n": 0}, add={"n": [1]})
    flush = await under_way(lp, store)
    write = asyncio.create_task(s.append("a.b", {"n": 1}))
    await asyncio.sleep(0)
    store.go.set()
    results = await asyncio.gather(flush, write, return_exceptions=True)
    for error in results:
        assert isinstance(error, errors.FlushFailed)
        assert error.unrecorded[0].ids == (id,)
    assert await steps(s) == []
    await lp.flush()


async def test_a_write_cancelled_while_it_waits_leaves_the_queue_as_it_was(
    lp: Limpet, store: Stopping
) -> None:
    """It had begun to send what was queued before it."""
    s = await created(lp, store, "after")
    s.append_soon("a.b", {"n": 0})
    write = asyncio.create_task(s.append("a.b", {"n": 1}))
    await store.stopped.wait()
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await lp.flush()
    assert await steps(s) == [0]


async def test_closing_waits_for_a_flush_and_takes_nothing_more(
    lp: Limpet, store: Stopping
) -> None:
    """What is queued while it closes would be lost: it is refused."""
    s = await created(lp, store, "before")
    s.append_soon("a.b", {"n": 0})
    flush = await under_way(lp, store)
    closing = asyncio.create_task(lp.close())
    await asyncio.sleep(0)
    with pytest.raises(errors.StoreClosed):
        s.append_soon("a.b", {"n": 1})
    store.go.set()
    await asyncio.gather(flush, closing)
