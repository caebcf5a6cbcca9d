"""The one way to try again: a write that another writer was faster than is decided once more.

Bounded, with a short random pause before each new try, so that writers who met do not meet again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from limpet.errors import LimpetError
from limpet.model.limits import UPDATE_TRIES_MAX

T = TypeVar("T")
_PAUSE_SECONDS_MAX: Final = 0.002


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *errors: type[LimpetError],
    unless: Callable[[LimpetError], bool] = lambda error: False,
) -> T:
    """Return what `attempt()` returns, made again after one of these errors.

    Raises the last one after UPDATE_TRIES_MAX tries, and at once if `unless` says so.
    """
    for _ in range(UPDATE_TRIES_MAX - 1):
        try:
            return await attempt()
        except errors as error:
            if unless(error):
                raise
        import random  # most attempts meet no other

        await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))
    return await attempt()
