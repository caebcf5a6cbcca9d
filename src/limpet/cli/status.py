"""What a store's sessions are waiting for: counts, and the most urgent sessions.

Reads the heads page by page and keeps only those that are shown, so memory does not depend on the
size of the store. This machine's clock decides whether a lease has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.model import PAGE_MAX, Head, runnable_us
from limpet.model.lease import is_leased
from limpet.session.limpet import Limpet

State: TypeAlias = Literal["leased", "due", "held", "idle"]
_STATES: Final[tuple[State, ...]] = get_args(State)


class Status(msgspec.Struct):
    """Counts at one moment. A session is in at most one state; in any state it may have input."""

    now_us: int
    sessions: int = 0
    pending: int = 0  # with unprocessed input
    due: int = 0  # can be claimed now: input, a wake timer, or an ended lease
    leased: int = 0
    held: int = 0  # released by its worker, to be retried later
    shown: list[Head] = []  # by state, due ones as they would be claimed

    @property
    def left_off(self) -> int:
        """How many leased, due or held sessions are not shown."""
        return self.leased + self.due + self.held - len(self.shown)

    def add(self, heads: Iterable[Head], *, limit: int) -> None:
        """Count more sessions, and keep the most urgent ones."""
        urgent = self.shown
        for head in heads:
            self.sessions += 1
            self.pending += head.pending > 0
            state = state_of(head, self.now_us)
            self.leased += state == "leased"
            self.due += state == "due"
            self.held += state == "held"
            if state != "idle":
                urgent.append(head)
        self.shown = heapq.nsmallest(limit, urgent, key=self._rank)

    def _rank(self, head: Head) -> tuple[int, int, int]:
        state = _STATES.index(state_of(head, self.now_us))
        return state, -head.priority, runnable_us(head) or 0


def state_of(head: Head, now_us: int) -> State:
    """Whether the session is leased to a worker, can be claimed now, is held back for a retry, or
    has nothing to do now."""
    if is_leased(head, now_us):
        return "leased"
    at_us = runnable_us(head)
    if at_us is None:
        return "idle"
    if at_us <= now_us:
        return "due"
    return "idle" if head.lease_us is None else "held"


async def status_of(lp: Limpet, app: str | None, *, now_us: int, limit: int) -> Status:
    """The status of a store, or of one app in it."""
    status, cursor = Status(now_us, shown=[]), None
    while True:
        page = await lp.list(app=app, reverse=False, limit=PAGE_MAX, cursor=cursor)
        status.add(page.items, limit=limit)
        cursor = page.cursor
        if cursor is None:
            return status
