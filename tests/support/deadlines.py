"""Deadlines that are over by the clock that judges them: the store's own.

A store on a server dates events by an estimate of the server's clock, which may be ahead of it for
a moment, and a machine's clock may be set back. So a test with a deadline of one microsecond does
not sweep at once: it waits until the store itself finds what is due.
"""

from __future__ import annotations

import time
from typing import Any

import limpet

PATIENCE_SECONDS = 60.0


async def passed(lp: limpet.Limpet, sessions: int = 1) -> None:
    """Wait until the deadlines of so many sessions that nobody holds are over."""
    store: Any = lp._journal.store
    end = time.monotonic() + PATIENCE_SECONDS
    while len((await store.expired(limit=sessions))[0]) < sessions:
        assert time.monotonic() < end, "the deadlines do not come by the clock of the store"
