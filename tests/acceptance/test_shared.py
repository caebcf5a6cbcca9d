"""SharedLimpet: one store for every event loop and thread; and names without a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import limpet
from limpet import InvalidInput, Limpet, SharedLimpet
from limpet.errors import StoreClosed


def in_threads(*works: Callable[[], None]) -> None:
    """Run them side by side, each in a thread, and raise what they raise."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


async def appended(shared: SharedLimpet, id: str, number: int) -> None:
    async def work(lp: Limpet) -> None:
        session = await lp.get_or_create("support", "ada", id)
        for _ in range(number):
            await session.append("x.done", actor="a", inc={"app:n": 1, "own": 1})

    await shared.run(work)


async def test_every_loop_and_thread_writes_to_one_store(url: str) -> None:
    """This loop, loops of other threads and a thread without any: nothing is lost."""
    shared = SharedLimpet(url)
    await appended(shared, "here", 5)
    others = [lambda id=id: asyncio.run(appended(shared, id, 5)) for id in ("a", "b", "c")]

    def plainly() -> None:
        async def work(lp: Limpet) -> None:
            await (await lp.create("support", "ada", "d")).append("x.done", actor="a")

        shared.call(work)

    await asyncio.to_thread(in_threads, *others, plainly)
    await appended(shared, "here", 5)
    found = await shared.run(lambda lp: lp.get("support", "ada", "here"))
    assert (found.values["app:n"], found.values["own"]) == (25, 10)
    await shared.close()


def test_one_loop_after_another(url: str) -> None:
    """A loop that ended takes nothing with it: the next ones go on with the same store."""
    shared = SharedLimpet(url)
    for _ in range(3):
        asyncio.run(appended(shared, "s", 2))
    assert shared.call(lambda lp: lp.get("support", "ada", "s")).values["own"] == 6
    asyncio.run(shared.close())


async def test_an_open_limpet_is_used_on_its_own_loop_and_stays_open() -> None:
    """Another loop is refused with advice; closing leaves it to its owner."""
    async with limpet.open("memory://") as lp:
        shared = SharedLimpet(lp)
        await appended(shared, "s", 1)
        with pytest.raises(InvalidInput, match="Pass its URL"):
            await asyncio.to_thread(lambda: asyncio.run(appended(shared, "s", 1)))
        with pytest.raises(InvalidInput, match="Pass its URL"):
            shared.call(lambda lp: lp.get("support", "ada", "s"))
        await shared.close()
        with pytest.raises(StoreClosed):
            await appended(shared, "s", 1)
        assert (await lp.get("support", "ada", "s")).values["own"] == 1


async def test_after_closing_nothing_is_asked(url: str) -> None:
    """Closing twice is fine, and every way in says that it is closed."""
    shared = SharedLimpet(url)
    await appended(shared, "s", 1)
    await asyncio.to_thread(lambda: asyncio.run(appended(shared, "t", 1)))
    await shared.close()
    await shared.close()
    with pytest.raises(StoreClosed, match="closed with close"):
        await appended(shared, "s", 1)
    with pytest.raises(StoreClosed, match="closed with close"):
        shared.call(lambda lp: lp.get("support", "ada", "s"))


async def test_a_store_that_cannot_be_opened_is_tried_again() -> None:
    """The first caller gets the error, and so does the next; what is no store is refused."""
    shared = SharedLimpet("nowhere://x")
    for _ in range(2):
        with pytest.raises(limpet.errors.InvalidURL):
            await appended(shared, "s", 1)
    await shared.close()
    with pytest.raises(InvalidInput, match="not a store"):
        SharedLimpet(7)  # type: ignore[arg-type]


async def test_a_cancelled_caller_on_another_loop_hears_when_it_is_over() -> None:
    """The work is cancelled where it runs, and has ended before the caller goes on."""
    shared = SharedLimpet("memory://")  # a memory store is always on a loop of its own
    began, told = asyncio.Event(), []
    here = asyncio.get_running_loop()

    async def work(lp: Limpet) -> None:
        here.call_soon_threadsafe(began.set)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("ended")

    task = asyncio.ensure_future(shared.run(work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["ended"]
    await shared.close()


async def test_shared_names_are_read_without_a_session(lp: Limpet) -> None:
    """app: names for an app, user: names too for a user, also when every session is gone."""
    state = {"app:a": {"x": 1}, "user:u": None, "own": 1}
    session = await lp.create("support", "ada", state=state)
    await lp.create("support", "bob", state={"user:u": "bob"})
    await session.append("x.done", actor="a", set={"app:b": 2}, delete=["app:a"])
    await lp.delete(session.key)
    assert await lp.names("support") == {"app:b": 2}
    assert await lp.names("support", "ada") == {"app:b": 2, "user:u": None}
    assert await lp.names("support", "eve") == {"app:b": 2}
    assert await lp.names("other") == {}
    with pytest.raises(limpet.errors.InvalidKey):
        await lp.names("")
    with pytest.raises(limpet.errors.ReservedApp):
        await lp.names("$agents")
