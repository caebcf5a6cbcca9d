"""Keyed locks: one after another under each name, and nothing is kept of names that nobody uses."""

from __future__ import annotations

import asyncio

import pytest

from limpet.graph.sessions import KeyedLocks


async def test_who_comes_first_goes_first_and_other_names_do_not_wait() -> None:
    """In the order of arrival, each name by itself."""
    locks, order = KeyedLocks(), list[str]()
    go = asyncio.Event()

    async def work(name: str, label: str, *, waits: bool) -> None:
        async with locks.of(name):
            if waits:
                await go.wait()
            order.append(label)

    first = asyncio.ensure_future(work("a", "a1", waits=True))
    rest = [asyncio.ensure_future(work("a", f"a{n}", waits=False)) for n in (2, 3)]
    await asyncio.wait_for(asyncio.ensure_future(work("b", "b1", waits=False)), 60)
    assert (order, "a" in locks, "b" in locks) == (["b1"], True, False)
    go.set()
    await asyncio.gather(first, *rest)
    assert order == ["b1", "a1", "a2", "a3"]
    assert "a" not in locks


async def test_who_is_cancelled_or_fails_leaves_nothing_behind() -> None:
    """Neither a lock that is held nor a name that is kept."""
    locks = KeyedLocks()
    async with locks.of("a"):
        waiting = asyncio.ensure_future(locks.of("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert "a" in locks
    assert "a" not in locks
    with pytest.raises(KeyError):
        async with locks.of("a"):
            raise KeyError
    assert "a" not in locks
