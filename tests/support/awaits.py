"""A coroutine cancelled at each of its awaits, one run after the other, without a clock.

Two moments belong to every await: while its answer is still to come, and just as it has come and
the coroutine has not gone on yet. The second is the one that drivers forget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

When = Literal["waiting", "answered"]


async def cancelled_at(number: int, when: When, work: Callable[[], Awaitable[Any]]) -> bool:
    """Run `work` and cancel it at its nth await; False if it has fewer, and came to its end."""
    task = asyncio.ensure_future(work())
    await cancel_at(number, when, task, task)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def cancel_at(number: int, when: When, task: Any, until: asyncio.Future[Any]) -> bool:
    """Cancel a task at the nth await that it comes to from now on; False if `until` ends first."""
    met: list[Any] = []  # kept: an id is used again once its future is gone
    while not until.done():
        await asyncio.sleep(0)  # runs before what became ready in the meantime
        future = task._fut_waiter
        if future is not None and (not met or met[-1] is not future):
            met.append(future)
        if len(met) >= number and (when == "waiting" or met[number - 1].done()):
            task.cancel()
            return True
    return False
