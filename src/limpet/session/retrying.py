"""The one way to try again: a write that another writer was faster than is decided once more.

Bounded, with a short random pause before each new try, so that writers who met do not meet again.
`retrying` suits an attempt that is one function; `Tries` a loop that learns from each refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from limpet.errors import LimpetError, SessionConflict
from limpet.model.limits import UPDATE_TRIES_MAX

T = TypeVar("T")
_PAUSE_SECONDS_MAX: Final = 0.002


class Tries:
    """`async for left in Tries()`: how many tries are left after this one; 0 is the last.

    Pauses before each but the first. Not a generator: one that is left early costs the loop a task.
    """

    def __init__(self) -> None:
        self._left = UPDATE_TRIES_MAX

    def __aiter__(self) -> Tries:
        return self

    async def __anext__(self) -> int:
        if not self._left:
            raise StopAsyncIteration
        if self._left < UPDATE_TRIES_MAX:
            import random  # most attempts meet no other

            await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))  # nosec B311  # spreads retries
        self._left -= 1
        return self._left


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *errors: type[LimpetError],
    unless: Callable[[LimpetError], bool] = lambda error: False,
) -> T:
    """Return what `attempt()` returns, made again after one of these errors.

    Raises the last one after UPDATE_TRIES_MAX tries, and at once if `unless` says so.
    """
    async for left in Tries():
        try:
            return await attempt()
        except errors as error:
            if not left or unless(error):
                raise
    raise AssertionError("the last try returns or raises")


def is_not_about_the_version(error: LimpetError) -> bool:
    """True of a conflict that another try would meet again, if only the version is read again."""
    return isinstance(error, SessionConflict) and error.on != "session"
