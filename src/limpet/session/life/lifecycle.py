"""The timeouts, timers, priority and tools of a session: `s.lifecycle` and `s.tools`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from limpet.errors import GuardFailed, InvalidInput, SessionArchived, SessionMoved
from limpet.model import Event, deadlines
from limpet.model.facts.priority import prioritized
from limpet.model.facts.running.setup import tools_in
from limpet.model.facts.timeouts import Timeouts, renewed, timeouts_set
from limpet.model.facts.timers import TimerKind, timer_cleared, timer_set
from limpet.session.arguments import check_actor, check_lease_seconds, timer_at
from limpet.session.life.lifecycle_policy import refusal
from limpet.session.writer import Handle, writer_of

if TYPE_CHECKING:
    from limpet.model import Head, Lease
    from limpet.session.life.memory import Memory
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.life.transitions import Durations


class SessionLifecycle:
    """Timeouts, timers and priority of a session: `s.lifecycle`."""

    __slots__ = ("_session",)

    def __init__(self, session: Handle) -> None:
        self._session = session

    @property
    def timeouts(self) -> Timeouts | None:
        """Return after what times a sweep suspends, ends or deletes it; None: never."""
        return writer_of(self._session).known.head.timeouts

    async def set_timeouts(self, timeouts: Timeouts, *, actor: str | None = None) -> Event:
        """Replace its timeouts. `lp.work.sweep()` acts on them."""
        return (
            await self._session.record(timeouts_set(timeouts), actor=acting(self._session, actor))
        )[0]

    async def renew(self, *, idle: timedelta, actor: str | None = None) -> Event:
        """Extend its idle timeout by `idle`, up to `idle_max`.

        For its owner, agents and the system. Raises GuardFailed if somebody else asks or nobody is
        named, once its absolute timeout has passed, if its budget is used up, or if the app's guard
        for ("active", "renew") refuses.
        """
        fact, doer = renewed(idle), check_actor(actor) or self._session.actor
        await writer_of(self._session).load(tail=20)
        head, now_us = (
            writer_of(self._session).known.head,
            writer_of(self._session).journal.now_us(),
        )
        if doer is None:
            raise GuardFailed(
                head.phase, "renew", f"nobody is named: pass actor='user:{self._session.user}'"
            )
        if doer != f"user:{self._session.user}" and not doer.startswith(("agent:", "system:")):
            raise GuardFailed(head.phase, "renew", f"{doer} is not its owner")
        if any(why == "absolute" and at_us <= now_us for why, at_us in deadlines(head)):
            raise GuardFailed(head.phase, "renew", "its absolute timeout has passed")
        guard = (
            writer_of(self._session)
            .services.lifecycles.of(self._session.app)
            .guards.get(("active", "renew"))
        )
        if guard is not None and (reason := await refusal(guard, self._session)):
            raise GuardFailed(head.phase, "renew", reason)
        return (await self._session.record(fact, actor=doer))[0]

    @property
    def durations(self) -> Durations:
        """Seconds in each phase, up to now or to its end, the active ratio, and suspensions."""
        from limpet.session.life.transitions import durations

        return durations(
            writer_of(self._session).known.head, writer_of(self._session).journal.now_us()
        )

    @property
    def suspended_often(self) -> bool:
        """True if it is suspended more often a day than the app's policy allows."""
        return self.durations.exceeds(
            writer_of(self._session).services.lifecycles.of(self._session.app).suspensions_per_day
        )

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
        A kind="deadline" is when the session should end: lp.work.sweep() terminates it then. It
        makes no session due, and is shown by limpet.deadline_at.
        """
        at = timer_at(at, writer_of(self._session).journal.now_us())
        return (await self._session.record(timer_set(name, at, kind=kind), actor=actor))[0]

    async def clear_timer(self, name: str, *, actor: str | None = None) -> Event:
        """Take a timer back. Clearing one that is not set changes nothing but the log."""
        return (await self._session.record(timer_cleared(name), actor=actor))[0]

    async def set_priority(self, priority: int, *, actor: str | None = None) -> Event:
        """Say how urgent it is, from -1000 to 1000: among due sessions the highest go first."""
        return (await self._session.record(prioritized(priority), actor=actor))[0]


class SessionTools:
    """The tools that a session has bound: `s.tools`."""

    __slots__ = ("_session",)

    def __init__(self, session: Handle) -> None:
        self._session = session

    @property
    def bound(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the bound tools by name: version, required, permission and so on."""
        return tools_in(writer_of(self._session).known.head.facts)

    async def bind(
        self,
        registry: ToolRegistry,
        *names: str,
        actor: str | None = None,
    ) -> Mapping[str, Mapping[str, Any]]:
        """Bind these tools of a registry, or all of them; they replace what was bound.

        From then on the turns of this session use these tools and no others. Raises
        RequiredToolUnavailable, ToolAuthorizationFailed: nothing is bound then. Optional tools
        that cannot be bound are left out, and bound when they are there again.
        """
        from limpet.session.life.tools import bind, check_bindable

        check_bindable(registry, names)
        await writer_of(self._session).load(tail=20)
        found = {name: registry.resolve(name) for name in names or registry.names}
        wanted = {name: {} if tool is None else tool.binding for name, tool in found.items()}
        bound = await bind(registry, wanted, self._session)
        await self._session.record(bound.fact, actor=acting(self._session, actor))
        return self.bound

    async def lock(self, name: str, *, seconds: float = 30) -> Lease:
        """Hold an exclusive tool, until the lease ends, is released, or the session is suspended.

        Give it back with lp.work.release(lease). Raises ToolLocked if another session holds it.
        """
        from limpet.session.life.tools import ToolLocks

        if not self.bound.get(name, {}).get("exclusive"):
            raise InvalidInput(f"{name!r} is not bound as an exclusive tool. Bind it first.")
        locks = ToolLocks(self._session)
        return await locks.lock(name, check_lease_seconds(seconds))


