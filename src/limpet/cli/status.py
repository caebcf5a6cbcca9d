"""What a store's sessions are waiting for: counted, and the most urgent of them by name.

Reads the heads page by page and keeps no more of them than are shown, so a store of any size takes
the same memory. Whether a lease has ended is told by this machine's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.model.due import runnable_us
from limpet.model.head import Head
from limpet.model.lease import is_leased
from limpet.model.limits import PAGE_MAX
from limpet.session.limpet import Limpet

State: TypeAlias = Literal["leased", "due", "held", "idle"]
_STATES: Final[tuple[State, ...]] = get_args(State)


class Status(msgspec.Struct):
    """Counts at one moment. A session is in one state at most; in each it may have input."""

    now_us: int
    sessions: int = 0
    pending: int = 0  # with input that was not processed yet
    due: int = 0  # to be claimed now: input, a wake timer, or a lease that ended
    leased: int = 0
    held: int = 0  # given up by its worker, to be retried later
    shown: list[Head] = []  # by state, due ones as they would be claimed

    @property
    def left_off(self) -> int:
        """How many that are in a state to be shown are not."""
        return self.leased + self.due + self.held - len(self.shown)

    def add(self, heads: Iterable[Head], *, limit: int) -> None:
        """Count some more sessions, and keep the most urgent of all."""
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
    """What becomes of it: somebody works on it, a worker that asks now may be given it, it is held
    back until it is retried; or there is nothing to do now."""
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
