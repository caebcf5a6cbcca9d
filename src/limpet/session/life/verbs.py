"""The verbs of a session's life: a part of Session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from limpet.errors import GuardFailed, InvalidInput, SessionArchived
from limpet.model import Event, deadlines
from limpet.model.facts import (
    RESUMED,
    Phase,
    PhaseEvent,
    Timeouts,
    timeouts_set,
    tools_in,
)
from limpet.model.facts.timeouts import renewed
from limpet.session.arguments import check_actor, check_lease_seconds
from limpet.session.life.durations import Durations, durations
from limpet.session.life.policy import Lifecycle, Transition, refusal

if TYPE_CHECKING:
    from limpet.model import Head, Key, Lease
    from limpet.session.life.memory import Memory
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.writer import Writer


class Life:
    """Where a session stands in its life, and how it moves on."""

    __slots__ = ("_remembers",)
    _remembers: Memory | None

    if TYPE_CHECKING:  # what is a Session's: with it this is a Handle
        key: Key
        writer: Writer
        actor: str | None

        @property
        def app(self) -> str: ...
        @property
        def user(self) -> str: ...
        @property
        def id(self) -> str: ...
        @property
        def head(self) -> Head: ...

        async def record(self, *facts: Any, actor: str | None = None) -> tuple[Event, ...]: ...

    @property
    def phase(self) -> Phase:
        """init, active, suspended, resumed, completed, terminated or archived."""
        return self.writer.known.head.phase

    @property
    def timeouts(self) -> Timeouts | None:
        """When it is suspended, terminated and deleted by itself; None: never."""
        return self.writer.known.head.timeouts

    @property
    def durations(self) -> Durations:
        """Seconds in each phase, up to now or to its end, the active ratio, and suspensions."""
        return durations(self.writer.known.head, self.writer.journal.now_us())

    @property
    def suspended_often(self) -> bool:
        """Whether it is suspended more often than the app's policy holds to be healthy."""
        return self.durations.exceeds(self._policy.suspensions_per_day)

    async def activate(self, *, actor: str | None = None) -> Transition:
        """Begin the work: from init, or from resumed. Raises InvalidTransition, GuardFailed."""
        from limpet.session.life.mover import load_to_move

        await load_to_move(self.writer, "activate")
        event: PhaseEvent = "reactivate" if self.phase == RESUMED else "activate"
        return (await self._move(event, actor=actor))[-1]

    async def suspend(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """Stop the work for a while. Inputs are recorded and wait; other writes are refused."""
        return (await self._move("suspend", reason=reason, actor=actor))[-1]

    async def resume(self, *, activate: bool = True, actor: str | None = None) -> Transition:
        """Go on: resumed and active again in one commit; only resumed with activate=False.

        For the whole protocol, with tools, memory and retrieval, use lp.resume(key).
        """
        events: tuple[PhaseEvent, ...] = ("resume", "reactivate") if activate else ("resume",)
        return (await self._move(*events, actor=actor))[-1]

    async def complete(self, output: Any = None, *, actor: str | None = None) -> Transition:
        """End it: the work is done. Raises GuardFailed unless all exit criteria hold and every
        child has ended."""
        more = {} if output is None else {"output": output}
        return (await self._move("complete", actor=actor, more=more))[-1]

    async def terminate(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """End it before the work is done: compensations run, then cleanup hooks, in order."""
        return (await self._move("terminate", reason=reason, actor=actor))[-1]

    async def archive(self, *, actor: str | None = None) -> Transition:
        """Move it to the archive: from completed or terminated.

        Its log becomes one verified file there; then its rows leave the store, and its head stays
        listed. Without an archive (limpet.open(url, archive=…)) the log stays where it is.
        Interrupted, it is finished by the next call, or the next sweep. Raises InvalidTransition
        once there is nothing to finish, GuardFailed, ArchiveFailed.
        """
        from limpet.session.life.archiving import archive_session

        return await archive_session(self, self._doer(actor))

    async def set_timeouts(self, timeouts: Timeouts, *, actor: str | None = None) -> Event:
        """Replace its timeouts. `lp.sweep()` acts on them."""
        return (await self.record(timeouts_set(timeouts), actor=self._doer(actor)))[0]

    async def renew(self, *, idle: timedelta, actor: str | None = None) -> Event:
        """Let it be idle for longer, by so much, up to `idle_max`.

        For its owner, agents and the system. Raises GuardFailed if somebody else asks or nobody is
        named, once its absolute timeout has passed, if its budget is used up, or if the app's guard
        for ("active", "renew") refuses.
        """
        fact, doer = renewed(idle), check_actor(actor) or self.actor
        await self.writer.load(tail=20)
        head, now_us = self.writer.known.head, self.writer.journal.now_us()
        if doer is None:
            raise GuardFailed(
                head.phase, "renew", f"nobody is named: pass actor='user:{self.user}'"
            )
        if doer != f"user:{self.user}" and not doer.startswith(("agent:", "system:")):
            raise GuardFailed(head.phase, "renew", f"{doer} is not its owner")
        if any(why == "absolute" and at_us <= now_us for why, at_us in deadlines(head)):
            raise GuardFailed(head.phase, "renew", "its absolute timeout has passed")
        guard = self._policy.guards.get(("active", "renew"))
        if guard is not None and (reason := await refusal(guard, self)):
            raise GuardFailed(head.phase, "renew", reason)
        return (await self.record(fact, actor=doer))[0]

    # --- tools and memory ----------------------------------------------------------------------

    @property
    def tools(self) -> Mapping[str, Mapping[str, Any]]:
        """What is bound: version, required, permission and so on, by name."""
        return tools_in(self.writer.known.head.facts)

    async def bind_tools(
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
        await self.writer.load(tail=20)
        found = {name: registry.resolve(name) for name in names or registry.names}
        wanted = {name: {} if tool is None else tool.binding for name, tool in found.items()}
        bound = await bind(registry, wanted, self)
        await self.record(bound.fact, actor=self._doer(actor))
        return self.tools

    async def lock_tool(self, name: str, *, seconds: float = 30) -> Lease:
        """Hold an exclusive tool, until the lease ends, is released, or the session is suspended.

        Give it back with lp.release(lease). Raises ToolLocked if another session holds it.
        """
        from limpet.session.life.tools import ToolLocks

        if not self.tools.get(name, {}).get("exclusive"):
            raise InvalidInput(f"{name!r} is not bound as an exclusive tool. Bind it first.")
        locks = ToolLocks(self)
        return await locks.lock(name, check_lease_seconds(seconds))

    @property
    def memory(self) -> Memory:
        """Working, session, episodic, semantic and procedural memory: get, put, list, search."""
        if self._remembers is None:
            from limpet.session.life.memory import Memory

            self._remembers = Memory(self)
        return self._remembers

    # --- for the rest of the package -----------------------------------------------------------

    @property
    def internals(self) -> Internals:
        """What other modules ask of a session and users have no use for."""
        return Internals(self, self._remembers)

    # --- private -------------------------------------------------------------------------------

    @property
    def _policy(self) -> Lifecycle:
        return self.writer.journal.lifecycle(self.app)

    def _doer(self, actor: str | None) -> str:
        """Who acts: the one named, the one bound, or nobody in particular."""
        from limpet.session.life.mover import NOBODY

        return check_actor(actor) or self.actor or NOBODY

    async def _move(
        self,
        *events: PhaseEvent,
        reason: str | None = None,
        actor: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> tuple[Transition, ...]:
        from limpet.session.life.mover import Mover

        how: dict[str, Any] = {"reason": reason, "actor": self._doer(actor), "more": more}
        return await Mover(self, events, **how).move()


class Internals:
    """What the package asks of a session and its users do not: when it is suspended or archived,
    and when it stops working. The modules below know it as `writer.Standby`, `handle.Holder`."""

    __slots__ = ("_memory", "_session")

    def __init__(self, session: Life, memory: Memory | None) -> None:
        """`memory` is None if this object of the session has not used any."""
        self._session, self._memory = session, memory

    async def refuse_archived(self) -> None:
        """Raise SessionArchived if what seems deleted is in the archive."""
        if await self.stub() is not None:
            raise SessionArchived(self._session.key)

    async def stub(self) -> Head | None:
        """What stands in the store for this session while its log is in the archive."""
        from limpet.session.life.archiving import stub_of

        writer = self._session.writer
        return await stub_of(writer.journal, self._session.key, writer.known.uid)

    async def rouse(self) -> None:
        """Input came that ends its suspension: resume it, by an object of its own."""
        from limpet.session.life.mover import resume_on_input

        session = self._session
        other = type(session)(session.writer.journal, session.key, untyped=True)  # type: ignore[call-arg]  # a Session
        await resume_on_input(other)

    def begin_memory(self) -> None:
        """Begin with empty working memory; the other layers stay as they are."""
        self._session.memory.working.reset()

    async def release(self) -> None:
        """Give back what a session holds only while it works: exclusive tools, working memory."""
        if self._memory is not None:
            self._memory.working.reset()
        if any(kept.get("exclusive") for kept in self._session.tools.values()):
            from limpet.session.life.tools import ToolLocks

            await ToolLocks(self._session).release_all()
