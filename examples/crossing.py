"""One session that goes from google-adk to LangGraph, pydantic-ai and openai-agents. No network:
the models are the frameworks' own for tests, or scripted where a framework has none.

    python examples/crossing.py adk sqlite:///trip.db "I fly to Oslo."
    python examples/crossing.py langgraph sqlite:///trip.db "It is for work."
    python examples/crossing.py pydantic-ai sqlite:///trip.db "I need a hotel."
    python examples/crossing.py openai-agents sqlite:///trip.db "What do you know?"

Each framework needs its extra. They need not be installed together: each line may run in an
environment of its own, as long as all open one store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import limpet

Harness = Callable[[limpet.Turn], Awaitable[None]]


def answer(texts: Sequence[str]) -> str:
    """What each of the models says: all that it was told."""
    return f"I know {len(texts)} messages: {' | '.join(texts)}"


def adk(_: limpet.Limpet) -> Harness:
    """An agent that notes in the session's state what it was told first."""
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    from limpet.adapters.adk import as_harness

    def note(text: str, tool_context: ToolContext) -> dict[str, str]:
        """Note something."""
        tool_context.state["note"] = text
        return {"noted": text}

    class Scripted(BaseLlm):
        async def generate_content_async(
            self,
            llm_request: Any,
            stream: bool = False,  # noqa: FBT001, FBT002  # as ADK calls it
        ) -> AsyncGenerator[LlmResponse, None]:
            parts = [part for content in llm_request.contents for part in content.parts]
            texts = [part.text for part in parts if part.text]
            said = types.Part(text=answer(texts))
            if parts[-1].function_response is None:
                call = types.FunctionCall(name="note", args={"text": texts[-1]})
                said = types.Part(function_call=call)
            yield LlmResponse(content=types.Content(role="model", parts=[said]))

    model = Scripted(model="scripted")
    # ADK reads the annotations of a tool where it was defined: give it the class itself.
    note.__annotations__["tool_context"] = ToolContext
    return as_harness(LlmAgent(name="notes", model=model, tools=[note]))


def langgraph(lp: limpet.Limpet) -> Harness:
    """A graph of one node, on LangChain's own fake model."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from limpet.adapters.langgraph import as_harness

    async def model(state: Any) -> dict[str, Any]:
        texts = [message.text for message in state["messages"] if message.type != "tool"]
        said = AIMessage(answer([text for text in texts if text]))
        return {"messages": [await GenericFakeChatModel(messages=iter([said])).ainvoke([])]}

    builder = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model")
    return as_harness(builder, lp)


def pydantic_ai(_: limpet.Limpet) -> Harness:
    """An agent on pydantic-ai's own FunctionModel."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, TextPart, UserPromptPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from limpet.adapters.pydantic_ai import as_harness

    async def speak(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        parts = [part for message in messages for part in message.parts]
        texts = [part.content for part in parts if isinstance(part, TextPart | UserPromptPart)]
        yield answer([text for text in texts if isinstance(text, str)])

    return as_harness(Agent(FunctionModel(stream_function=speak)))


def openai_agents(_: limpet.Limpet) -> Harness:
    """An agent without tools."""
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    from agents import Agent, Model, ModelResponse, Usage
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    from limpet.adapters.openai_agents import as_harness

    class Scripted(Model):
        async def get_response(self, *, input: Any, **_: Any) -> Any:  # called by keywords
            texts = [item["content"] for item in input if "role" in item]
            part = ResponseOutputText(text=answer(texts), type="output_text", annotations=[])
            message: dict[str, Any] = {"role": "assistant", "type": "message"}
            message |= {"id": "msg", "status": "completed"}
            output = [ResponseOutputMessage(content=[part], **message)]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    return as_harness(Agent(name="Assistant", model=Scripted()))


HARNESSES = {
    "adk": adk,
    "langgraph": langgraph,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
}


async def main(framework: str, url: str, text: str) -> None:
    async with limpet.open(url) as lp:
        session = await lp.get_or_create("travel", "ada", "trip")
        await session.append("user.message", {"text": text}, actor="user:ada")
        harness = HARNESSES[framework](lp)
        await limpet.Worker(lp, harness, app="travel", idle_exit=True, signals=False).run()
        session = await lp.get("travel", "ada", "trip")
        print(f"{framework}: {(await session.messages())[-1].text}")
        print("state:", dict(session.values))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
