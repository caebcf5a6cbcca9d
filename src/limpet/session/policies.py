"""Policies for all sessions of an app, or of an agent: `lp.policies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from limpet.errors import DocumentConflict, InvalidInput
from limpet.model import DefaultActor
from limpet.model.facts.phases import Phase
from limpet.model.facts.timeouts import Timeouts, timeouts_data
from limpet.session.arguments import check_actor, check_flag, check_sessions
from limpet.session.documents import Internal
from limpet.session.journal import Tries
from limpet.session.life.lifecycle_policy import (
    CLEANUP_SECONDS,
    SUSPENSIONS_PER_DAY,
    Cleanup,
    Function,
    Lifecycle,
)
from limpet.session.runs import learnings
from limpet.session.runs.learnings import Gates

if TYPE_CHECKING:
    from datetime import timedelta

    from limpet.session.history.checkpoint_policy import CheckpointPolicy
    from limpet.session.history.retention import RetentionLimits
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.runs.promotion import PromotionGates
    from limpet.session.runs.switches import AppSwitches, ToolSwitch
    from limpet.session.services import Services


_NOBODY = DefaultActor("system:policies")  # who sets a policy where nobody is named
_RUNTIME: Final = DefaultActor("system:runtime")


class StorePolicies:
    """Lifecycle, checkpoints, retention and gates: `lp.policies`."""

    __slots__ = ("_journal", "_services")

    def __init__(self, services: Services) -> None:
        self._services, self._journal = services, services.journal

    def lifecycle(
        self,
        app: str,
        *,
        guards: Mapping[tuple[Phase, str], Function] | None = None,
        before: Mapping[tuple[Phase, Phase], Function] | None = None,
        after: Mapping[tuple[Phase, Phase], Function] | None = None,
        exit_criteria: Sequence[Function] = (),
        compensate: Sequence[Function] = (),
        compensations: Mapping[str, Function] | None = None,
        cleanup: Mapping[Cleanup, Function] | None = None,
        cleanup_seconds: float = CLEANUP_SECONDS,
        resume_on_input: bool = True,
        timeouts: Timeouts | None = None,
        tools: ToolRegistry | None = None,
        suspensions_per_day: float = SUSPENSIONS_PER_DAY,
    ) -> None:
        """Set the guards, hooks and criteria of an app's transitions, in this process.

        Functions take (session) or (session, transition), sync or async. Guards by (phase, event)
        and exit criteria return True or a reason; `before` and `after` hooks go by (from, to).
        `compensate` runs before a termination, then `cleanup` in the order flush, release, notify,
        analytics, promote, scrub; scrub returns names in state to delete. Each of them is bounded
        by `cleanup_seconds`. `compensations` are what effects register by name: after a termination
        a worker calls them with (session, effect), the newest effect first, each once. `timeouts`
        are those of new sessions without their own. Activating a session in init binds `tools`, and
        resuming binds them again: GuardFailed if a required one cannot be had. A session that is
        suspended more than `suspensions_per_day` is reported by `suspended_often`. Input resumes a
        session that was suspended for idleness, unless resume_on_input=False. A second call
        replaces the first. Raises InvalidInput.
        """
        from limpet.session.life.tools import check_bindable

        check_sessions(app)
        check_flag("resume_on_input", resume_on_input)
        if not cleanup_seconds > 0:
            raise InvalidInput("cleanup_seconds is a number above 0: how long a step may take.")
        if timeouts is not None:
            timeouts_data(timeouts)
        if tools is not None:
            check_bindable(tools, ())
        declared = Lifecycle(
            guards=guards or {},
            before=before or {},
            after=after or {},
            cleanup=cleanup or {},
            exit_criteria=exit_criteria,
            compensate=compensate,
            compensations=compensations or {},
            cleanup_seconds=cleanup_seconds,
            resume_on_input=resume_on_input,
            timeouts=timeouts,
            tools=tools,
            suspensions_per_day=suspensions_per_day,
        ).checked()
        self._services.require("policy", app)
        self._services.lifecycles[app] = declared

    async def checkpointing(
        self, app: str, policy: CheckpointPolicy | None, *, actor: str | None = None
    ) -> None:
        """Create checkpoints automatically: see CheckpointPolicy. None turns that off.

        It is kept with the store. This process follows it at once, others within a few seconds.
        Raises InvalidInput.
        """
        from limpet.session.history.checkpoint_policy import (
            COLLECTION,
            CheckpointPolicy,
            policy_document,
        )
        from limpet.session.history.checkpoints import store_checkpoints

        if check_sessions(app) is None:
            raise InvalidInput("a policy is of an app. Pass its name.")
        if not isinstance(policy, CheckpointPolicy | None):
            raise InvalidInput("policy is a limpet.CheckpointPolicy, or None to end it.")
        documents = Internal(self._journal, COLLECTION, actor=check_actor(actor) or _NOBODY)
        if policy is None:
            await documents.delete(app)
        else:
            await documents.put(app, policy_document(policy))
        store_checkpoints(self._journal).forget(app)

    async def checkpointing_of(self, app: str) -> CheckpointPolicy | None:
        """Return the checkpoint policy of an app as it is stored now; None if it has none. Raises
        InvalidInput."""
        from limpet.session.history.checkpoint_policy import policy_of

        return await policy_of(self._journal, _app(app))

    async def arrivals(
        self,
        app: str,
        *,
        sessions: int | None = None,
        bytes: int | None = None,
        schema: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Set what this store accepts from other nodes, for an app.

        `sessions` is how many it may have with those that arrive, `bytes` how many one may bring,
        and `schema` the version of typed state that is understood here. Without any, everything is
        accepted. It is kept with the store; whoever moves a session here asks it first. Raises
        InvalidInput.
        """
        from limpet.session.move.arrivals import CAPACITY, check_arrivals

        if check_sessions(app) is None:
            raise InvalidInput("a policy is of an app. Pass its name.")
        value = check_arrivals(sessions, bytes, schema)
        documents = Internal(self._journal, CAPACITY, actor=check_actor(actor) or _NOBODY)
        await documents.put(app, value)

    async def retention(
        self,
        app: str,
        *,
        events: int | None = None,
        age: timedelta | None = None,
        every: timedelta | None = None,
        actor: str | None = None,
    ) -> None:
        """Bound the history of each session of an app: the newest `events` stay hot, nothing older
        than `age`, or both.

        Without either, everything stays hot, except in sessions with their own limits. The rest
        moves into compressed cold segments in the store: after commits, once a session is a quarter
        beyond its limit, and by sweeps, which look at all sessions of the app once in `every`, an
        hour if that is not given. `compact` does it at once. Nothing is lost. This process follows
        new limits at once, others within a few seconds. Raises InvalidInput.
        """
        from limpet.session.history.checkpoints import store_checkpoints
        from limpet.session.history.retention import COLLECTION, EVERY, limits_document

        if check_sessions(app) is None:
            raise InvalidInput("limits are of an app. Pass its name.")
        value = limits_document(events, age, EVERY if every is None else every)
        documents = Internal(self._journal, COLLECTION, actor=check_actor(actor) or _NOBODY)
        await documents.put(app, value)
        store_checkpoints(self._journal).forget(app)

    async def retention_of(self, app: str) -> RetentionLimits | None:
        """Return the limits of an app's histories as they are stored now; None if it has none.
        Sessions may have their own: `s.history.limits`. Raises InvalidInput."""
        from limpet.session.history.retention import limits_of

        return await limits_of(self._journal, _app(app)) or None

    async def switch_tool(
        self, app: str, tool: str, switch: ToolSwitch | None, *, actor: str | None = None
    ) -> None:
        """Open or close the circuit of a tool, name its fallback, cache its results, or bound its
        time: see limpet.ToolSwitch.

        None removes the switch. It is kept with the store. This process follows it at once, other
        workers within a few seconds, from the next tool call on. Raises InvalidInput.
        """
        from limpet.session.runs import switches

        def changed(before: AppSwitches) -> AppSwitches:
            tools = {name: of for name, of in before.tools.items() if name != tool}
            if switch is not None:
                tools[tool] = switches.checked(switch)
            return msgspec.structs.replace(before, tools=tools)

        if not isinstance(tool, str) or not tool:
            raise InvalidInput("a switch is of a tool. Pass its name.")
        await self._switch(app, changed, actor)

    async def fresh_evidence(self, app: str, seconds: float, *, actor: str | None = None) -> None:
        """Set for how long at least evidence that lp.resume retrieved counts as fresh.

        With 0, the caller of lp.resume decides. Raises InvalidInput.
        """

        def changed(before: AppSwitches) -> AppSwitches:
            return msgspec.structs.replace(before, fresh_seconds=float(seconds))

        if type(seconds) not in (int, float) or not 0 <= seconds < 2**40:
            raise InvalidInput("seconds is a number from 0.")
        await self._switch(app, changed, actor)

    async def longer_idle(
        self, app: str, idle: timedelta | None, *, actor: str | None = None
    ) -> None:
        """Let new sessions of an app be idle for at least so long, if its lifecycle gives them an
        idle timeout that is shorter. None: the lifecycle decides.

        It is kept with the store. This process follows it at once, others within a few seconds.
        Raises InvalidInput.
        """
        if idle is not None:
            timeouts_data(Timeouts(idle=idle))

        def changed(before: AppSwitches) -> AppSwitches:
            seconds = 0.0 if idle is None else idle.total_seconds()
            return msgspec.structs.replace(before, idle_seconds=seconds)

        await self._switch(app, changed, actor)

    async def switches(self, app: str) -> AppSwitches:
        """Return the switches of an app's tools as they are stored now. Raises InvalidInput."""
        from limpet.session.runs.switches import switches_of

        return await switches_of(self._journal, str(check_sessions(app)))

    async def _switch(
        self, app: str, change: Callable[[AppSwitches], AppSwitches], actor: str | None
    ) -> None:
        """Read, change and write the switches of an app, again if somebody else was faster."""
        from limpet.session.history.checkpoints import store_checkpoints
        from limpet.session.runs.switches import NO_SWITCHES, AppSwitches, switches_documents

        if check_sessions(app) is None:
            raise InvalidInput("switches are of an app. Pass its name.")
        documents = switches_documents(self._journal, check_actor(actor) or _NOBODY)
        async for left in Tries():
            document = await documents.find(app)
            read = None if document is None else documents.decoded(document, AppSwitches)
            new = change(NO_SWITCHES if read is None else read)
            at = 0 if document is None else document.version
            try:
                await documents.put(app, msgspec.to_builtins(new), expect=at)
                break
            except DocumentConflict:
                if not left:
                    raise
        store_checkpoints(self._journal).forget(app)

    async def gates(self, agent: str, gates: Gates | None, *, actor: str | None = None) -> None:
        """Set what must hold before a learning of this agent is promoted. None removes all gates.

        It is kept with the store, for every process. Raises InvalidInput.
        """
        documents, by = learnings.gates_kept(self._journal), check_actor(actor) or _RUNTIME
        if gates is None:
            await documents.delete(agent, actor=by)
        else:
            value = msgspec.to_builtins(learnings.check_gates(gates))
            await documents.put(agent, value, actor=by)

    async def promotion(
        self, to: str, gates: PromotionGates | None, *, actor: str | None = None
    ) -> None:
        """Set what lets a proposal into the memory of an agent ("agent:NAME") or an organisation
        ("org:NAME").

        None: a person decides, and items expire after a year. It is kept with the store, for every
        process; functions run in those that declare them. Raises InvalidInput.
        """
        from limpet.session.runs.promotion import check_memory, set_gates

        await set_gates(self._services, check_memory(to), gates, check_actor(actor) or _NOBODY)

    async def gates_of(self, agent: str) -> Gates:
        """Return what must hold before a learning of this agent is promoted. Raises
        InvalidInput."""
        return await learnings.gates_of(self._journal, agent)


def _app(app: str) -> str:
    """Return the name of an app whose policy is asked for. Raises InvalidInput."""
    if check_sessions(app) is None:
        raise InvalidInput("a policy is of an app. Pass its name.")
    return app
