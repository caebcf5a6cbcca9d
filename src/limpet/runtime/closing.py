"""Closing a wake: one commit with the last outputs, the processed inputs, the status, the end of
the span, and the lease given back. Until it is recorded, the inputs stay pending.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from limpet.errors import NotPending, SessionConflict
from limpet.model import PAGE_MAX, Draft, Lease, Prepared
from limpet.model.facts.running import runs
from limpet.model.facts.running.revisits import timers_taken
from limpet.runtime.children import Ending
from limpet.runtime.log import TurnLog
from limpet.runtime.opening import Opening, cut_off, unanswered, unknown_effects

_TRIES: Final = 8


class Close(msgspec.Struct):
    """How a wake ends."""

    stop_reason: runs.StopReason
    result: runs.SpanResult
    error: str | None = None
    blocked_on: tuple[str, ...] = ()
    drafts: list[Draft] = msgspec.field(default_factory=list)  # of the harness, and errors
    summary: str | None = None
    needs: dict[str, int] | None = None  # so much of the budget, to go on
    redirect: int | None = None  # the interrupt that begins the next turn

    @property
    def is_over(self) -> bool:
        """Whether the turn is over, and not only this wake."""
        waits = self.stop_reason in ("requires_action", "rescheduling", "retries_exhausted")
        return not waits and self.needs is None


async def close_wake(log: TurnLog, opening: Opening, how: Close, lease: Lease) -> None:
    """Record the end of a wake and of its lease. Raises SessionFenced if the lease is lost."""
    session, is_over = log.session, how.is_over
    done: Iterable[int] = _done(opening) if is_over else ()
    ending = Ending.of(session, how.stop_reason, how.summary) if is_over else None
    left = _left_open(log, opening, how) if _may_leave(log, opening) else []
    for again in reversed(range(_TRIES)):
        drafts = log.closing(*_drafts(log, opening, how, left, done, lease))
        try:
            await commit_last(log, drafts, ending, lease)
            return
        except NotPending:  # somebody else marked one of them
            if not again:
                raise
            waiting = {event.seq for event in await session.pending(limit=PAGE_MAX)}
            done = [seq for seq in done if seq in waiting]
        except SessionConflict:
            if not again:
                raise
            await session.refresh()


async def commit_last(
    log: TurnLog, drafts: tuple[Prepared, ...], ending: Ending | None, lease: Lease
) -> None:
    """The last commit of a wake; of a child that has ended, with its parent."""
    if ending is not None and ending.is_now(drafts):
        await ending.commit(log, drafts, lease)
    else:
        await log.close(drafts, lease)


def _done(opening: Opening) -> list[int]:
    """The seqs that the turn has dealt with."""
    records, inputs = opening.records, [event.seq for event in opening.inputs]
    ended = [event.seq for event in records.ended.values() if event.processed == 0]
    return sorted({*inputs, *opening.control, *ended})


def _drafts(
    log: TurnLog,
    opening: Opening,
    how: Close,
    left: Iterable[Draft],
    done: Iterable[int],
    lease: Lease,
) -> list[Draft]:
    drafts = [*left, *how.drafts]
    if how.is_over and opening.timers:
        drafts.insert(0, timers_taken(opening.timers))
    drafts.append(
        runs.wake_completed(
            log.wake_id, log.turn_id, how.result, fence=lease.fence, error=how.error
        )
    )
    was = "running" if log.is_begun else runs.waiting_status(log.session.head.facts)
    now: runs.Status = "rescheduling" if how.stop_reason == "rescheduling" else "idle"
    if was != now:
        drafts.append(runs.status_changed(was, now, how.stop_reason))
    named: Any = {"blocked_on": how.blocked_on, "summary": how.summary, "needs": how.needs}
    named["redirect"] = how.redirect
    return [*drafts, runs.status_idle(how.stop_reason, processed=done, **named)]


def _may_leave(log: TurnLog, opening: Opening) -> bool:
    """Whether the run has begun anything that has an end of its own. Most have not."""
    records = opening.records
    return bool(records.effects or records.asked or "budget" in log.session.head.facts)


def _left_open(log: TurnLog, opening: Opening, how: Close) -> list[Draft]:
    """An outcome for whatever the run has left open, unless it waits for an answer."""
    if how.stop_reason == "requires_action":
        return []
    why = how.error or "the turn ended"
    if how.is_over:
        why = "interrupted" if how.stop_reason == "interrupted" else "the turn ended"
    drafts = unknown_effects(opening.turn_id, opening.records, why)
    if how.is_over:
        drafts += unanswered(opening.records, why)
    return [*drafts, *cut_off(log.session.head.facts, opening.records)]
