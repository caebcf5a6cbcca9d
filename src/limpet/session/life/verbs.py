"""The verbs of a session's life: a part of Session."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import GuardFailed
from limpet.model.due import deadlines
from limpet.model.events import Event
from limpet.model.facts.phases import RESUMED, Phase, PhaseEvent
from limpet.model.facts.timeouts import Timeouts, renewed, timeouts_set
from limpet.session.arguments import check_actor
from limpet.session.life.durations import Durations, durations
from limpet.session.life.mover import Mover
from limpet.session.life.policy import NOTHING, Lifecycle, Transition, refusal

if TYPE_CHECKING:
    from limpet.session.writer import Writer


NOBODY: Final = "system:lifecycle"


class Life:
    """Where a session stands in its life, and how it moves on."""

    if TYPE_CHECKING:
        writer: Writer
        actor: str | None

        @property
        def app(self) -> str: ...

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
        often = self.durations.suspension_frequency * 86_400
        return self.durations.suspensions > 1 and often > self._policy.suspensions_per_day

    async def activate(self, *, actor: str | None = None) -> Transition:
        """Begin the work: from init, or from resumed. Raises InvalidTransition, GuardFailed."""
        await self.writer.load(tail=20)
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

    async def set_timeouts(self, timeouts: Timeouts, *, actor: str | None = None) -> Event:
        """Replace its timeouts. `lp.sweep()` acts on them."""
        return (await self.record(timeouts_set(timeouts), actor=self._doer(actor)))[0]

    async def renew(self, *, idle: timedelta, actor: str | None = None) -> Event:
        """Let it be idle for longer, by so much, up to `idle_max`.

        Raises GuardFailed once its absolute timeout has passed, or if the app's guard for
        ("active", "renew") refuses: it has no budget left, or the owner is not known.
        """
        await self.writer.load(tail=20)
        head, now_us = self.writer.known.head, self.writer.journal.now_us()
        fact = renewed(idle)
        if any(why == "absolute" and at_us <= now_us for why, at_us in deadlines(head)):
            raise GuardFailed(head.phase, "renew", "its absolute timeout has passed")
        guard = self._policy.guards.get(("active", "renew"))
        if guard is not None and (reason := await refusal(guard, self)):
            raise GuardFailed(head.phase, "renew", reason)
        return (await self.record(fact, actor=self._doer(actor)))[0]

    # --- private -------------------------------------------------------------------------------

    @property
    def _policy(self) -> Lifecycle:
        found: Lifecycle = self.writer.journal.lifecycles.get(self.app, NOTHING)
        return found

    def _doer(self, actor: str | None) -> str:
        """Who acts: the one named, the one bound, or nobody in particular."""
        return check_actor(actor) or self.actor or NOBODY

    async def _move(
        self,
        *events: PhaseEvent,
        reason: str | None = None,
        actor: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> tuple[Transition, ...]:
        how: dict[str, Any] = {"reason": reason, "actor": self._doer(actor), "more": more}
        return await Mover(self, events, **how).move()  # type: ignore[arg-type]  # a Session
