"""Many open handles in one process: a server holds one for every conversation."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

import limpet
from limpet import Key, Session

HANDLES = 10_000
BYTES_MAX = 1_024


@pytest.fixture
async def lp() -> AsyncIterator[limpet.Limpet]:
    async with limpet.open("memory://") as opened:
        yield opened


def bytes_each(make: Callable[[Key], Session]) -> float:
    """What a handle takes, once the keys are there."""
    keys = [Key("support", f"user-{n}", f"s-{n}") for n in range(HANDLES)]
    make(keys[0])
    gc.collect()
    tracemalloc.start()
    try:
        handles = [make(key) for key in keys]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(handles)
    finally:
        tracemalloc.stop()


async def test_an_open_handle_takes_less_than_a_kilobyte(lp: limpet.Limpet) -> None:
    """Without its state, which nobody has asked for."""
    assert bytes_each(lambda key: lp.session(key, actor="agent:main")) <= BYTES_MAX


async def test_a_loaded_handle_takes_less_than_a_kilobyte_beyond_its_state(
    lp: limpet.Limpet,
) -> None:
    """All of them show one session, whose state the memory store shares with them."""
    key = Key("support", "ada", "one")
    await lp.create("support", "ada", id="one", state={"n": 1}, actor="a")
    tracemalloc.start()
    try:
        handles = [await lp.get(key) for _ in range(HANDLES)]
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / len(handles)
    finally:
        tracemalloc.stop()
    assert each <= BYTES_MAX


async def test_a_handle_is_freed_with_its_last_reference_and_can_be_watched(
    lp: limpet.Limpet,
) -> None:
    """A weak reference shows it; nothing in the package keeps it."""
    handle = lp.session("support", "ada", "one", actor="a")
    seen = weakref.ref(handle)
    del handle
    gc.collect()
    assert seen() is None
