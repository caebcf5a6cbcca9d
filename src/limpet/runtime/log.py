"""The writes of one wake: under its lease, with its ids, begun by the first of them.

That a wake began is recorded with the first thing that it records, so that an empty turn takes one
commit. Nothing of a turn is ever in the log before its beginning is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from limpet.errors import SessionFenced, StoreError
from limpet.model import PROCESSED, Commit, Draft, Event, Fact, Lease, Prepared
from limpet.model.facts.running.runs import (
    SPAN_COMPLETED,
    SPAN_STARTED,
    STATUS_CHANGED,
    STATUS_IDLE,
)
from limpet.session.life.rousing import is_roused
from limpet.session.logs import lease_lost
from limpet.session.session import Session

_TRIES: Final = 4
_PAUSE_SECONDS: Final = 0.05
# What every turn records, however little it does: made of plain values by their constructors.
_PLAIN: Final = frozenset((SPAN_STARTED, SPAN_COMPLETED, STATUS_CHANGED, STATUS_IDLE, PROCESSED))


class TurnLog:
    """How a turn records. Facts are the worker's, everything else is the agent's."""

    def __init__(
        self, session: Session[Any], *, turn_id: str, wake_id: str, agent: str, worker: str
    ) -> None:
        self.session, self.turn_id, self.wake_id = session, turn_id, wake_id
        self._agent, self._worker = agent, worker
        self._first: list[Draft] = []  # the beginning of the wake, until it is recorded
        self._queued: dict[str, Draft] = {}
        self._beginning = asyncio.Lock()
        self.heard: Callable[[], None] = _nothing  # called when something was recorded

    def begin(self, *drafts: Draft) -> None:
        """Record these before everything else."""
        self._first += drafts

    @property
    def is_begun(self) -> bool:
        """Whether the log has the beginning of this wake."""
        return not self._first

    def queue(self, draft: Draft) -> None:
        """Record it with whatever comes next; it has an id, so that it is recorded once."""
        assert draft.id is not None
        self._queued[draft.id] = draft

    async def write(self, *drafts: Draft, beside: tuple[Commit, ...] = ()) -> tuple[Event, ...]:
        """Record the drafts, durably, or nothing; a lost answer is asked for again.

        `beside` are commits of other sessions that are recorded with it, all or nothing.
        """
        if self._first:
            async with self._beginning:
                if self._first:
                    events = await self._commit([*self._first, *drafts], beside)
                    self._first.clear()
                    return events[len(events) - len(drafts) :]
        return (await self._commit(list(drafts), beside))[-len(drafts) :]

    async def flush(self) -> tuple[Event, ...]:
        """Record the beginning now."""
        async with self._beginning:
            events = await self._commit(list(self._first), ())
            self._first.clear()
            return events

    def closing(self, *drafts: Draft) -> tuple[Prepared, ...]:
        """All that is left to record, and these: for the commit that ends the wake.

        If that is its only one, nobody has seen it running: a change to that is not recorded.
        """
        first = [draft for draft in self._first if draft.type != STATUS_CHANGED]
        return tuple([self.prepare(d) for d in (*first, *self._queued.values(), *drafts)])

    async def close(self, drafts: tuple[Prepared, ...], lease: Lease) -> None:
        """Record the end of the wake and of its lease. Raises SessionFenced if that is lost.

        Nobody looks at the session through this object again, so it does not learn what was left.
        """
        writer = self.session.writer
        known, plain = writer.known, writer.classless
        how: Any = {"classless": plain, "uid": known.uid, "release": lease}
        try:
            (left,) = await writer.journal.commit(
                (Commit(known.key, drafts, None, lease.fence, **how),)
            )
        except SessionFenced as error:
            lease_lost(error, lease, "commit")
            raise
        if is_roused(left.head):
            await writer.rouse()

    def prepare(self, draft: Draft) -> Prepared:
        """A draft as this wake records it."""
        journal = self.session.writer.journal
        if draft.wake_id is None or draft.invocation_id is None:
            wake_id, turn_id = draft.wake_id or self.wake_id, draft.invocation_id or self.turn_id
            draft = structs.replace(draft, wake_id=wake_id, invocation_id=turn_id)
        if not isinstance(draft, Fact):
            return journal.prepare(draft, self._agent)
        if draft.type in _PLAIN:
            return journal.prepare_plain(draft, self._worker)
        return journal.prepare(draft, self._worker)

    async def _commit(self, drafts: list[Draft], beside: tuple[Commit, ...]) -> tuple[Event, ...]:
        queued, new_id = dict(self._queued), self.session.writer.journal.new_id
        place = len(self._first)  # the beginning comes first
        all_of = [*drafts[:place], *queued.values(), *drafts[place:]]
        named = [d if d.id is not None else structs.replace(d, id=new_id()) for d in all_of]
        events = await self._send(tuple([self.prepare(draft) for draft in named]), beside)
        for id in queued:
            self._queued.pop(id, None)
        self.heard()
        return events

    async def _send(
        self, prepared: tuple[Prepared, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        for left in reversed(range(_TRIES)):
            try:
                if beside:
                    return await self._commit_all(prepared, beside)
                return await self.session.writer.commit(prepared)
            except StoreError as error:  # its ids are given: what was recorded is found again
                if not error.retryable or not left:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    async def _commit_all(
        self, prepared: tuple[Prepared, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        writer = self.session.writer
        known, lease = writer.known, writer.lease
        fence = None if lease is None else lease.fence
        mine = Commit(known.key, prepared, None, fence, uid=known.uid)
        committed, *_ = await writer.journal.commit((mine, *beside))
        known.absorb(committed, prepared)
        return committed.events


def _nothing() -> None:
    """Nobody wants to know."""
