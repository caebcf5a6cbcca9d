"""The backlog of a store: how many sessions wait for a worker, and the most urgent of them.

Reads the heads page by page and keeps only those that are shown, so memory does not depend on the
size of the store. The store's clock decides whether a lease has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.errors import SessionError
from limpet.model import NO_TEXTS, Head, Key, Texts, runnable_us, to_us
from limpet.model.diff.changes import brief, printable
from limpet.model.facts.running.children import children_in
from limpet.model.facts.running.endings import has_ended, is_held
from limpet.model.facts.running.requests import Request, open_requests
from limpet.model.facts.running.runs import failure_in, is_dead, is_paused, is_short, run_in
from limpet.model.lease import is_leased
from limpet.model.limits import PAGE_MAX
from limpet.session.limpet import Limpet
from limpet.session.writer import writer_of

Readiness: TypeAlias = Literal["leased", "due", "blocked", "dead", "held", "idle"]
_INPUT_CHARS_MAX: Final = 60
_TRIED: Final = {"idempotency_key": "idempotency key", "since": "since", "worker": "by"}
_ORDER: Final[tuple[Readiness, ...]] = get_args(Readiness)  # leased sessions are shown first


class Backlog(msgspec.Struct):
    """Counts at one moment. A session is in one of the states of Readiness; in each it may have
    pending input."""

    now_us: int
    sessions: int = 0
    pending: int = 0  # with unprocessed input
    due: int = 0  # can be claimed now: input, a wake timer, or an ended lease
    leased: int = 0
    blocked: int = 0  # a person, a tool or a child has to answer, or more is to be granted
    dead: int = 0  # dead letters: held until somebody requeues them
    held: int = 0  # to be retried later
    shown: list[Head] = []  # all but idle ones; due ones as they would be claimed
    texts: dict[Key, Texts] = {}  # of those shown that wait for somebody

    @property
    def left_off(self) -> int:
        """How many sessions that are not idle are not shown."""
        counted = self.leased + self.due + self.blocked + self.dead + self.held
        return counted - len(self.shown)

    def add(self, heads: Iterable[Head], *, limit: int) -> None:
        """Count more sessions, and keep the most urgent ones."""
        urgent = self.shown
        for head in heads:
            self.sessions += 1
            self.pending += head.pending > 0
            ready = readiness(head, self.now_us)
            self.leased += ready == "leased"
            self.due += ready == "due"
            self.blocked += ready == "blocked"
            self.dead += ready == "dead"
            self.held += ready == "held"
            if ready != "idle":
                urgent.append(head)
        self.shown = heapq.nsmallest(limit, urgent, key=self._rank)

    def _rank(self, head: Head) -> tuple[int, int, int]:
        order = _ORDER.index(readiness(head, self.now_us))
        return order, -head.priority, runnable_us(head) or 0


class SessionStatus(msgspec.Struct, frozen=True):
    """Where one session stands, and why its last turn ended."""

    head: Head
    status: str
    stop_reason: str | None
    now_us: int
    texts: Texts


def readiness(head: Head, now_us: int) -> Readiness:
    """Whether the session is leased to a worker, can be claimed now, waits for an answer, a grant
    or a person who requeues it, is held back for a retry, or has nothing to do now."""
    facts = head.facts
    if is_leased(head, now_us):
        return "leased"
    at_us = runnable_us(head)
    if at_us is not None and at_us <= now_us:
        return "due"
    if is_held(facts):
        return "dead"
    if not has_ended(facts):  # nobody can answer or requeue one that has
        if is_dead(facts):
            return "dead"
        if open_requests(facts) or is_short(facts) or _awaited(head):
            return "blocked"
    if at_us is None:
        return "idle"
    is_retried = run_in(head.facts).get("stop") == "rescheduling"
    return "idle" if head.lease_us is None and not is_retried else "held"


def needs(head: Head, state: Readiness, texts: Texts = NO_TEXTS) -> list[str]:
    """What a blocked session waits for, or why a session is a dead letter; else nothing."""
    facts, failure = head.facts, failure_in(head.facts, texts)
    if state == "blocked":
        asked = [f"waits for {request_line(each)}" for each in open_requests(facts, texts)]
        if is_short(facts) and failure is not None:
            asked.append(_one_line(failure.message or failure.code))
        return asked or [f"waits for child {child}" for child in _awaited(head)]
    if state == "dead" and not is_held(facts):
        return [] if failure is None else [_one_line(failure.message or failure.code)]
    return ["a compensation failed"] if state == "dead" else []


def request_line(request: Request) -> str:
    """What is asked for, in one line. An unknown effect is looked up elsewhere: its idempotency key
    is shown whole, with when it was tried and by whom."""
    name, shown = f"{request.kind} {request.name}", request.input
    if request.kind != "unknown_effect" or not isinstance(shown, Mapping):
        return f"{name} {brief(shown, _INPUT_CHARS_MAX)} ({request.id})"
    args = brief(shown["args"], _INPUT_CHARS_MAX) if "args" in shown else ""
    tried = [f"{word} {shown[name]}" for name, word in _TRIED.items() if shown.get(name)]
    return printable(f"{' '.join([name, args]).rstrip()}, {', '.join(tried)} ({request.id})")


def _one_line(message: str) -> str:
    """An error of a harness may quote anything."""
    return printable(" ".join(message.split()))


def _awaited(head: Head) -> list[Key]:
    """The children that a paused session waits for: one that is dead keeps it waiting."""
    if not is_paused(head.facts):
        return []
    children = children_in(head.facts).items()
    return [Key(child["app"], child["user"], id) for id, child in children]


async def backlog_of(lp: Limpet, app: str | None, *, now: datetime, limit: int) -> Backlog:
    """The backlog of a store, or of one app in it."""
    backlog, cursor = Backlog(to_us(now), shown=[], texts={}), None
    while True:
        page = await lp.list(app=app, reverse=False, limit=PAGE_MAX, cursor=cursor)
        backlog.add(page.items, limit=limit)
        cursor = page.cursor
        if cursor is None:
            break
    for head in backlog.shown:
        if readiness(head, backlog.now_us) in ("blocked", "dead"):
            session = lp.session(head.key)
            with suppress(SessionError):  # it ended meanwhile
                await session.refresh(tail=0)
                backlog.texts[head.key] = writer_of(session).known.texts
    return backlog
