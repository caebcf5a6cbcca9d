"""Turns: one after another under each name, and nothing is kept of names that nobody uses."""

from __future__ import annotations

import asyncio

import pytest

from limpet.graph.turns import Turns


async def test_who_comes_first_goes_first_and_other_names_do_not_wait() -> None:
    """In the order of arrival, each name by itself."""
    turns, order = Turns(), list[str]()
    go = asyncio.Event()

    async def work(name: str, label: str, *, waits: bool) -> None:
        async with turns.of(name):
            if waits:
                await go.wait()
            order.append(label)

    first = asyncio.ensure_future(work("a", "a1", waits=True))
    rest = [asyncio.ensure_future(work("a", f"a{n}", waits=False)) for n in (2, 3)]
    await asyncio.wait_for(asyncio.ensure_future(work("b", "b1", waits=False)), 60)
    assert (order, "a" in turns, "b" in turns) == (["b1"], True, False)
    go.set()
    await asyncio.gather(first, *rest)
    assert order == ["b1", "a1", "a2", "a3"]
    assert "a" not in turns


async def test_who_is_cancelled_or_fails_leaves_nothing_behind() -> None:
    """Neither a lock that is held nor a name that is kept."""
    turns = Turns()
    async with turns.of("a"):
        waiting = asyncio.ensure_future(turns.of("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert "a" in turns
    assert "a" not in turns
    with pytest.raises(KeyError):
        async with turns.of("a"):
            raise KeyError
    assert "a" not in turns
