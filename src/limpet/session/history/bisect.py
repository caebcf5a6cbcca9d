"""Bisect: the first event after which something stopped being true of the state."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from limpet.model import Event
from limpet.session.history.at import event_at, first_readable, head_now, state_of
from limpet.session.writer import Writer

Predicate: TypeAlias = Callable[[Any], "bool | Awaitable[bool]"]


async def bisect(writer: Writer, predicate: Predicate) -> Event | None:
    """The first event after which `predicate(state)` is false; None if it is true now.

    It is asked at most ceil(log2 n) + 1 times for n events, once for each state that is read. It
    has to stay false once it is: otherwise some event after which it becomes false is found.
    """
    head, store = await head_now(writer), writer.journal.store
    if await _holds(writer, predicate, head.version):
        return None
    low, high = await first_readable(store, head), head.version  # false after `high`
    while low < high:
        middle = (low + high) // 2
        if await _holds(writer, predicate, middle):
            low = middle + 1
        else:
            high = middle
    return await event_at(store, head.key, high)


async def _holds(writer: Writer, predicate: Predicate, seq: int) -> bool:
    fold = await writer.journal.store.fold_at(writer.known.key, seq)
    answer = predicate(state_of(writer.typed, fold))
    return bool(await answer if inspect.isawaitable(answer) else answer)
