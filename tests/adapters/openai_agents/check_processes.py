"""Several processes, threads and event loops on one session: nothing is lost, nothing is mixed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors
from limpet.adapters.openai_agents import LimpetSession
from tests.adapters.openai_agents.items import user

COUNT = 40


def race(*urls: str) -> None:
    """Two processes add pairs of items to each store at the same time; both are acknowledged."""
    command = [sys.executable, "-m", "tests.adapters.openai_agents.writer"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen([*command, name, str(COUNT), *urls], **pipes) for name in ("one", "two")
    ]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
    assert [writer.communicate("go\n", timeout=60)[0] for writer in writers] == ["done\n"] * 2


def check_whole(items: list[Any]) -> None:
    """Every pair is there, side by side, and each writer's are in its order."""
    said = [item["content"] for item in items]
    assert len(said) == 4 * COUNT
    assert all(a[:-1] == b[:-1] for a, b in zip(said[::2], said[1::2], strict=True))
    for name in ("one", "two"):
        mine = [text for text in said if text.startswith(name)]
        assert mine == [f"{name} {n} {part}" for n in range(COUNT) for part in "ab"]


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Stores that several loops and processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_two_processes_lose_nothing(tmp_path: Path, postgres_store_url: str) -> None:
    """Batches of two processes on one new session are all there, whole and in order."""
    urls = f"sqlite:///{tmp_path}/support.db?sync=normal", postgres_store_url
    race(*urls)
    for url in urls:
        session = LimpetSession("c1", url)
        check_whole(await session.get_items())
        await session.close()


def test_threads_with_loops_of_their_own_share_one_session(shared_url: str) -> None:
    """One object, four threads, a new event loop for every call: all items are there."""
    session = LimpetSession("c1", shared_url)
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(10):
                asyncio.run(session.add_items([user(f"{name}{number}")]))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    found = [item["content"] for item in asyncio.run(session.get_items())]
    assert sorted(found) == sorted(f"{name}{n}" for name in "abcd" for n in range(10))
    for name in "abcd":
        assert [text for text in found if text[0] == name] == [f"{name}{n}" for n in range(10)]
    asyncio.run(session.close())


def test_a_session_in_memory_outlives_an_event_loop() -> None:
    """Its store belongs to the object, not to the loop that used it first; no other shares it."""
    session = LimpetSession("c1", "memory://")
    asyncio.run(session.add_items([user("a")]))
    assert asyncio.run(session.get_items()) == [user("a")]
    other = LimpetSession("c1", "memory://")
    assert asyncio.run(other.get_items()) == []
    asyncio.run(session.close())
    asyncio.run(other.close())


def test_an_open_limpet_is_refused_on_another_loop(tmp_path: Path) -> None:
    """It belongs to the loop that it was opened on; the error says to pass the URL."""

    async def opened() -> LimpetSession:
        lp = await limpet.open(f"sqlite:///{tmp_path}/x.db")
        session = LimpetSession("c1", lp)
        await session.add_items([user("a")])
        await session.close()  # which leaves the Limpet to its owner
        again = LimpetSession("c1", lp)
        assert len(await again.get_items()) == 1
        await lp.close()
        return again

    session = asyncio.run(opened())
    with pytest.raises(errors.InvalidInput, match="URL"):
        asyncio.run(session.get_items())


async def test_the_last_of_its_sessions_closes_a_store(tmp_path: Path) -> None:
    """Sessions of one URL share a store; it stays open while one of them is in use."""
    url = f"sqlite:///{tmp_path}/x.db"
    one, two = LimpetSession("c1", url), LimpetSession("c2", url)
    await one.add_items([user("a")])
    await one.close()
    await one.close()
    await two.add_items([user("b")])
    await two.close()
    with pytest.raises(errors.StoreClosed):
        await two.get_items()
    again = LimpetSession("c1", url)
    assert await again.get_items() == [user("a")]
    await again.close()


async def test_a_cancelled_caller_leaves_a_whole_batch_or_none(tmp_path: Path) -> None:
    """Cancelled at any moment, a batch of three is there with all three items, or not at all."""
    session = LimpetSession("c1", f"sqlite:///{tmp_path}/x.db?sync=normal")
    await session.add_items([user("begin")])
    for turns in range(12):
        task = asyncio.create_task(session.add_items([user(f"{turns}.{n}") for n in range(3)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(await session.get_items()) % 3 == 1
    await session.close()
