"""A turn: what a harness sees of its session, and the calls that are recorded.

A turn may span several runs of the harness. Each runs from the top; what was recorded before is
returned instead of done again. So a harness must take the same way every time: whatever is not
deterministic belongs into `step` or `stream`.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, Literal, TypeVar, overload

from limpet.errors import InvalidInput, ToolDenied, TurnMisused
from limpet.model import (
    EMPTY,
    DefaultActor,
    Draft,
    Event,
    Trace,
    described,
    ops as op,
    to_us,
    traced,
    unfit,
)
from limpet.model.facts.running import budgets, runs
from limpet.model.facts.running.budgets import Budget, Share
from limpet.model.facts.running.requests import ANSWERS
from limpet.model.facts.running.runs import INTERRUPT, step_recorded, turn_in
from limpet.model.facts.running.setup import usable_tools
from limpet.model.facts.scores import FEEDBACK
from limpet.model.facts.timers import Revisit, RevisitPriority, revisit_set
from limpet.model.limits import NAME_CHARS_MAX, REVISITS_PER_TURN_MAX
from limpet.runtime import children, requests
from limpet.runtime.children import Child
from limpet.runtime.effects import Effect, EffectCall, call
from limpet.runtime.model_call import (
    EVENT_PERMISSIONS,
    Call,
    ModelCall,
    Piece,
    Reply,
    ToolCall,
    ToolResult,
    clean_text,
)
from limpet.runtime.requests import Approval, Otherwise
from limpet.runtime.run import Reservation, ReservedBlock, TurnRun
from limpet.runtime.tool import tool, tools_of
from limpet.runtime.tool_call import ToolUseCall
from limpet.runtime.turn_log import CHANGED, args_hash, identity, result_of
from limpet.session.conversation.context import Context, Count, Summarize, compile_context
from limpet.session.conversation.messages import TurnConversation
from limpet.session.conversation.shapes import Shape, safe_name
from limpet.session.conversation.timeline import TurnInputs
from limpet.session.life.tools import OnUnknown, Tool, ToolUse
from limpet.session.runs.learnings import (
    Learning,
    LearningKind,
    agent_of,
    learn,
    learning_of,
)
from limpet.session.runs.setup import (
    Permission,
    permission_for,
    permission_within,
    permissions_within,
    strictest_of,
)
from limpet.session.session import Session
from limpet.session.writer import own_tools, writer_of

T = TypeVar("T")  # what a function returns, sync or async
# They wake a session, and are processed, but no turn is about them.
CONTROL: Final = frozenset((INTERRUPT, *ANSWERS, FEEDBACK))
_NONE: Final[Mapping[str, Any]] = {}
_PIECE: Final = ("text", "usage", "cost", "model")  # of a stream


class Turn:
    """One turn of an agent, in one of its runs."""

    def __init__(
        self,
        run: TurnRun,
        *,
        inputs: Sequence[Event] = (),
        revisits: Sequence[Revisit] = (),
        note: str | None = None,
        redirect: int | None = None,
    ) -> None:
        self.run = run  # of the package, for the calls below
        self.id, self.wake_id, self.attempt = run.id, run.wake_id, run.attempt
        self.inputs, self.revisits = inputs, revisits
        # The note of the person who interrupted the turn before: this one then has no inputs.
        self.note = note
        self._redirect = redirect  # the seq of that interrupt
        self.revisits_set: list[Draft] = []  # for the closing commit
        registry = writer_of(run.session).services.lifecycle(run.session.app).tools
        self._use = ToolUse(run.session, registry)
        self._offered: dict[str, Tool] = {}  # the tools of the last model call, by safe name
        self._offered_in: dict[str, dict[str, Tool]] = {}  # and of each, by its id
        self._changes: dict[str, bool] = {}  # of the harness, decided in this run

    def __repr__(self) -> str:
        return f"<limpet.Turn {self.session.key} attempt {self.attempt}>"

    @property
    def session(self) -> Session[Any]:
        """The session, under the lease of this run. Its writes are not recorded as calls of the
        turn: use `append` for what must not happen twice."""
        return self.run.session

    @property
    def state(self) -> Any:
        """The session's state as of the last load or write here."""
        return self.session.state

    @property
    def version(self) -> str | None:
        """The version of the worker that began this turn: `Worker(version=)`. A paused turn keeps
        it, even if another version continues it."""
        return self.run.version

    @property
    def agent_name(self) -> str:
        """The agent whose learnings this session shares: that of its setup, or its app."""
        return agent_of(self.session.head)

    @property
    def permissions(self) -> Mapping[str, Permission]:
        """The permissions of the worker and of the session's setup by tool; `*` is every other."""
        facts = self.session.head.facts
        return permissions_within(self.run.permissions, usable_tools(facts), self._own_tools)

    def permission(self, tool: str) -> Permission:
        """Return always_allow, always_ask or deny. If the session has bound tools, every other tool
        is denied, apart from managed tools; if its isolation names tools of the agent, every other
        one.

        Raises InvalidInput for a malformed name.
        """
        usable = usable_tools(self.session.head.facts)
        return permission_within(self.run.permissions, usable, tool, self._own_tools)

    @property
    def _own_tools(self) -> Collection[str] | None:
        """The tools that the session keeps for the agent of this turn; None: all."""
        return own_tools(writer_of(self.session), self.session.head.facts)

    # --- what is recorded ------------------------------------------------------------------------

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> T: ...
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the result of fn(*args, **kwargs), computed once in a turn. fn may be async.

        The result is stored, so it must be representable as JSON. If fn raises, nothing is
        recorded. Raises what fn raises; BudgetReached, TurnMismatch.
        """
        return await self._step("step", name, fn, args, kwargs, max_cost, max_tokens)

    async def _step(
        self,
        kind: Literal["step", "retrieval"],
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        max_cost: float | None,
        max_tokens: int | None,
    ) -> Any:
        if not callable(fn):
            raise InvalidInput(f"the step {name!r} takes a function, not {described(fn)}.")
        with self.run.working():
            name = self.run.named(name)
            occurrence, hashed = self.run.records.occurrence("step", name), args_hash(args, kwargs)
            self.run.records.reach("step", name, occurrence)
            before = self.run.records.steps.get((name, occurrence))
            if before is not None:
                hashes = (before.data["args_hash"], hashed)
                values = ({"result": before.data["result"]}, {"args": args, "kwargs": kwargs})
                self.run.check_same("the step", name, occurrence, hashes, values)
                return before.data["result"]
            id = identity(self.id, "step", name, occurrence)
            async with self._reserved(id, max_cost, max_tokens) as reservation:
                started_us = self.run.now_us
                inside = self.run.pauses.inside(f"the step {name!r}")
                with self.run.traced("step", name), inside:
                    result = await call(fn, *args, **kwargs)
                self.run.driver.check()
                fact = runs.step_recorded(
                    id, name, occurrence, hashed, result, started_us=started_us
                )
                spans = self._retrieval_spans(id, name) if kind == "retrieval" else ()
                with result_of(f"the step {name!r}"):
                    event, *_ = await self.run.log.write(fact, *spans, *reservation.settling())
            return event.data["result"]

    def _retrieval_spans(self, id: str, name: str) -> tuple[Draft, ...]:
        span = identity(id, "span")
        begun = runs.span_started(span, "retrieval", name, parent=self.wake_id)
        ended = runs.span_completed(span, "retrieval", name, "success", parent=self.wake_id)
        return begun, ended

    @overload
    async def retrieve(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def retrieve(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> T: ...
    async def retrieve(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return the result of fn(*args, **kwargs), which looks something up: a step whose span has
        kind `retrieval`, so that a session's queries can be counted.

        Raises what fn raises, and nothing is recorded then.
        """
        return await self._step("retrieval", name, fn, args, kwargs, None, None)

    async def stream(
        self,
        name: str,
        pieces: AsyncIterable[Any] | Iterable[Any],
        *,
        say: bool = True,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> str:
        """Return the whole text of the pieces, recorded once; followers see each as it comes.

        A piece is a text, a dict with `text`, `usage`, `cost` or `model`, or a limpet.Piece, of
        which the text and the usage count. A model that calls tools belongs into `model`. The whole
        is one agent.message, with say=False only the result of a step. Raises InvalidInput for any
        other piece, above all one of a tool call; BudgetReached.
        """
        with self.run.working():
            name = self.run.named(name)
            stream = TextStream(
                self.run, name, self.run.records.occurrence("stream", name), say=say
            )
            if (recorded := stream.recorded) is not None:
                await stream.drop(pieces)
                return recorded
            async with self._reserved(stream.id, max_cost, max_tokens) as reservation:
                return await stream.run(pieces, reservation)

    @overload
    async def effect(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        /,
        *,
        on_unknown: OnUnknown = "ask",
        key: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function
        retries: int = 0,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        compensate: str | None = None,
        record_args: bool = True,
        **args: Any,
    ) -> T: ...
    @overload
    async def effect(
        self,
        name: str,
        fn: Callable[..., T],
        /,
        *,
        on_unknown: OnUnknown = "ask",
        key: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function
        retries: int = 0,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        compensate: str | None = None,
        record_args: bool = True,
        **args: Any,
    ) -> T: ...
    async def effect(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *,
        on_unknown: OnUnknown = "ask",
        key: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function, for each try
        retries: int = 0,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        compensate: str | None = None,
        record_args: bool = True,
        **args: Any,
    ) -> Any:
        """Return the result of fn(**args), an action on the world, performed once.

        Raises EffectFailed if every attempt of fn raises; EffectUnknown if nobody knows whether it
        was performed and a person decided to leave it; ToolDenied. A parameter of fn named
        `idempotency_key` receives the key, which is the same however often it is tried. With a
        `key` of your own it is performed once in the life of the session. `compensate` names the
        function of lp.policies.lifecycle(app, compensations=…) that undoes it if the session is
        terminated. Where the session has tools bound, `name` is one of them, and authorized now:
        else it raises ToolDenied, and ToolLocked while another session holds a tool that is
        exclusive. While the circuit of `name` is open, it raises ToolDenied before any try. Of a
        tool that is bound with a cost, each use is charged to the session. The arguments are
        recorded with the intent, up to 4 KiB; with record_args=False only their hash.
        """
        with self.run.working("effect"):
            tool, name = name, self.run.named(name)
            refusal: ToolDenied | None = None
            try:
                permission = permission_for(self.run.permissions, tool)
                if permission == "always_ask" and not self._has_asked(name):
                    await self._use.check_circuit(tool)  # nobody is asked about what is refused
                    await self._use.check(tool)
                args = await self._permitted(tool, args)
            except ToolDenied as error:  # which says that nothing was done, if that is known
                refusal = error
            if max_cost is max_tokens is None:  # what one use of a bound tool costs
                max_cost = self.session.tools.bound.get(tool, EMPTY).get("cost") or None
            held = None if max_cost is max_tokens is None else budgets.amount(max_cost, max_tokens)
            effect = Effect(
                name,
                fn,
                args,
                on_unknown,
                key,
                timeout,
                retries,
                held,
                compensate,
                record_args=record_args,
                tool=tool,
                refusal=refusal,
            )
            return await EffectCall(self.run, effect, self._use).run()

    async def model(
        self,
        name: str,
        call: Call,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        system: str | None = None,
        tokens: int | None = None,
        shape: Shape | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Call a model once with the conversation as it is now, and return its Reply.

        `call(ModelRequest)` returns a Reply, a text, a provider's own message, or an async iterator
        of Pieces, which followers see as they come. The whole is recorded in one commit: an
        agent.message, and an agent.tool_use for each tool that the model wants; hand each of
        `reply.tool_calls` to `tool`. `tokens` bounds the context. `shape` is the form of its
        messages: that of the provider, else "openai". Raises BudgetReached before the call if
        nothing is left, and what `call` raises.
        """
        if not callable(call):
            raise InvalidInput(f"turn.model takes a function as its call, not {described(call)}.")
        with self.run.working("model"):
            offered = tools_of(tools)
            one = ModelCall(self.run, self.run.named(name), offered, self.permission)
            # By the call, since several models may speak at once; a call of another turn has none.
            self._offered = {safe_name(each.name): each for each in offered}
            self._offered_in[one.id] = self._offered
            if (recorded := one.recorded) is not None:
                return recorded
            form: Shape = getattr(call, "shape", "openai") if shape is None else shape

            async def context() -> tuple[str, Sequence[Mapping[str, Any]]]:
                # The opening of the call is recorded: what the session knows reaches up to it.
                messages = await self._conversation.messages(tail=self.session.events)
                shown = await compile_context(
                    self.session.key, messages, tokens=tokens, shape=form, system=system or ""
                )
                return shown.system, shown.messages

            async with self._reserved(one.id, max_cost, max_tokens) as reservation:
                return await one.run(call, context, form, reservation)

    async def tool(
        self,
        call: ToolCall,
        fn: Tool | Callable[..., Any] | None = None,
        *,
        permission: Permission | None = None,
        on_unknown: OnUnknown | None = None,
        pure: bool = False,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function, for each try
        retries: int = 0,
        record_args: bool | None = None,
    ) -> ToolResult:
        """Run one of `reply.tool_calls` and return the result that the model will read.

        `fn` is a function or a Tool; without it, the tool of that name in the last `model(tools=)`.
        It runs as an effect, if it is pure as a step, with the strictest permission of this call,
        the tool, the worker and the session. A tool without a function is the client's: the turn
        pauses until `s.answer`. An unknown tool, a wrong input, an exception and a denial are error
        results, never exceptions. Each call has exactly one result, whenever it is asked for again.
        With record_args=False the intent of the effect has the hash of the input only. Raises
        InvalidInput if the call is not one of a reply of this turn.
        """
        with self.run.working("tool"):
            if not isinstance(call, ToolCall):
                raise InvalidInput("turn.tool takes one of reply.tool_calls first.")
            offered = self._offered_in.get(call.id.rpartition("-")[0], self._offered)
            chosen = offered.get(safe_name(call.name))
            said: list[Permission] = [permission or "always_allow"]
            if fn is not None:
                # A function of the harness's own is not a way round what the tool asks for.
                said.append(self._offered_permission(call) if chosen is None else chosen.permission)
                chosen = fn if isinstance(fn, Tool) else tool(name=call.name)(fn)
            asked = tuple(said)
            if chosen is not None:
                said += [chosen.permission, self.permission(chosen.name)]
            return await ToolUseCall(
                self.run,
                call,
                chosen,
                self._use,
                permission=strictest_of(*said),
                offered=[each.name for each in offered.values()],
                on_unknown=on_unknown,
                pure=pure,
                timeout=timeout,
                retries=retries,
                record_args=record_args,
                tools=offered,
                permit=lambda other: strictest_of(
                    *asked, other.permission, self.permission(other.name)
                ),
            ).run()

    async def say(
        self,
        text: str | None = None,
        *,
        content: Sequence[Any] | None = None,
        model: str | None = None,
        usage: Mapping[str, int] | None = None,
        cost: float | None = None,
    ) -> Event:
        """Record an agent.message, a text or a list of parts, and return the event.

        `usage` and `cost` are what it used; they count even beyond the budget, and then the next
        call is refused. Raises InvalidInput.
        """
        if (text is None) == (content is None):
            raise InvalidInput("say takes a text or a content.")
        if not isinstance(text, (str, type(None))):
            raise InvalidInput(f"say takes a text, not {described(text)}.")
        data = {"text": text, "content": content, "model": model, "usage": usage, "cost": cost}
        return await self.append("agent.message", {n: v for n, v in data.items() if v is not None})

    async def append(
        self,
        type: str,
        data: Mapping[str, Any] = _NONE,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = _NONE,
        merge: Mapping[str, Mapping[str, Any]] = _NONE,
        add: Mapping[str, Sequence[Any]] = _NONE,
        inc: Mapping[str, int | float] = _NONE,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        trace: Trace | None = None,
        input: bool = False,
    ) -> Event:
        """Record an event once in a turn, and return it. The arguments are those of Session.append.

        Without an `id`, the id follows from the turn, the type and the number of the call. With
        one, it identifies the call: a repeated id returns the first record. Send a partial with
        `turn.session.append(…, partial=True)`: it is not recorded. Raises as Session.append does.
        """
        with self.run.working():
            if id is None:
                name = self.run.named(type)
                occurrence = self.run.records.occurrence("append", name)
                id = identity(self.id, "append", name, occurrence)
                before = self.run.records.events.get(id)
                if before is not None:
                    hashes = (args_hash(before.data), args_hash(data))
                    self.run.check_same("the event", type, occurrence, hashes, (before.data, data))
            else:
                before = self.run.records.events.get(id)
            self.run.records.reach("event", id)
            if before is not None:
                return before
            draft = Draft(
                type=type,
                data=data,
                actor=actor,
                set=set,
                merge=merge,
                add=add,
                inc=inc,
                delete=delete,
                ops=ops,
                id=id,
                input=input,
            )
            (event,) = await self.run.log.write(traced(draft, trace))
            self.run.records.add(event)
            return event

    def changed(self, name: str) -> bool:
        """Return True if this turn follows the new code where you changed the harness.

        It is False in a turn that passed this place before the call of `changed` existed: let it
        follow the old code, for which it has records. The first call in a turn decides for all
        calls with this name, and is recorded with the next record. Raises InvalidInput for a
        malformed name.
        """
        with self.run.working("changed"):
            records, step = self.run.records, f"{CHANGED}{name}"
            if why := unfit(name, NAME_CHARS_MAX - len(CHANGED)):
                raise InvalidInput(f"turn.changed takes a name, and it {why}.")
            decided = records.steps.get((step, 1))
            if decided is not None:
                return bool(decided.data["result"])
            if name not in self._changes:
                is_new = self._changes[name] = not records.is_past
                id = identity(self.id, "changed", name)
                fact = step_recorded(id, step, 1, args_hash(), is_new, started_us=self.run.now_us)
                self.run.log.queue(fact)
            return self._changes[name]

    # --- what pauses it --------------------------------------------------------------------------

    async def approve(
        self,
        name: str,
        input: Any,
        deadline: timedelta | None = None,
        otherwise: Otherwise | None = None,
    ) -> Approval:
        """Ask a person to approve `input`, and return the decision. The turn pauses until s.confirm
        answers.

        The deadline counts from when it was first asked; after it, the answer is `otherwise`
        ("allow" or "deny", by default "deny"). Raises InvalidInput if the input cannot be stored.
        """
        with self.run.working("approve"):
            return await requests.approve(
                self.run, self.run.named(name), input, deadline, otherwise
            )

    async def ask(self, name: str, input: Any) -> Any:
        """Use a tool that runs elsewhere, and return its output. The turn pauses until s.answer
        provides it.

        Raises InvalidInput if the input cannot be stored, ToolDenied, and ToolFailed if the answer
        is an error.
        """
        with self.run.working("ask"):
            return await requests.ask(self.run, self.run.named(name), input)

    async def delegate(
        self,
        app: str,
        message: str | Mapping[str, Any],
        *,
        title: str | None = None,
        budget: Budget | Share | float | None = None,
        tools: Iterable[str] | None = None,
        fields: Mapping[str, Any] | None = None,
        cascade: bool = True,
    ) -> Child:
        """Start a child session of this user that works on `message`; return at once.

        `await child.result()` pauses the turn until it has ended. It gets `fields` and `tools`, and
        nothing else of this session. Its budget is taken from this one's, and the rest is returned.
        Where this session has a limit and `budget` names none, it gets a quarter of what is left.
        It is interrupted and terminated with this session, unless cascade=False. Raises
        BudgetReached, and InvalidInput if this session lacks a field or tool.
        """
        with self.run.working("delegate"):
            return await children.delegate(
                self.run,
                app,
                message,
                title=title,
                budget=budget,
                tools=tools,
                fields=fields,
                cascade=cascade,
            )

    # --- what comes later ------------------------------------------------------------------------

    def revisit(
        self,
        when: datetime | timedelta,
        reason: str,
        key: str | None = None,
        priority: RevisitPriority = "normal",
        *,
        replace: bool = False,
    ) -> None:
        """Schedule another wake at this time, recorded with the end of the turn. At most 16 a turn.

        If several have the same key, the first stays until it is delivered, or with `replace` the
        last. Raises InvalidInput for the 17th, or for a time without a zone.
        """
        if len(self.revisits_set) >= REVISITS_PER_TURN_MAX:
            raise TurnMisused(f"a turn asks for at most {REVISITS_PER_TURN_MAX} revisits.")
        at_us = _moment_us(when, self.run.now_us)
        key = f"{self.id}.{len(self.revisits_set)}" if key is None else key
        fact = revisit_set(key, at_us, reason, priority=priority, replace=replace)
        self.revisits_set.append(fact)

    async def news(self) -> tuple[Event, ...]:
        """Return the inputs that arrived since the turn began; they wait for the next one.

        Raises StoreError.
        """
        mine = {event.seq for event in self.inputs}
        pending = await self.session.pending()
        return tuple([e for e in pending if e.seq not in mine and e.type not in CONTROL])

    async def learn(self, kind: LearningKind, text: str) -> Learning:
        """Store a lesson, a correction or an error for all sessions of the agent, and return it;
        each once.

        Raises InvalidInput for another kind or an empty text.
        """
        with self.run.working():
            session, learning = self.session, learning_of(kind, text)
            agent = self.agent_name
            by = session.actor or DefaultActor("system:runtime")
            await learn(writer_of(session).journal, agent, learning, session.key, by)
            return learning

    async def context(
        self,
        *,
        tokens: int | None = None,
        shape: Shape = "openai",
        count: Count | None = None,
        system: str = "",
        pinned: Iterable[int] = (),
        summarize: Summarize | None = None,
        correlation_id: str | None = None,
    ) -> Context:
        """Return the conversation for a model as of now: see Session.context.

        Inputs that wait for another turn are left out. The log is read once per run of the turn;
        further calls read only what was recorded since. Raises InsufficientTokenBudget.
        """
        messages = await self._conversation.messages(correlation_id)
        return await compile_context(
            self.session.key,
            messages,
            tokens=tokens,
            shape=shape,
            count=count,
            system=system,
            pinned=pinned,
            summarize=summarize,
        )

    @cached_property
    def _conversation(self) -> TurnConversation:
        under_way = turn_in(self.session.head.facts)
        began = self.session.version
        if under_way is not None and under_way["id"] == self.id:
            began = under_way["from"]
        seqs = {event.seq for event in self.inputs}
        seqs |= set() if self._redirect is None else {self._redirect}
        return TurnConversation(self.session.read, TurnInputs(self.id, frozenset(seqs)), began)

    def reserve(self, *, cost: float | None = None, tokens: int | None = None) -> Reservation:
        """Reserve a part of the budget: `async with turn.reserve(cost=0.1) as r: …; r.settle()`.

        Raises BudgetReached. What is not settled counts as used. A block settled by an earlier run
        of the turn reserves nothing again. Returns the reservation.
        """
        of = None if cost is tokens is None else budgets.amount(cost, tokens)
        return ReservedBlock(self.run, of)

    def _reserved(self, id: str, cost: float | None, tokens: int | None) -> Reservation:
        """Reserve for one call, which settles it with its record. Raises BudgetReached if the
        session has spent more than it may."""
        self.run.check_budget()
        of = None if cost is tokens is None else budgets.amount(cost, tokens)
        return Reservation(self.run, of, identity(id, "reserve", self.wake_id))

    # --- for the calls ---------------------------------------------------------------------------

    def _offered_permission(self, call: ToolCall) -> Permission:
        """Return what the tool asked for when the model was called, in a run whose model call is
        done."""
        use = self.run.records.calls.get(call.id)
        asked = "allow" if use is None else use.data.get("permission", "allow")
        return next(api for api, event in EVENT_PERMISSIONS.items() if event == asked)

    def _has_asked(self, name: str) -> bool:
        return any([asked.data["name"] == name for asked in self.run.records.asked.values()])

    async def permitted(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a tool may use; ask first if needed. Raises ToolDenied."""
        own = self._own_tools
        if own is not None and name not in own:
            raise ToolDenied(name, "it is not a tool of this agent")
        with self.run.working():
            return await self._permitted(name, args)

    async def _permitted(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments that may be used: with always_ask, those that a person approved."""
        permission = permission_for(self.run.permissions, name)
        if permission == "always_allow":
            return args
        if permission != "always_ask":
            raise ToolDenied(name)
        approval = await requests.approve(self.run, self.run.named(name), args, None, None)
        if not approval:
            raise ToolDenied(name, approval.note)
        return dict(approval.input)


class TextStream:
    """One call of turn.stream: followers see the pieces, and the whole is recorded."""

    def __init__(self, turn: TurnRun, name: str, occurrence: int, *, say: bool) -> None:
        self._turn, self._name, self._occurrence, self._say = turn, name, occurrence, say
        self.id = identity(turn.id, "stream", name, occurrence)
        self._more: dict[str, Any] = {}
        self._started_us = turn.now_us

    @property
    def recorded(self) -> str | None:
        """The whole text, if an earlier run has recorded it."""
        records = self._turn.records
        records.reach("event", self.id)
        records.reach("step", f"stream:{self._name}", self._occurrence)
        if (event := records.events.get(self.id)) is not None:
            return str(event.data.get("text", ""))
        step = records.steps.get((f"stream:{self._name}", self._occurrence))
        return None if step is None else str(step.data["result"])

    async def drop(self, pieces: Any) -> None:
        """The pieces are not needed: let go of what makes them."""
        for name in ("aclose", "close"):
            close = getattr(pieces, name, None)
            if callable(close):
                ending = close()
                if name == "aclose":
                    await ending
                return

    async def run(
        self, pieces: AsyncIterable[Any] | Iterable[Any], reservation: Reservation
    ) -> str:
        """Hand on each piece, and record the whole, with what was used of the reservation."""
        texts: list[str] = []
        inside = self._turn.pauses.inside(f"the stream {self._name!r}")
        with self._turn.traced("model", self._name) as notes, inside:
            async for piece in _each(pieces):
                self._turn.driver.check()
                text = self._text(piece)
                if text:
                    await self._publish(text, len(texts))
                    texts.append(text)
            notes.model, notes.usage = self._more.get("model"), self._more.get("usage")
            notes.cost = self._more.get("cost")
        whole = "".join(texts)
        await self._record(whole, reservation)
        return whole

    def _text(self, piece: Any) -> str:
        if isinstance(piece, str):
            return clean_text(piece)
        if isinstance(piece, Piece):
            usage = dict(piece.usage or {})
            cost = usage.pop("cost", None)
            said = {"text": piece.text, "usage": usage or None, "cost": cost, "tool": piece.tool}
            piece = {name: value for name, value in said.items() if value is not None}
        if not isinstance(piece, Mapping):
            raise InvalidInput(f"a piece of a stream is a text or a dict, not {described(piece)}.")
        for name in piece:
            if name not in _PIECE:
                raise InvalidInput(
                    f"a piece of the stream {self._name!r} has {name!r}, which turn.stream cannot "
                    f"record. It takes {', '.join(_PIECE)}; use turn.model for a model that calls "
                    "tools."
                )
        for name in ("usage", "cost", "model"):
            if piece.get(name) is not None:
                self._more[name] = piece[name]
        return clean_text(str(piece.get("text") or ""))

    async def _publish(self, text: str, index: int) -> None:
        """Send it to followers, in this process and in others; `attempt` says which run it is
        of."""
        turn, data = self._turn, {"text": text, "index": index}
        await turn.log.publish("agent.message", data, id=self.id, attempt=turn.attempt)

    async def _record(self, whole: str, reservation: Reservation) -> None:
        turn = self._turn
        cost, usage = self._more.get("cost"), self._more.get("usage")
        tokens = None if usage is None else _tokens(usage)
        if self._say:  # what the message says is counted with it
            cost, tokens = (None if used is None else 0 for used in (cost, tokens))
        reservation.settle_at(cost, tokens)
        if self._say:
            source: dict[str, Any] = {"stream": self._name, "occurrence": self._occurrence}
            source["started_us"] = self._started_us
            data = {"text": whole, **source, **self._more}
            draft = Draft(type="agent.message", data=data, id=self.id)
        else:
            name, hashed = f"stream:{self._name}", args_hash()
            draft = step_recorded(
                self.id, name, self._occurrence, hashed, whole, started_us=self._started_us
            )
        event, *_ = await turn.log.write(draft, *reservation.settling())
        turn.records.add(event)


def _moment_us(when: datetime | timedelta, now_us: int) -> int:
    if isinstance(when, timedelta):
        return now_us + when // timedelta(microseconds=1)
    if not isinstance(when, datetime):
        raise InvalidInput("a revisit is at an aware datetime, or after a timedelta.")
    return to_us(when)


def _tokens(usage: Any) -> int | None:
    """The tokens that a model says it used; None if it does not say."""
    if not isinstance(usage, Mapping):
        return None
    counts = [usage.get(name, 0) for name in ("input", "output")]
    return sum(counts) if all([type(count) is int for count in counts]) else None


async def _each(pieces: Any) -> AsyncIterator[Any]:
    if hasattr(pieces, "__aiter__"):
        async for piece in pieces:
            yield piece
    elif isinstance(pieces, Iterable):
        for piece in pieces:
            yield piece
    else:
        raise InvalidInput(f"a stream takes an iterator of pieces, not {described(pieces)}.")
