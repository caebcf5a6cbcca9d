"""Calls that come later: one timer, in order, and taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from limpet.runtime.wake import DelayedCalls


class Timer:
    """The clock of a loop that stands still, and the one timer that was set on it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.set = 100.0, list[float]()
        self._call: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        patch.setattr(loop, "time", lambda: self.now)
        patch.setattr(loop, "call_at", self._call_at)

    def _call_at(self, at: float, call: Callable[[], None]) -> Any:
        assert self._call is None, "there is one timer for all"
        self.set.append(at)
        self._call = call
        return self

    def cancel(self) -> None:
        self._call = None

    def ring(self, now: float) -> None:
        self.now = now
        call, self._call = self._call, None
        assert call is not None
        call()


@pytest.fixture
async def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    return Timer(monkeypatch)


async def test_each_call_comes_when_its_delay_is_over(timer: Timer) -> None:
    """One timer is set, for the first; then for the first that is left."""
    later, called = DelayedCalls(10), list[str]()
    first, second = (lambda: called.append("first")), (lambda: called.append("second"))
    later.add(first)
    timer.now = 104.0
    later.add(second)
    timer.ring(110.0)
    assert called == ["first"]
    timer.ring(114.0)
    assert called == ["first", "second"]
    assert timer.set == [110.0, 114.0]


async def test_a_call_that_is_taken_back_does_not_come(timer: Timer) -> None:
    """Also if it was the only one; the next one sets a timer again."""
    later, called = DelayedCalls(10), list[str]()

    def call() -> None:
        called.append("called")

    later.add(call)
    later.discard(call)
    later.discard(call)
    timer.ring(110.0)
    assert called == []
    later.add(call)
    timer.ring(120.0)
    assert called == ["called"]


async def test_nothing_comes_after_the_end(timer: Timer) -> None:
    """Its timer is cancelled."""
    later = DelayedCalls(10)
    later.close()
    later.add(lambda: None)
    later.close()
    assert timer._call is None


async def test_calls_can_be_added_after_it_was_closed() -> None:
    """A worker that ran until nothing was due may run again, and must hear of interrupts."""
    later, called = DelayedCalls(0), asyncio.Event()
    later.add(called.clear)
    later.close()
    later.add(called.set)
    await asyncio.wait_for(called.wait(), 60)
