"""The timeouts, timers and priority of a session: `s.lifecycle`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from limpet.errors import GuardFailed
from limpet.model import Event, deadlines
from limpet.model.facts.priority import prioritized
from limpet.model.facts.timeouts import Timeouts, renewed, timeouts_set
from limpet.model.facts.timers import TimerKind, timer_cleared, timer_set
from limpet.session.arguments import timer_at
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, refusal
from limpet.session.writer import Handle, writer_of

if TYPE_CHECKING:
    from limpet.session.life.transitions import Durations


class SessionLifecycle:
    """Timeouts, timers and priority of a session: `s.lifecycle`."""

    __slots__ = ("_session", "_writer")

    def __init__(self, session: Handle) -> None:
        self._session, self._writer = session, writer_of(session)

    @property
    def timeouts(self) -> Timeouts | None:
        """The times after which a sweep suspends, ends or deletes it; None is never."""
        return self._session.head.timeouts

    async def set_timeouts(self, timeouts: Timeouts, *, actor: str | None = None) -> Event:
        """Replace its timeouts and return the event. `lp.work.sweep()` acts on them.

        Raises InvalidInput, SessionNotFound.
        """
        by = self._writer.actor_or_none(actor) or LIFECYCLE_ACTOR
        return (await self._session.record(timeouts_set(timeouts), actor=by))[0]

    async def renew(self, *, idle: timedelta, actor: str | None = None) -> Event:
        """Extend its idle timeout by `idle`, up to `idle_max`, and return the event.

        For its owner, agents and the system. Raises GuardFailed if somebody else asks or nobody is
        named, once its absolute timeout has passed, if its budget is used up, or if the app's guard
        for ("active", "renew") refuses.
        """
        session, fact, doer = self._session, renewed(idle), self._writer.actor_or_none(actor)
        await self._writer.load(tail=20)
        head, now_us = session.head, self._writer.journal.now_us()
        reason: str | None = None
        if doer is None:
            reason = f"nobody is named: pass actor='user:{session.user}'"
        elif doer != f"user:{session.user}" and not doer.startswith(("agent:", "system:")):
            reason = f"{doer} is not its owner"
        elif any(why == "absolute" and at_us <= now_us for why, at_us in deadlines(head)):
            reason = "its absolute timeout has passed"
        elif guard := self._writer.services.lifecycle(session.app).guards.get(("active", "renew")):
            reason = await refusal(guard, session)
        if reason:
            raise GuardFailed(head.phase, "renew", reason)
        return (await session.record(fact, actor=doer))[0]

    @property
    def durations(self) -> Durations:
        """The seconds in each phase, up to now or to its end, the active ratio, and suspensions."""
        from limpet.session.life.transitions import durations

        return durations(self._session.head, self._writer.journal.now_us())

    @property
    def suspended_often(self) -> bool:
        """True if it is suspended more often a day than the app's policy allows."""
        policy = self._writer.services.lifecycle(self._session.app)
        return self.durations.exceeds(policy.suspensions_per_day)

    async def set_timer(
        self,
        name: str,
        at: datetime | timedelta,
        *,
        kind: TimerKind = "wake",
        actor: str | None = None,
    ) -> Event:
        """Make the session due at a time, so that a claim leases it, and return the event.

        The same name replaces a timer. A timedelta counts from now, by the store's clock. Time
        passing records nothing: the session stays due until somebody clears the timer or sets it
        again, best in the commit that records the work: c.record(s, facts.timer_cleared(name)). A
        kind="deadline" is when the session should end: lp.work.sweep() terminates it then. It makes
        no session due, and is shown by limpet.deadline_at. Raises InvalidEvent for more than 64
        timers, SessionNotFound.
        """
        at = timer_at(at, self._writer.journal.now_us())
        return (await self._session.record(timer_set(name, at, kind=kind), actor=actor))[0]

    async def clear_timer(self, name: str, *, actor: str | None = None) -> Event:
        """Remove a timer and return the event. Clearing one that is not set changes nothing but the
        log.

        Raises SessionNotFound.
        """
        return (await self._session.record(timer_cleared(name), actor=actor))[0]

    async def set_priority(self, priority: int, *, actor: str | None = None) -> Event:
        """Set how urgent it is, from -1000 to 1000, and return the event.

        Among due sessions the highest are claimed first. Raises InvalidEvent for another number,
        SessionNotFound.
        """
        return (await self._session.record(prioritized(priority), actor=actor))[0]
