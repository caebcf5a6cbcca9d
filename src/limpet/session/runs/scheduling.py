"""How a session is found and when it is due: labels, pending inputs, timers, priority.

A part of Session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from limpet.model import Event, Fact
from limpet.model.facts import (
    TimerKind,
    labeled,
    prioritized,
    processed,
    timer_cleared,
    timer_set,
)
from limpet.session.arguments import check_limit, timer_at

if TYPE_CHECKING:
    from limpet.model import Key
    from limpet.session.writer import Writer


class Scheduling:
    """What a session is found by, what makes it due, and before which others."""

    __slots__ = ()

    if TYPE_CHECKING:
        key: Key
        writer: Writer

        async def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]: ...

    async def pending(self, *, limit: int = 100) -> tuple[Event, ...]:
        """What is still to be dealt with: inputs not processed yet, the oldest first.

        Inputs are user.* and system.* events, and those appended with input=True. Read from the
        store. Who processes them calls again until nothing is left: a page of large ones ends
        early, as that of `read` does. The cost grows with what is pending.
        """
        return await self.writer.journal.store.pending_inputs(self.key, limit=check_limit(limit))

    async def label(self, labels: Mapping[str, str | None], *, actor: str | None = None) -> Event:
        """Set labels; None takes one off. Labels are for finding sessions: lp.list(labels=…)."""
        return (await self.record(labeled(labels), actor=actor))[0]

    async def set_timer(
        self,
        name: str,
        at: datetime | timedelta,
        *,
        kind: TimerKind = "wake",
        actor: str | None = None,
    ) -> Event:
        """Ask to be due at a time, so that a claim gives the session. The same name replaces.

        A timedelta counts from now, by the store's clock.
        Time passing records nothing: the session stays due until somebody clears the timer or sets
        it again, best in the commit that records the work: c.record(s, facts.timer_cleared(name)).
        A kind="deadline" is when the session should end: lp.sweep() terminates it then. It makes
        no session due, and is shown by limpet.deadline_at.
        """
        at = timer_at(at, self.writer.journal.now_us())
        return (await self.record(timer_set(name, at, kind=kind), actor=actor))[0]

    async def clear_timer(self, name: str, *, actor: str | None = None) -> Event:
        """Take a timer back. Clearing one that is not set changes nothing but the log."""
        return (await self.record(timer_cleared(name), actor=actor))[0]

    async def set_priority(self, priority: int, *, actor: str | None = None) -> Event:
        """Say how urgent it is, from -1000 to 1000: among due sessions the highest go first."""
        return (await self.record(prioritized(priority), actor=actor))[0]

    async def mark_processed(self, seqs: Iterable[int], *, actor: str | None = None) -> Event:
        """Say that these inputs (pending user.* events) were dealt with. Raises NotPending."""
        return (await self.record(processed(seqs), actor=actor))[0]
