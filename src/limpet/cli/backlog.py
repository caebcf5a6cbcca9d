"""The backlog of a store: how many sessions wait for a worker, and the most urgent of them.

The counts are the store's. Those that are shown are read page by page, and only these are kept, so
memory does not depend on the size of the store. The store's clock decides whether a lease is over.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, get_args

import msgspec

import limpet
from limpet.errors import SessionError
from limpet.model import Head, Key, runnable_us, to_us
from limpet.model.diff.changes import brief, printable
from limpet.model.facts.running.children import children_in
from limpet.model.facts.running.deaths import dead_reason
from limpet.model.facts.running.endings import is_held
from limpet.model.facts.running.runs import is_paused, is_short, waiting_status
from limpet.model.lease import Readiness, readiness
from limpet.model.limits import PAGE_MAX

_INPUT_CHARS_MAX: Final = 60
_TRIED: Final = {"idempotency_key": "idempotency key", "since": "since", "worker": "by"}
_ORDER: Final[tuple[Readiness, ...]] = get_args(Readiness)  # leased sessions are shown first


class Needed(msgspec.Struct, frozen=True):
    """The requests that a session waits for, and why its last run failed."""

    requests: tuple[limpet.Request, ...] = ()
    failure: limpet.RunFailure | None = None


class SuspendedSession(msgspec.Struct, frozen=True):
    """A suspended session: since when, by whom and why."""

    head: Head
    since_us: int
    why: str


_NOTHING: Final = Needed()


class Backlog(msgspec.Struct):
    """The counts of a store, and its most urgent sessions."""

    status: limpet.StoreStatus
    now_us: int
    shown: list[Head] = []  # all but idle ones; due ones as they would be claimed
    needed: dict[Key, Needed] = {}  # by those shown that wait for somebody
    suspended: list[SuspendedSession] = []  # idle ones

    @property
    def busy(self) -> int:
        """The number of sessions that are not idle."""
        status = self.status
        return status.leased + status.due + status.blocked + status.dead + status.held

    @property
    def left_off(self) -> int:
        """The number of sessions that are not idle and not shown."""
        return max(0, self.busy - len(self.shown))

    @property
    def suspended_left_off(self) -> int:
        """The number of suspended sessions that are not shown."""
        shown = len(self.suspended) + len([h for h in self.shown if h.phase == "suspended"])
        return max(0, self.status.by_phase.get("suspended", 0) - shown)

    def add(self, heads: Iterable[Head], *, limit: int) -> int:
        """Keep the most urgent of these and of those kept before. Returns how many are not idle."""
        busy = [head for head in heads if readiness(head, self.now_us) != "idle"]
        self.shown = heapq.nsmallest(limit, [*self.shown, *busy], key=self._rank)
        return len(busy)

    def _rank(self, head: Head) -> tuple[int, int, int]:
        order = _ORDER.index(readiness(head, self.now_us))
        return order, -head.priority, runnable_us(head) or 0


def needed_by(session: limpet.Session[Any]) -> Needed:
    """Return what a loaded session waits for."""
    return Needed(session.blocked_on, session.runs.failure)


def needs(head: Head, state: Readiness, needed: Needed = _NOTHING) -> list[str]:
    """Return what a blocked session waits for; why one is a dead letter, or tried again; else
    nothing."""
    failure = needed.failure
    if state == "blocked":
        asked = [f"waits for {request_line(each)}" for each in needed.requests]
        if is_short(head.facts) and failure is not None:
            asked.append(_one_line(failure.message or failure.code))
        return asked or [f"waits for child {child}" for child in _awaited_children(head)]
    if (state == "dead" and not is_held(head.facts)) or _is_retried(head, state):
        if failure is None:
            return []
        line = _one_line(failure.message or failure.code)
        return [f"died: {line}" if dead_reason(head.facts) == "died" else line]
    return ["a compensation failed"] if state == "dead" else []


async def backlog_of(lp: limpet.Limpet, app: str | None, *, limit: int) -> Backlog:
    """The backlog of a store, or of one app in it."""
    backlog = Backlog(await lp.status(app=app), to_us(lp.now()))
    left, cursor = backlog.busy if limit else 0, None
    while left > 0:
        page = await lp.list(app=app, reverse=False, limit=PAGE_MAX, cursor=cursor)
        left -= backlog.add(page.items, limit=limit)
        cursor = page.cursor
        if cursor is None:
            break
    for head in backlog.shown:
        state = readiness(head, backlog.now_us)
        if state in ("blocked", "dead") or _is_retried(head, state):
            with suppress(SessionError):  # it ended meanwhile
                session = await lp.get(head.key, tail=0, untyped=True)
                backlog.needed[head.key] = needed_by(session)
    await _add_suspended(lp, app, backlog, limit)
    return backlog


async def suspended(session: limpet.Session[Any], head: Head) -> SuspendedSession:
    """Return who suspended a session, when and why."""
    events = await session.read(types=["session.suspended"], reverse=True, limit=1)
    if not events:  # old events may have been removed
        return SuspendedSession(head, head.updated_us, "suspended")
    (event,) = events
    reason = (event.data or {}).get("reason")
    why = _one_line(f"suspended by {event.actor}" + (f": {reason}" if reason else ""))
    return SuspendedSession(head, event.at_us, why)


def request_line(request: limpet.Request) -> str:
    """Return what is asked for, in one line, with the id of the request."""
    what = asked_for(request.kind, request.input)
    return f"{request.kind} {request.name} {what} ({request.id})"


def asked_for(kind: str, shown: Any, chars_max: int = _INPUT_CHARS_MAX) -> str:
    """The input of a request in one line. An unknown effect is looked up elsewhere: its idempotency
    key is shown whole, with when it was tried and by whom. A mismatch says why."""
    if isinstance(shown, Mapping) and kind == "mismatch" and shown.get("why"):
        return _one_line(f"because {shown.get('what', 'it')} {shown['why']}")
    if kind != "unknown_effect" or not isinstance(shown, Mapping):
        return brief(shown, chars_max)
    args = [brief(shown["args"], chars_max)] if "args" in shown else []
    tried = [f"{word} {shown[name]}" for name, word in _TRIED.items() if shown.get(name)]
    return printable(", ".join([*args, *tried]))


async def _add_suspended(lp: limpet.Limpet, app: str | None, backlog: Backlog, limit: int) -> None:
    """Fill up what is shown with suspended sessions: their input waits, and no worker takes it."""
    cursor: str | None = None
    while backlog.suspended_left_off and len(backlog.shown) + len(backlog.suspended) < limit:
        room = limit - len(backlog.shown) - len(backlog.suspended)
        page = await lp.list(app=app, phase="suspended", limit=room, cursor=cursor)
        for head in page.items:
            if readiness(head, backlog.now_us) == "idle":
                with suppress(SessionError):  # it was deleted meanwhile
                    backlog.suspended.append(await suspended(lp.session(head.key), head))
        cursor = page.cursor
        if cursor is None:
            return


def _one_line(message: str) -> str:
    """An error of a harness may quote anything."""
    return printable(" ".join(message.split()))


def _is_retried(head: Head, state: Readiness) -> bool:
    """True if its turn failed, and waits to be tried again."""
    return state in ("due", "held") and waiting_status(head.facts) == "rescheduling"


def _awaited_children(head: Head) -> list[Key]:
    """The children that a paused session waits for: one that is dead keeps it waiting."""
    if not is_paused(head.facts):
        return []
    children = children_in(head.facts).items()
    return [Key(child["app"], child["user"], id) for id, child in children]
