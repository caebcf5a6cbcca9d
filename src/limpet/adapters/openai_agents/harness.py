"""An agent of openai-agents in a worker: its model calls and tools are those of the turn.

Every agent that the run may reach, by handoffs too, is cloned with its model and its function tools
(those of MCP servers as well) wrapped. The framework's Runner does the rest.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from limpet import Message, Piece, Reply, Turn
from limpet.adapters.turn_calls import TurnCalls, earlier_messages, ignoring_context, prompt_of
from limpet.errors import ExtraMissing
from limpet.model import thaw

try:
    from agents import (
        Agent,
        FunctionTool,
        Handoff,
        Model,
        ModelResponse,
        RunConfig,
        RunContextWrapper,
        Runner,
        Usage,
        handoff,
    )
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputRefusal,
        ResponseOutputText,
    )
    from pydantic import TypeAdapter
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("agents", "openai", "pydantic"):
        raise
    raise ExtraMissing("openai-agents", "openai-agents") from error

_NAME: Final = "openai_agents"
_MODEL_CALLS_MAX: Final = 10  # as in Runner.run
_jsonable: Final = TypeAdapter(Any)


def as_harness(
    agent: Agent[Any],
    *,
    context: Any = None,
    run_config: RunConfig | None = None,
    max_turns: int = _MODEL_CALLS_MAX,
) -> Callable[[Turn], Awaitable[None]]:
    """Return a harness that runs an agent of openai-agents in a worker.

    Its model calls and function tools are those of the turn: recorded once, streamed, counted
    against the budget. A tool with needs_approval pauses the turn until a person decides. After a
    crash the run begins again and repeats nothing that was recorded. Reasoning items and hosted
    tools of recorded replies are not sent to the model again. `max_turns` counts model calls, as
    in Runner.run.
    """
    config = run_config or RunConfig()

    async def harness(turn: Turn) -> None:
        binding = _TurnAgents(TurnCalls(turn, _NAME), config, context)
        history = [item for each in await earlier_messages(turn) for item in _items_of(each)]
        await Runner.run(
            await binding.bound(agent),
            [*history, {"role": "user", "content": prompt_of(turn)}],
            context=context,
            run_config=replace(config, model=None),
            max_turns=max_turns,
        )

    return harness


class _TurnAgents:
    """The agents of one turn, each cloned once: handoffs may lead in a circle."""

    def __init__(self, calls: TurnCalls, config: RunConfig, context: Any) -> None:
        self._calls, self._config = calls, config
        self._context: RunContextWrapper[Any] = RunContextWrapper(context)
        self._bound: dict[int, Agent[Any]] = {}

    async def bound(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the agent with the model and the tools of the turn."""
        if (known := self._bound.get(id(agent))) is not None:
            return known
        model = self._config.model or agent.model
        if not isinstance(model, Model):
            model = self._config.model_provider.get_model(model)
        tools = [*agent.tools, *await agent.get_mcp_tools(self._context)]
        clone = agent.clone(
            model=_TurnResponses(model, self._calls),
            tools=[self._tool(each) if isinstance(each, FunctionTool) else each for each in tools],
            mcp_servers=[],
        )
        self._bound[id(agent)] = self._bound[id(clone)] = clone
        targets = [each if isinstance(each, Handoff) else handoff(each) for each in agent.handoffs]
        clone.handoffs = [self._handoff(each) for each in targets]
        return clone

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        needs = tool.needs_approval

        async def invoke(context: Any, arguments: str) -> Any:
            given = _input_of(arguments)
            asks = needs if isinstance(needs, bool) else await _asks(needs, context, given)

            async def run() -> Any:
                return _jsonable.dump_python(
                    await tool.on_invoke_tool(context, arguments), mode="json"
                )

            result = await self._calls.tool(
                context.tool_call_id, tool.name, given, run, asks=bool(asks)
            )
            return thaw(result.output)

        return replace(tool, on_invoke_tool=invoke, needs_approval=False)

    def _handoff(self, target: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def invoke(context: Any, arguments: str) -> Any:
            agent = await target.on_invoke_handoff(context, arguments)

            async def run() -> Any:
                return target.get_transfer_message(agent)

            call = self._calls.last_call(target.tool_name)
            if call is not None:
                await self._calls.tool(call, target.tool_name, {}, run, asks=False)
            return await self.bound(agent)

        return replace(target, on_invoke_handoff=invoke)


async def _asks(needs: Callable[..., Awaitable[bool]], context: Any, given: Any) -> bool:
    # Arguments that are not an object cannot be judged by a policy: a person does.
    return not isinstance(given, dict) or await needs(context, given, context.tool_call_id)


def _input_of(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


class _TurnResponses(Model):  # type: ignore[misc]  # without the package its base is Any
    """The agent's model; each response is made once in the turn."""

    def __init__(self, wrapped: Model, calls: TurnCalls) -> None:
        self._wrapped, self._calls = wrapped, calls

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        """Return the recorded response, or ask the model, streaming where it can."""
        fresh: list[ModelResponse] = []

        async def pieces() -> AsyncIterator[Piece]:
            streamed = False
            try:
                async for event in self._wrapped.stream_response(*args, **named):
                    if event.type == "response.output_text.delta":
                        streamed = True
                        yield Piece(text=event.delta)
                    elif event.type in ("response.completed", "response.incomplete"):
                        fresh.append(_response_in(event.response))
            except NotImplementedError:  # it cannot stream
                fresh.append(await self._wrapped.get_response(*args, **named))
            if not fresh:
                raise RuntimeError("the stream of the model ended without a response")
            response = fresh[0]
            if not streamed and (text := _text_of(response.output)):
                yield Piece(text=text)
            wanted = [item for item in response.output if item.type == "function_call"]
            for index, item in enumerate(wanted):
                named_call = {"index": index, "id": item.call_id, "name": item.name}
                yield Piece(tool={**named_call, "arguments": item.arguments})
            used = response.usage
            cached = getattr(used.input_tokens_details, "cached_tokens", 0) or 0
            counts = {"input": used.input_tokens, "output": used.output_tokens}
            yield Piece(usage={**counts, "cache_read": cached})

        reply = await self._calls.model(ignoring_context(pieces))
        return fresh[0] if fresh else _response_of(reply)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Runner.run does not ask for this."""
        raise NotImplementedError


def _response_in(response: Any) -> ModelResponse:
    used = response.usage
    counts = {} if used is None else used.model_dump(include={"input_tokens", "output_tokens"})
    if details := getattr(used, "input_tokens_details", None):  # not every provider has them
        counts["input_tokens_details"] = details
    return ModelResponse(
        output=response.output, usage=Usage(requests=1, **counts), response_id=response.id
    )


def _text_of(output: Sequence[Any]) -> str:
    parts = [part for item in output if item.type == "message" for part in item.content]
    return "".join(
        part.refusal if isinstance(part, ResponseOutputRefusal) else part.text for part in parts
    )


def _response_of(reply: Reply) -> ModelResponse:
    """A recorded reply, as the framework got it."""
    output: list[Any] = []
    if reply.text:
        said = ResponseOutputText(text=reply.text, type="output_text", annotations=[])
        id = "msg" if reply.event is None else f"msg_{reply.event.seq}"
        output.append(
            ResponseOutputMessage(
                id=id, content=[said], role="assistant", status="completed", type="message"
            )
        )
    output += [
        ResponseFunctionToolCall(
            call_id=call.provider_id or call.id,
            name=call.name,
            arguments=json.dumps(thaw(call.input)),
            type="function_call",
        )
        for call in reply.tool_calls
    ]
    return ModelResponse(output=output, usage=Usage(), response_id=None)


def _items_of(message: Message) -> list[Any]:
    """A message of ours as input items of theirs."""
    items: list[Any] = []
    for part in message.parts:
        call = {"call_id": part.get("request_id")}
        if part.get("type") == "tool_use":
            given = json.dumps(thaw(part["input"]))
            items.append(
                {"type": "function_call", "name": part["name"], "arguments": given, **call}
            )
        elif part.get("type") == "tool_result":
            output = thaw(part["output"])
            text = output if isinstance(output, str) else json.dumps(output)
            items.append({"type": "function_call_output", "output": text, **call})
        elif isinstance(part.get("text"), str):
            items.append({"role": message.role, "content": part["text"]})
    return items
