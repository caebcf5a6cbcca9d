"""A graph of LangGraph in a worker: its own checkpoints resume it, its interrupts are requests.

The graph has one thread for each session, in the app `APP.langgraph`. A turn is one input of the
graph: the messages of the session that its thread does not have. What the graph adds to `messages`
is said in the session, so another framework, or another agent, goes on with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from limpet import Limpet, Message, Piece, Turn
from limpet.adapters.langgraph.saver import LimpetSaver
from limpet.adapters.langgraph.values import ValueCodec, Values
from limpet.adapters.turn_calls import earlier_messages
from limpet.errors import ExtraMissing
from limpet.model import thaw

try:
    from langgraph.pregel import Pregel
    from langgraph.types import Command
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("langgraph"):
        raise
    raise ExtraMissing("langgraph", "langgraph") from error

_NAME: Final = "langgraph"
_TURN: Final = "limpet_turn"  # in the metadata of a checkpoint: the turn that made it
_ID: Final = "langgraph_id"  # in the data of an event: the id of the graph's message
_MESSAGES: Final = "messages"


def as_harness(
    graph: Any,
    lp: Limpet,
    *,
    config: Mapping[str, Any] | None = None,
    codecs: Iterable[ValueCodec | type[Any]] = (),
) -> Callable[[Turn], Awaitable[None]]:
    """Return a harness that runs a graph of LangGraph in a worker.

    `graph` is a StateGraph or a compiled graph, whose checkpointer is ours in the turn, or a
    function that takes a LimpetSaver and returns a compiled graph. Its state has a channel
    `messages` with the reducer add_messages. `config` is given to each run of the graph. `codecs`
    are those of LimpetSaver: classes, or ValueCodecs, of values in the state that are neither JSON
    nor messages.

    interrupt(value) pauses the turn until `s.answer(request, output)`; the output is what
    interrupt() returns. After a crash the graph goes on from its last checkpoint: a node that had
    not returned runs again from its beginning.
    """

    kinds = tuple(codecs)
    Values(kinds)  # two of one name, or what is not a class, are refused here, not in a turn

    async def harness(turn: Turn) -> None:
        run = _TurnGraph(graph, lp, turn, config or {}, kinds)
        answers: dict[str, Any] | None = None
        last = await turn.step(f"{_NAME} thread", run.last_id)
        while True:
            await turn.stream(_NAME, run.pieces(answers), say=False)
            done = await turn.step(f"{_NAME} results", run.results, last)
            for said in done["messages"]:
                await turn.append(said["type"], thaw(said["data"]))
            if not done["interrupts"]:
                return
            answers = {
                each["id"]: thaw(await turn.ask("interrupt", thaw(each["value"])))
                for each in done["interrupts"]
            }

    return harness


class _TurnGraph:
    """The graph of a turn, on the thread of its session."""

    def __init__(
        self,
        graph: Any,
        lp: Limpet,
        turn: Turn,
        config: Mapping[str, Any],
        codecs: Sequence[ValueCodec | type[Any]],
    ) -> None:
        key = turn.session.key
        saver = LimpetSaver(lp, app=f"{key.app}.langgraph", user=key.user, codecs=codecs)
        if isinstance(graph, Pregel):
            self._graph = graph.copy({"checkpointer": saver})
        elif callable(getattr(graph, "compile", None)):
            self._graph = graph.compile(checkpointer=saver)
        else:
            self._graph = graph(saver)
        self._turn = turn
        self._config: Any = {
            **config,
            "configurable": {**config.get("configurable", {}), "thread_id": key.id},
            "metadata": {**config.get("metadata", {}), _TURN: turn.id},
        }

    async def pieces(self, answers: dict[str, Any] | None) -> AsyncIterator[Piece]:
        """Run the graph until it ends or is interrupted; yield the text of its models."""
        state = await self._graph.aget_state(self._config)
        is_begun = (state.metadata or {}).get(_TURN) == self._turn.id
        given: Any = None  # go on from the checkpoint
        if answers and {each.id for each in state.interrupts} & answers.keys():
            given = Command(resume=answers)
        elif not is_begun:
            given = {_MESSAGES: await self._new_messages(state)}
        elif not state.next:
            return  # it had ended when the process did
        parts = self._graph.astream(given, self._config, stream_mode="messages", durability="sync")
        async for message, _ in parts:
            if isinstance(message, AIMessageChunk) and message.text:
                yield Piece(text=message.text)

    async def last_id(self) -> str | None:
        """The id of the newest message in the thread, or None."""
        messages = (await self._graph.aget_state(self._config)).values.get(_MESSAGES, [])
        return messages[-1].id if messages else None

    async def results(self, last: str | None) -> dict[str, Any]:
        """Return the graph's unrecorded messages after `last`, and its interrupts."""
        state = await self._graph.aget_state(self._config)
        added = state.values.get(_MESSAGES, [])
        ids = [each.id for each in added]
        added = added[ids.index(last) + 1 :] if last in ids else added
        said = {self._id_of(each) for each in await self._turn.session.messages()}
        messages = [
            {"type": type, "data": {**data, _ID: each.id}}
            for each in added
            if isinstance(each, AIMessage | ToolMessage) and each.id not in said
            for type, data in _statements(each)
        ]
        interrupts = [{"id": each.id, "value": each.value} for each in state.interrupts]
        return {"messages": messages, "interrupts": interrupts}

    async def _new_messages(self, state: Any) -> list[AnyMessage]:
        known = {each.id for each in state.values.get(_MESSAGES, [])}
        seqs = {event.seq for event in self._turn.inputs}
        said = [
            *await earlier_messages(self._turn),
            *(each for each in await self._turn.session.messages() if each.event.seq in seqs),
        ]
        return [
            message
            for each in said
            if self._id_of(each) not in known
            for message in _as_theirs(each, self._id_of(each))
        ]

    @staticmethod
    def _id_of(message: Message) -> str:
        data = message.event.data or {}
        id: str = data.get(_ID) or message.event.id
        return id