def acting(session: Handle, actor: str | None) -> str:
    """Return who acts: the one named, the one bound, or nobody in particular."""
    from limpet.session.life.transitions import LIFECYCLE_ACTOR

    return check_actor(actor) or session.actor or LIFECYCLE_ACTOR


class SessionUpkeep:
    """What the package asks of a session and its users do not: when it is suspended or archived,
    and when it stops working. The modules below know it as `writer.Upkeep`."""

    __slots__ = ("_memory", "_session")

    def __init__(self, session: Handle, memory: Memory | None) -> None:
        """`memory` is None if this object of the session has not used any."""
        self._session, self._memory = session, memory

    async def refuse_archived(self) -> None:
        """Raise SessionArchived if what seems deleted is in the archive, SessionMoved if it is at
        another node."""
        from limpet.session.move.arrivals import route_of

        key = self._session.key
        if await self.stub() is not None:
            raise SessionArchived(key)
        route = await route_of(writer_of(self._session).services.system, key)
        if route is not None:
            raise SessionMoved(key, route.node, route.epoch)

    async def stub(self) -> Head | None:
        """Return the stub that stands for this session while its log is in the archive."""
        from limpet.session.life.archive import stub_of

        writer = writer_of(self._session)
        journal = writer.services.system.journal  # a stub belongs to the system
        return await stub_of(journal, self._session.key, writer.known.uid)

    async def rouse(self) -> None:
        """Input came that ends its suspension: resume it, by an object of its own.

        The system does, whoever sent the input: one who may write need not be allowed to resume.
        """
        from limpet.session.life.transitions import resume_on_input

        session = self._session
        system = writer_of(session).services.system
        other = type(session)(system, session.key, untyped=True)  # type: ignore[call-arg]  # a Session
        await resume_on_input(other)

    def begin_memory(self) -> None:
        """Begin with empty working memory; the other layers stay as they are."""
        if self._memory is not None:  # else it would begin empty
            self._memory.working.reset()

    async def release(self) -> None:
        """Give back what a session holds only while it works: exclusive tools, working memory."""
        if self._memory is not None:
            self._memory.working.reset()
        if any(kept.get("exclusive") for kept in SessionTools(self._session).bound.values()):
            from limpet.session.life.tools import ToolLocks

            await ToolLocks(self._session).release_all()
