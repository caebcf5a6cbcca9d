"""Blocking work in a thread, to its end; and whether this is the process that began it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")


class Process:
    """This process. `forks` says how often it was forked off another; whoever remembers it knows
    later whether it was forked since. Every append asks, and `os.getpid` is a system call."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.forks += 1


PROCESS: Final = Process()


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancelled caller gets CancelledError when it is over, not
    before."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
        raise