def _usage_of(message: AIMessage) -> dict[str, Any]:
    used = message.usage_metadata
    if used is None:
        return {}
    cached = used.get("input_token_details", {}).get("cache_read") or 0
    counts = {"input": used["input_tokens"], "output": used["output_tokens"]}
    return {"usage": {**counts, "cache_read": cached}}


def _statements(message: Any) -> list[tuple[str, dict[str, Any]]]:
    """A message of theirs in our vocabulary."""
    if isinstance(message, ToolMessage):
        data = {"request_id": message.tool_call_id, "output": message.content}
        failed = {"is_error": True} if message.status == "error" else {}
        return [("agent.tool_result", {**data, **failed})]
    if not message.text and not message.tool_calls:
        return []
    used = _usage_of(message)  # it counts where it is said
    said = [("agent.message", {"text": message.text, **used})] if message.text or used else []
    return said + [
        ("agent.tool_use", {"request_id": c["id"], "name": c["name"], "input": c["args"]})
        for c in message.tool_calls
    ]


def _as_theirs(message: Message, id: str) -> list[AnyMessage]:
    """A message of ours in theirs."""
    made: list[AnyMessage] = []
    for n, part in enumerate(message.parts):
        name = f"{id}/{n}" if n else id
        if part.get("type") == "tool_use":
            call = {"id": part["request_id"], "name": part["name"], "args": thaw(part["input"])}
            made.append(AIMessage("", tool_calls=[call], id=name))
        elif part.get("type") == "tool_result":
            made.append(ToolMessage(str(part["output"]), tool_call_id=part["request_id"], id=name))
        elif isinstance(part.get("text"), str):
            kinds = {"assistant": AIMessage, "system": SystemMessage}
            made.append(kinds.get(message.role, HumanMessage)(part["text"], id=name))
    return made
