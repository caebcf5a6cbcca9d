"""An agent of google-adk in a worker: its model calls and tools are those of the turn.

The tree of agents is cloned for the turn, with models and tools wrapped. ADK's Runner runs it on a
session in memory that begins with the conversation and the state of ours. What a tool changes in
state is recorded before its result, so a result that is there has its changes.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

from limpet import Message, Piece, Reply, Turn
from limpet.adapters import adk_events
from limpet.adapters.turn_calls import TurnCalls, earlier_messages, ignoring_context, prompt_of
from limpet.errors import ExtraMissing
from limpet.model import thaw
from limpet.runtime.tool import ApprovalNeeded, is_allowed

try:
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.apps.app import App
    from google.adk.events.event import Event
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import Runner
    from google.adk.sessions.in_memory_session_service import InMemorySessionService
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_confirmation import ToolConfirmation
    from google.genai import types
    from pydantic import TypeAdapter
except ModuleNotFoundError as error:
    raise ExtraMissing("google-adk", "adk") from error

_NAME: Final = "adk"
_STATE: Final = "agent.state"
_CLIENT: Final = "adk-"  # before an id that the model did not give: ADK does not send it
_jsonable: Final = TypeAdapter(Any)


def as_harness(agent: BaseAgent) -> Callable[[Turn], Awaitable[None]]:
    """Return a harness that runs an agent of google-adk, with its sub-agents, in a worker.

    Model calls and tools are those of the turn: recorded once, streamed, counted against the
    budget. A tool with require_confirmation, or that calls request_confirmation, pauses the turn
    until a person decides. State is the session's: what a tool or an output_key sets is there for
    all. After a crash the run begins again and repeats nothing that was recorded; thoughts of
    recorded replies are not sent again.
    """

    async def harness(turn: Turn) -> None:
        calls = TurnCalls(turn, _NAME)
        key = turn.session.key
        service = InMemorySessionService()
        session = await service.create_session(
            app_name=key.app,
            user_id=key.user,
            session_id=key.id,
            state=adk_events.adk_state(thaw(turn.session.values)),
        )
        for message in await earlier_messages(turn):
            if (event := _event_of(message, agent.name)) is not None:
                await service.append_event(session, event)
        bound = await _bound(agent, calls)
        runner = Runner(
            app=App(name="limpet", root_agent=bound, plugins=[_TurnPlugin(calls)]),
            app_name=key.app,
            session_service=service,
        )
        prompt = types.Content(role="user", parts=[types.Part(text=prompt_of(turn))])
        async for _ in runner.run_async(user_id=key.user, session_id=key.id, new_message=prompt):
            pass

    return harness


async def _bound(agent: BaseAgent, calls: TurnCalls) -> BaseAgent:
    """Return a copy of the tree of agents with the models and the tools of the turn."""
    root = agent.clone()
    agents = [root]
    for each in agents:
        agents += each.sub_agents
        if isinstance(each, LlmAgent):
            model = each.canonical_model
            if not isinstance(model, _TurnLlm):  # or it has that of its parent
                each.model = _TurnLlm.around(model, calls)
            each.tools = [_bound_tool(tool, calls) for tool in await each.canonical_tools()]
    return root


def _bound_tool(tool: BaseTool, calls: TurnCalls) -> BaseTool:
    """Return a copy of a tool whose runs are those of the turn; approval is the turn's too."""
    bound = copy.copy(tool)
    confirmations: dict[str, ToolConfirmation] = {}  # what calls have asked for

    async def check_require_confirmation(*_: Any, **__: Any) -> bool:
        return False

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        asks = await tool.check_require_confirmation(args, tool_context)
        id = (tool_context.function_call_id or "").removeprefix(_CLIENT)

        async def run() -> Any:
            if is_allowed():
                asked = confirmations.pop(id, ToolConfirmation())
                tool_context.tool_confirmation = asked.model_copy(update={"confirmed": True})
            result = await type(tool).run_async(bound, args=args, tool_context=tool_context)
            wanted = tool_context.actions.requested_tool_confirmations
            if (asked := wanted.pop(tool_context.function_call_id, None)) is not None:
                confirmations[id] = asked
                raise ApprovalNeeded(f"{tool.name} was allowed, and asks again")
            delta = _plain_state(tool_context.actions.state_delta)
            if delta:
                turn = calls.turn
                await turn.session.append(_STATE, set=delta, id=f"{turn.id}/{id}/state")
            return _jsonable.dump_python(result, mode="json")

        done = await calls.tool(id, tool.name, args, run, asks=asks is True)
        return {"error": done.output} if done.is_error else thaw(done.output)

    for replaced in (check_require_confirmation, run_async):
        object.__setattr__(bound, replaced.__name__, replaced)
    return bound


