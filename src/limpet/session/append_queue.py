"""The queue: events that wait for a flush, in the order they were appended to their sessions.

A flush sends what waits of many sessions in few commits. A session's events are recorded in their
order, and before any later write to that session: the journal asks `before` for each commit. If the
events of one session are refused, the others are recorded all the same.

An event leaves the queue when it is recorded or when a flush has named it in its error, and in no
other way. A cancelled flush puts back what it does not know to be recorded; sent again under the
same id, an event is recorded once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

from msgspec import structs

from limpet.errors import (
    FlushFailed,
    InvalidInput,
    LimpetError,
    QueueFull,
    SessionDeleted,
    StoreBusy,
    StoreClosed,
    StoreForked,
    StoreFull,
    StoreReadOnly,
    Unrecorded,
)
from limpet.model import Commit, Draft, Event, Key, Prepared
from limpet.model.limits import QUEUED_BYTES_MAX, QUEUED_EVENTS_MAX
from limpet.session.loggers import SESSION
from limpet.store.protocol import Committed

# Of one commit of a flush: other writers wait while it is written.
COMMIT_EVENTS: Final = 1_000
COMMIT_BYTES: Final = 1 * 2**20
COMMIT_SESSIONS: Final = 500
COMMIT_OBJECTS: Final = 16  # session objects that are shown the same commit
# These concern the store, not one session: trying each session separately would not help.
_OF_THE_STORE: Final = (StoreBusy, StoreFull, StoreReadOnly, StoreClosed, StoreForked)

Send: TypeAlias = Callable[[Sequence[Commit]], Awaitable[tuple[Committed, ...]]]


class Appender(Protocol):
    """The object that an event was appended through: a Writer, which stands above the journal
    that owns this queue."""

    def terms(self) -> object | None:
        """Write conditions; two handles share a commit only if these are equal. None: never."""
        ...

    def propose(self, drafts: tuple[Prepared, ...], /) -> Commit | None:
        """Return the commit of these drafts; None if it depends on the newest state."""
        ...

    def settle(self, committed: Committed, /) -> bool:
        """Learn the result of a commit; True if its input has to resume the session."""
        ...

    async def rouse(self) -> None:
        """Resume the session. Hooks of the app may run here."""
        ...

    def note_refusal(self, error: Exception, /) -> None:
        """Learn why the commit was refused."""
        ...

    async def append(
        self, drafts: tuple[Prepared, ...], expect: int | None, *, may_repeat: bool = False
    ) -> tuple[Event, ...]:
        """Record the drafts in a commit of their own."""
        ...


class _Part:
    """Events of one session that go into one commit, and the objects that appended them."""

    __slots__ = ("doubtful", "drafts", "owners", "size")

    def __init__(self, owner: Appender) -> None:
        self.drafts: list[Prepared] = []
        self.owners = {owner: owner.terms()}
        self.size = 0
        self.doubtful = False  # it was sent, and may have been recorded

    def takes(self, owner: Appender, size: int) -> bool:
        """True if there is room, and `owner` writes under the same conditions as the others."""
        if len(self.drafts) >= COMMIT_EVENTS or self.size + size > COMMIT_BYTES or self.doubtful:
            return False  # a doubtful one is recorded whole or not at all: what is new comes after
        if owner in self.owners:
            return True
        terms = owner.terms()
        alike = terms is not None and terms == next(iter(self.owners.values()))
        if alike and len(self.owners) < COMMIT_OBJECTS:
            self.owners[owner] = terms
            return True
        return False

    def again(self) -> None:
        """Have the store look for its ids: it may have been recorded."""
        self.doubtful = True
        self.drafts = [structs.replace(draft, caller_chose_id=True) for draft in self.drafts]

    def proposed(self) -> Commit | None:
        return self._first.propose(tuple(self.drafts))

    async def decide(self) -> None:
        """Record it on what the session is now."""
        await self._first.append(tuple(self.drafts), None, may_repeat=True)

    def refuse(self, error: Exception) -> None:
        self._first.note_refusal(error)

    def settle(self, answer: Committed) -> list[Appender]:
        """Show it to the objects; return those that have to resume their session."""
        return [owner for owner in self.owners if owner.settle(answer)]

    @property
    def _first(self) -> Appender:
        return next(iter(self.owners))


class _Waiting:
    """The queued events of one session, and why they cannot be recorded, if that was tried."""

    __slots__ = ("error", "key", "parts")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.parts: deque[_Part] = deque()
        self.error: Exception | None = None

    def unrecorded(self) -> Unrecorded:
        assert self.error is not None
        drafts = tuple([_draft_again(draft) for part in self.parts for draft in part.drafts])
        return Unrecorded(self.key, drafts, self.error)


class _Flush:
    """A flush under way. What is written on its behalf does not wait for it."""

    __slots__ = ("of", "over")

    def __init__(self, of: Queue) -> None:
        self.of, self.over = of, False


_inside: ContextVar[_Flush | None] = ContextVar("limpet_flush", default=None)


class Queue:
    """The events of one Limpet that wait for a flush."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lines: dict[Key, _Waiting] = {}
        self._sending: dict[Key, _Waiting] = {}
        self._failed: list[_Waiting] = []  # by a write that came first; the next flush names them
        self.events = self._bytes = 0  # of all three: not recorded, nor named by a flush's error
        self._lock = asyncio.Lock()  # one at a time: the order of a session's events
        self._roused: list[Appender] = []  # by what was recorded; their turn comes without the lock
        self._closed = False

    def add(self, key: Key, appender: Appender, draft: Prepared) -> str:
        """Queue an event of a session and return its id. Raises QueueFull, StoreClosed."""
        size = len(draft.raw)
        if self._closed:
            raise StoreClosed
        if self.events >= QUEUED_EVENTS_MAX:
            raise QueueFull("events", self.events, QUEUED_EVENTS_MAX)
        if self._bytes + size > QUEUED_BYTES_MAX:
            raise QueueFull("bytes of events", self._bytes, QUEUED_BYTES_MAX)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Waiting(key)
        parts = line.parts
        if not parts or not parts[-1].takes(appender, size):
            parts.append(_Part(appender))
        part = parts[-1]
        part.drafts.append(draft)
        part.size += size
        self.events += 1
        self._bytes += size
        return draft.id

    async def flush(self) -> None:
        """Record everything that waits now, durably. Raises FlushFailed for what could not be."""
        if not self.events:
            return
        if self._is_inside():
            raise InvalidInput(
                "flush was called from a function that a flush is waiting for. Call it afterwards."
            )
        taken = list(self._sending.values())  # by another flush, which we wait for
        async with self._lock:
            lines = await self._drain(tuple(self._lines))
            failed = [*self._failed, *(line for line in lines if line.error is not None)]
            self._failed.clear()
        for line in failed:
            self._forget(line.parts)
        await self._rouse()
        failed += [line for line in taken if line.error is not None and line not in failed]
        if failed:
            raise FlushFailed([line.unrecorded() for line in failed])

    async def before(self, commits: Sequence[Commit]) -> None:
        """Record what waits of these sessions, so that what is written next comes after it.

        If the store cannot now, it stays in the queue and the store's error is raised. If it is
        refused, FlushFailed is raised once, and the next flush names it, too.
        """
        keys = [c.key for c in commits if c.key in self._lines or c.key in self._sending]
        if not keys or self._is_inside():
            return
        lines = [line for key in keys if (line := self._sending.get(key)) is not None]
        async with self._lock:
            self._check(lines)  # what a flush had taken; it names them itself
            lines = await self._drain([key for key in keys if key in self._lines])
            for line in lines:
                if getattr(line.error, "retryable", False):
                    self._put_back(line)
                elif line.error is not None:
                    self._failed.append(line)
        await self._rouse()
        self._check(lines)

    def rouses_later(self, appender: Appender) -> bool:
        """True if the commit was made by a flush, which resumes the session when it is over."""
        if self._is_inside():
            self._roused.append(appender)
            return True
        return False

    async def close(self) -> None:
        """Take no more events, and flush."""
        self._closed = True
        await self.flush()

    # --- private -------------------------------------------------------------------------------

    async def _rouse(self) -> None:
        """Resume sessions, whose hooks may wait for anybody, also for who writes to them. What was
        recorded is recorded: if this fails, a sweep does it."""
        while self._roused:
            with suppress(LimpetError):
                await self._roused.pop(0).rouse()

    def _check(self, lines: Sequence[_Waiting]) -> None:
        """Raise why one of these was not recorded."""
        failed = [line for line in lines if line.error is not None]
        for line in failed:
            if isinstance(line.error, LimpetError) and line.error.retryable:
                raise line.error
        if failed:
            raise FlushFailed([line.unrecorded() for line in failed], during="write")

    def _is_inside(self) -> bool:
        """True if the caller works for a flush of this queue."""
        flush = _inside.get()
        return flush is not None and flush.of is self and not flush.over

    async def _drain(self, keys: Sequence[Key]) -> list[_Waiting]:
        """Send what waits of these sessions; a line that could not be recorded has an error.

        If this is interrupted, what is not known to be recorded is back in the queue.
        """
        lines = [self._lines.pop(key) for key in keys]
        for line in lines:
            line.error = None
        self._sending = {line.key: line for line in lines}
        try:
            with self._flushing():
                while ready := [line for line in lines if line.parts and line.error is None]:
                    await _all([self._send_group(group) for group in _groups(ready)])
        except BaseException:
            for line in lines:
                if line.parts:
                    self._put_back(line)
            raise
        finally:
            self._sending = {}
        return lines

    @contextmanager
    def _flushing(self) -> Iterator[None]:
        flush = _Flush(self)
        token = _inside.set(flush)
        try:
            yield
        finally:
            flush.over = True  # a task that was begun inside may live on
            _inside.reset(token)

    async def _send_group(self, lines: Sequence[_Waiting]) -> None:
        """Send the first part of each line in one commit; one by one, if that is refused."""
        commits = [line.parts[0].proposed() for line in lines]
        if len(lines) == 1 or None in commits:
            await _all([self._send_alone(line, c) for line, c in zip(lines, commits, strict=True)])
            return
        try:
            answers = await self._send(commits)  # type: ignore[arg-type]  # no None is left
        except _OF_THE_STORE as error:
            for line in lines:
                line.error = error
        except Exception as error:  # because of one of them, perhaps
            SESSION.info("flush split: sessions=%d error=%s", len(lines), type(error).__name__)
            for line in lines:
                line.parts[0].again()
            again = [(line, line.parts[0].proposed()) for line in lines]
            await _all([self._send_alone(*each) for each in again])
        else:
            for line, answer in zip(lines, answers, strict=True):
                self._note_recorded(line, answer)

    async def _send_alone(self, line: _Waiting, commit: Commit | None) -> None:
        part = line.parts[0]
        answers: tuple[Committed, ...] = ()
        try:
            if commit is not None:
                with suppress(SessionDeleted):  # or it is archived, which the writer finds out
                    answers = await self._send((commit,))
            if not answers:
                await part.decide()
        except Exception as error:
            line.error = error
            part.refuse(error)
        else:
            self._note_recorded(line, *answers)

    def _note_recorded(self, line: _Waiting, *answers: Committed) -> None:
        part = line.parts.popleft()
        self._forget([part])
        for answer in answers:
            self._roused += part.settle(answer)

    def _forget(self, parts: Iterable[_Part]) -> None:
        """Take them out of the queue's counts."""
        for part in parts:
            self.events -= len(part.drafts)
            self._bytes -= part.size

    def _put_back(self, line: _Waiting) -> None:
        """Put it back to the front of its session's line: events may have been queued since."""
        line.parts[0].again()
        since = self._lines.get(line.key)
        if since is not None:
            line.parts.extend(since.parts)
        self._lines[line.key] = line


async def _all(work: Sequence[Awaitable[None]]) -> None:
    """Wait for all of it. Each piece catches what it can; an interrupt waits for every piece."""
    if len(work) == 1:
        await work[0]
        return
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result


def _groups(lines: Iterable[_Waiting]) -> Iterator[list[_Waiting]]:
    """Lines whose first parts are sent in one commit."""
    group: list[_Waiting] = []
    events = size = 0
    for line in lines:
        part = line.parts[0]
        events, size = events + len(part.drafts), size + part.size
        full = events > COMMIT_EVENTS or size > COMMIT_BYTES or len(group) == COMMIT_SESSIONS
        if group and full:
            yield group
            group, events, size = [], len(part.drafts), part.size
        group.append(line)
    if group:
        yield group


def _draft_again(draft: Prepared) -> Draft:
    """Return what was appended, to be appended again: under its id, it is recorded once."""
    return Draft(
        type=draft.type,
        data=draft.data,
        actor=draft.actor,
        ops=draft.ops,
        id=draft.id,
        cause=draft.cause,
        invocation_id=draft.invocation_id,
        correlation_id=draft.correlation_id,
        wake_id=draft.wake_id,
        input=draft.input,
    )
