"""A graph in a turn: a Worker runs it, and what its nodes do is recorded once.

`as_harness` makes a harness of a compiled graph. Its checkpoints are steps of the turn, so the next
run of a turn whose worker died starts after the last completed node. In a node, `step`, `effect`,
`approve`, `model` and `tool` do what the methods of `limpet.Turn` do, once for each run of the
node: they are recorded under its name, visit, attempt, instance and branch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

import msgspec

from limpet.errors import (
    EffectFailed,
    GraphError,
    GraphMisused,
    ModelInvalid,
    SessionEnded,
    SessionFenced,
    SuspensionResumePayloadInvalid,
    ToolDenied,
    TurnError,
    TurnMisused,
)
from limpet.graph.checkpoint import CheckpointRecord
from limpet.graph.context import CURRENT, Suspended, drawing
from limpet.graph.engine.compiled import CompiledGraph, InvokeArguments, RunReport, invoke
from limpet.graph.engine.turn_checkpoints import INITIAL, NodeRun, TurnCheckpoints
from limpet.graph.state import State
from limpet.model import described
from limpet.runtime.effects import call as call_function
from limpet.runtime.model_call import Call, Reply, ToolCall, ToolResult
from limpet.runtime.requests import Approval, Otherwise
from limpet.runtime.tool import tools_of
from limpet.runtime.turn import Turn
from limpet.runtime.turn_log import args_hash
from limpet.session.conversation.shapes import Shape, safe_name
from limpet.session.life.tools import OnUnknown, Tool
from limpet.session.runs.setup import Permission

S = TypeVar("S", bound=State)
T = TypeVar("T")  # what a function returns, sync or async
Initial: TypeAlias = "Callable[[Turn], Any | Awaitable[Any]]"
Say: TypeAlias = "Callable[[Any], Awaitable[str | None] | str | None]"
# Errors that decide how the wake ends, whatever node they come from.
_DECIDING: Final = (TurnError, ToolDenied, ModelInvalid, SessionEnded, SessionFenced)


def as_harness(
    graph: CompiledGraph[S], *, initial: Initial | None = None, say: Say | None = None
) -> GraphHarness[S]:
    """A harness for a Worker or `lp.wake` that runs the graph once in each turn.

    `initial(turn)` returns the state that it starts with, `say(state)` the text of the agent's
    message at its end, or None; both may be async. The session keeps the checkpoints: a run that
    died goes on after its last completed node. A node that suspends pauses the turn with a request
    of kind "question", named after its signal; `s.answer(id, {field: value})` brings the payload.
    """
    return GraphHarness(graph, initial=initial, say=say)


class GraphHarness(Generic[S]):
    """A graph as the harness of a worker; `as_harness` makes it."""

    def __init__(self, graph: CompiledGraph[S], *, initial: Initial | None, say: Say | None):
        if not isinstance(graph, CompiledGraph):
            raise GraphMisused(f"as_harness takes a compiled graph, not {described(graph)}.")
        if graph.session is not None:
            raise GraphMisused(
                "the graph has a session store of its own, and a worker runs it in a session of "
                "Limpet. Build it without with_session_store; `initial` reads turn.session."
            )
        for name, function in (("initial", initial), ("say", say)):
            if function is not None and not callable(function):
                raise GraphMisused(f"{name} is {described(function)}. Pass a function.")
        self.graph, self._initial, self._say = graph, initial, say

    def __repr__(self) -> str:
        return f"<limpet.graph.GraphHarness {self.graph.name}>"

    async def run(self, turn: Turn) -> None:
        """Run one turn: the graph from its start, or from where the turn's last run stopped."""
        try:
            final = await self._final(turn)
        except GraphError as error:
            raise _deciding(error) from error.__cause__
        if self._say is not None:
            with turn.run.part("@say"):
                text = await call_function(self._say, final)
            if text is not None:
                await turn.say(text)

    async def _final(self, turn: Turn) -> S:
        """The final state. Pauses the turn while the graph is suspended."""
        checkpoints = TurnCheckpoints(turn, self.graph.name, drawing(self.graph))
        plan = copy(self.graph)
        plan.checkpointer = plan.leasing = checkpoints
        plan.warned = True  # its session id is the worker's, and it needs no session store
        refused: str | None = None
        while True:
            record = await checkpoints.load(turn.id)
            if record is not None and record.status == "completed":
                return self.graph.plan.load(record.state, "the final state")
            arguments = await self._arguments(turn, checkpoints, record, refused)
            try:
                outcome = await invoke(plan, arguments, RunReport())
            except SuspensionResumePayloadInvalid as error:
                refused = error.reason  # it is asked for again, and the request says why
                continue
            if not isinstance(outcome, Suspended):
                final: S = outcome
                return final
            refused = None

    async def _arguments(
        self,
        turn: Turn,
        checkpoints: TurnCheckpoints,
        record: CheckpointRecord | None,
        refused: str | None,
    ) -> InvokeArguments:
        """Return the arguments of an invocation: from its start, or from its record."""
        initial: Any = None
        payload: Any = None
        if record is None and self._initial is not None:
            with turn.run.part(INITIAL):
                initial = await call_function(self._initial, turn)
        elif record is not None and record.status == "suspended":
            payload = await _signal(turn, checkpoints, record, refused)
        return InvokeArguments(
            initial=initial,
            session_id=turn.session.key.id,
            invocation_id=turn.id,
            resume_invocation=None if record is None else turn.id,
            signal_payload=payload,
            turn=checkpoints,
        )