def _plain_state(delta: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = _jsonable.dump_python(delta, mode="json")
    return adk_events.stored_state(plain)


class _TurnPlugin(BasePlugin):  # type: ignore[misc]  # without the package its base is Any
    """Records what ADK does beside models and tools: transfers, and state by callbacks."""

    def __init__(self, calls: TurnCalls) -> None:
        super().__init__(name="limpet")
        self._calls = calls

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> None:
        """Give a call of ADK's own, such as transfer_to_agent, its result."""
        if "run_async" not in vars(tool):
            id = (tool_context.function_call_id or "").removeprefix(_CLIENT)

            async def run() -> Any:
                return _jsonable.dump_python(result, mode="json")

            await self._calls.tool(id, tool.name, tool_args, run, asks=False)

    async def on_event_callback(
        self, *, invocation_context: Any, event: Event
    ) -> None:  # as ADK calls it
        """Record the state that an output_key or a callback of an agent sets."""
        delta = _plain_state(event.actions.state_delta)
        if delta and not event.partial and not event.get_function_responses():
            await self._calls.turn.append(_STATE, set=delta)


class _TurnLlm(BaseLlm):  # type: ignore[misc]  # without the package its base is Any
    """An agent's model; each call is made once in the turn."""

    wrapped: Any
    calls: Any

    @classmethod
    def around(cls, model: BaseLlm, calls: TurnCalls) -> _TurnLlm:
        return cls(model=model.model, wrapped=model, calls=calls)

    @property
    def capabilities(self) -> Any:
        return self.wrapped.capabilities

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: FBT001, FBT002  # as ADK calls it
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the recorded response, or ask the model, as a stream."""
        fresh: list[LlmResponse] = []

        async def pieces() -> AsyncIterator[Piece]:
            streamed = False
            async for response in self.wrapped.generate_content_async(llm_request, stream=True):
                if response.error_code and response.content is None:
                    raise RuntimeError(f"{response.error_code}: {response.error_message}")
                if not response.partial:
                    fresh.append(response)
                text = _text_of(response)
                if text and (response.partial or not streamed):
                    streamed = streamed or bool(response.partial)
                    yield Piece(text=text)
            for index, part in enumerate(_call_parts(fresh)):
                call = part.function_call
                named = {"index": index, "id": call.id or None, "name": call.name}
                arguments = _jsonable.dump_json(call.args or {}).decode()
                yield Piece(tool={**named, "arguments": arguments})
            used = fresh[-1].usage_metadata if fresh else None
            if used is not None:
                output = (used.candidates_token_count or 0) + (used.thoughts_token_count or 0)
                cached = used.cached_content_token_count or 0
                counts = {"input": used.prompt_token_count or 0, "output": output}
                yield Piece(usage={**counts, "cache_read": cached})

        reply: Reply = await self.calls.model(ignoring_context(pieces))
        if not fresh:
            yield _response_of(reply)
            return
        for part, call in zip(_call_parts(fresh), reply.tool_calls, strict=False):
            part.function_call.id = call.provider_id or f"{_CLIENT}{call.id}"
        for response in fresh:
            yield response


def _text_of(response: LlmResponse) -> str:
    parts = (response.content.parts or []) if response.content else []
    return "".join(part.text for part in parts if part.text and not part.thought)


def _call_parts(responses: list[LlmResponse]) -> list[Any]:
    parts = [part for each in responses if each.content for part in each.content.parts or []]
    return [part for part in parts if part.function_call]


def _response_of(reply: Reply) -> LlmResponse:
    """A recorded reply, as ADK got it."""
    parts = [types.Part(text=reply.text)] if reply.text else []
    for call in reply.tool_calls:
        id = call.provider_id or f"{_CLIENT}{call.id}"
        asked = types.FunctionCall(id=id, name=call.name, args=thaw(call.input))
        parts.append(types.Part(function_call=asked))
    return LlmResponse(content=types.Content(role="model", parts=parts))


def _event_of(message: Message, agent: str) -> Event | None:
    """A message of ours as an event of theirs."""
    parts: list[Any] = []
    for part in message.parts:
        if part.get("type") == "tool_use":
            asked = types.FunctionCall(
                id=part["request_id"], name=part["name"], args=thaw(part["input"])
            )
            parts.append(types.Part(function_call=asked))
        elif part.get("type") == "tool_result":
            output = thaw(part["output"])
            response = output if isinstance(output, dict) else {"result": output}
            answered = types.FunctionResponse(
                id=part["request_id"], name=part["name"], response=response
            )
            parts.append(types.Part(function_response=answered))
        elif isinstance(part.get("text"), str):
            parts.append(types.Part(text=part["text"]))
    if not parts:
        return None
    is_user = message.role in ("user", "system")
    role = "model" if message.role == "assistant" else "user"
    return Event(
        author="user" if is_user else agent,
        content=types.Content(role=role, parts=parts),
    )
