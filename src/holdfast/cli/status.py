"""What a store's sessions are waiting for: counted, and the most urgent of them by name.

Reads the heads page by page and keeps no more of them than are shown, so a store of any size takes
the same memory. Whether a lease has ended is told by this machine's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from holdfast.model.due import runnable_us
from holdfast.model.head import Head
from holdfast.model.lease import is_leased
from holdfast.model.limits import PAGE_MAX
from holdfast.session.sessions import Holdfast


class Status(msgspec.Struct):
    """Counts at one moment. A session is leased or due, never both; either may have input."""

    now_us: int
    sessions: int = 0
    pending: int = 0  # with input that was not processed yet
    due: int = 0  # to be claimed now: input, a wake timer, or a lease that ended
    leased: int = 0
    shown: list[Head] = []  # leased ones first; then due ones as they would be claimed

    @property
    def left_off(self) -> int:
        """How many that are leased or due are not shown."""
        return self.leased + self.due - len(self.shown)

    def add(self, heads: Iterable[Head], *, limit: int) -> None:
        """Count some more sessions, and keep the most urgent of all."""
        urgent = self.shown
        for head in heads:
            self.sessions += 1
            self.pending += head.pending > 0
            leased, due = is_leased(head, self.now_us), is_due(head, self.now_us)
            self.leased += leased
            self.due += due
            if leased or due:
                urgent.append(head)
        self.shown = heapq.nsmallest(limit, urgent, key=self._rank)

    def _rank(self, head: Head) -> tuple[bool, int, int]:
        return not is_leased(head, self.now_us), -head.priority, runnable_us(head) or 0


def is_due(head: Head, now_us: int) -> bool:
    """Whether a worker that asks now may be given it."""
    at_us = runnable_us(head)
    return at_us is not None and at_us <= now_us


async def status_of(hf: Holdfast, app: str | None, *, now_us: int, limit: int) -> Status:
    """The status of a store, or of one app in it."""
    status, cursor = Status(now_us, shown=[]), None
    while True:
        page = await hf.list(app=app, reverse=False, limit=PAGE_MAX, cursor=cursor)
        status.add(page.items, limit=limit)
        cursor = page.cursor
        if cursor is None:
            return status