async def _signal(
    turn: Turn, checkpoints: TurnCheckpoints, record: CheckpointRecord, refused: str | None
) -> Any:
    """Ask for the signal that a suspended graph waits for, and return its payload."""
    suspension = record.suspension or {}
    descriptor = suspension["descriptor"]
    signal_id, shown = descriptor["signal_id"], dict(descriptor.get("metadata") or {})
    shown["node"] = "/".join(suspension["namespace"])
    if refused is not None:
        shown["refused"] = refused
    count = checkpoints.signals[signal_id]
    answer = await turn.ask(signal_id if count == 1 else f"{signal_id}#{count}", shown)
    return {} if answer is None else answer


def _deciding(error: GraphError) -> Exception:
    """The error that decides how the wake ends; else that of the graph, which names the node."""
    cause: BaseException | None = error
    while isinstance(cause, GraphError):
        cause = cause.__cause__
    is_deciding = isinstance(cause, _DECIDING) and not isinstance(cause, EffectFailed)
    return cause if is_deciding and isinstance(cause, Exception) else error


# --- in a node ------------------------------------------------------------------------------------


@overload
async def step(
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
    name: str,
    fn: Callable[..., T],
    /,
    *args: Any,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    **kwargs: Any,
) -> T: ...
async def step(
    name: str,
    fn: Callable[..., Any],
    /,
    *args: Any,
    max_cost: float | None = None,
    max_tokens: int | None = None,
    **kwargs: Any,
) -> Any:
    """The result of fn(*args, **kwargs), computed once in this run of the node: see Turn.step."""
    turn = _here("step")[0].turn
    return await turn.step(name, fn, *args, max_cost=max_cost, max_tokens=max_tokens, **kwargs)


@overload
async def effect(
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
    """The result of fn(**args), an action on the world: performed once in this run of the node, or
    asked about. See Turn.effect.

    A node that is retried performs again what failed. What succeeded in an earlier attempt, with
    these arguments, is not performed again: its result is returned.
    """
    checkpoints, run = _here("effect")
    run.effects[name] += 1
    part, occurrence = run.part, run.effects[name]
    if key is None and "~" in part:
        hashed = args_hash(dict(args), None)
        for before, record in checkpoints.earlier(part, name, occurrence):
            if record.state == "succeeded" and record.args_hash == hashed:
                return record.result
            if record.is_unknown:  # it is asked about, or tried, as it was
                part = before
    checkpoints.count_effect(part, name, occurrence)
    with checkpoints.calls(part):
        return await checkpoints.turn.effect(
            name,
            fn,
            on_unknown=on_unknown,
            key=key,
            timeout=timeout,
            retries=retries,
            max_cost=max_cost,
            max_tokens=max_tokens,
            compensate=compensate,
            record_args=record_args,
            **args,
        )


async def approve(
    name: str,
    input: Any,
    deadline: timedelta | None = None,
    otherwise: Otherwise | None = None,
) -> Approval:
    """Ask a person whether `input` may be done; the turn pauses until they say so, and the graph
    goes on in this node. See Turn.approve. A node that is retried has the answer of its earlier
    attempt, if the input is the same."""
    return await _here("approve")[0].turn.approve(name, input, deadline, otherwise)


async def model(
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
    """Ask a model once in this run of the node, with the conversation of the session: see
    Turn.model."""
    checkpoints, run = _here("model")
    offered = tools_of(tools)
    run.offered = {safe_name(each.name): each for each in offered}
    return await checkpoints.turn.model(
        name,
        call,
        tools=offered,
        system=system,
        tokens=tokens,
        shape=shape,
        max_cost=max_cost,
        max_tokens=max_tokens,
    )


async def tool(
    call: ToolCall | Mapping[str, Any],
    fn: Tool | Callable[..., Any] | None = None,
    *,
    permission: Permission | None = None,
    on_unknown: OnUnknown | None = None,
    pure: bool = False,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109  # of the function, for each try
    retries: int = 0,
) -> ToolResult:
    """Run one of `reply.tool_calls` and return the result that the model will read: see Turn.tool.

    `call` may be a dict of its fields, as a graph's state holds it. Without `fn` it is the tool of
    that name in the last `model(tools=)` of this node; in another node, pass it.
    """
    checkpoints, run = _here("tool")
    if not isinstance(call, ToolCall):
        try:
            call = msgspec.convert(dict(call), ToolCall)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise TurnMisused(
                f"limpet.graph.tool takes one of reply.tool_calls, or a dict of its fields, not "
                f"{described(call)}."
            ) from error
    if fn is None and run.offered is None:
        raise TurnMisused(
            "this node has not called limpet.graph.model, so nothing says which function the tool "
            f"{call.name!r} is. Pass it: limpet.graph.tool(call, fn)."
        )
    if fn is None and run.offered is not None:
        fn = run.offered.get(safe_name(call.name))
    checkpoints.use_tool(run.part, call.id)
    return await checkpoints.turn.tool(
        call,
        fn,
        permission=permission,
        on_unknown=on_unknown,
        pure=pure,
        timeout=timeout,
        retries=retries,
    )


def _here(verb: str) -> tuple[TurnCheckpoints, NodeRun]:
    """The turn and the run of the node that this code belongs to. Raises TurnMisused."""
    scope = CURRENT.get()
    turn = None if scope is None or scope.run.ended else scope.run.turn
    if turn is None or scope is None or scope.node_run is None:
        raise TurnMisused(
            f"limpet.graph.{verb} records what a node does in the session of a worker, and no "
            "worker runs this code. Run the graph with limpet.graph.as_harness(graph, …) in a "
            "limpet.Worker or lp.wake, and call it in a node."
        )
    return turn, scope.node_run
