"""Work handed from one event loop to another: answered, taken back, and never left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from limpet.errors import StoreClosed
from limpet.session.sync.loop import Loop


@pytest.fixture
def home() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.stop()


async def doubled(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return 2 * number


async def test_every_caller_gets_its_own_answer(home: Loop) -> None:
    """Many at once, errors among them: each hears what its own work gave or raised."""
    calls = [home.await_(doubled(number)) for number in range(-2, 50)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[:2]] == [ValueError, ValueError]
    assert answers[2:] == [2 * number for number in range(50)]


def test_loops_in_several_threads_are_answered(home: Loop) -> None:
    """Each of them on its own loop, one loop after another."""
    found: list[int] = []

    async def ask(number: int) -> None:
        found.extend(await asyncio.gather(*(home.await_(doubled(number)) for _ in range(5))))

    def work(number: int) -> None:
        for _ in range(3):
            asyncio.run(ask(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(2 * number for number in range(4) for _ in range(15))


async def test_a_cancelled_caller_waits_until_its_work_is_over(home: Loop) -> None:
    """What cannot be stopped any more is over when the caller hears of its cancellation."""
    begun, over = threading.Event(), threading.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            over.set()

    task = asyncio.create_task(home.await_(stubborn()))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over.is_set()


async def test_work_that_never_began_is_taken_back(home: Loop) -> None:
    """Cancelled at once, it may or may not run; the caller hears of it either way."""
    task = asyncio.create_task(home.await_(doubled(1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await home.await_(doubled(2)) == 4


async def test_whoever_waits_when_it_stops_is_answered() -> None:
    """And whoever comes later is refused at once."""
    home, begun = Loop(), threading.Event()

    async def waiting() -> None:
        begun.set()
        raise StoreClosed

    task = asyncio.create_task(home.await_(waiting()))
    await asyncio.to_thread(begun.wait)
    await asyncio.to_thread(home.stop)
    with pytest.raises(StoreClosed):
        await task
    with pytest.raises(StoreClosed):
        await home.await_(doubled(1))
