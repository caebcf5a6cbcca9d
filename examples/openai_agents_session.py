"""An agent of openai-agents whose conversation outlives its process. No network: a scripted model.

    pip install 'limpet[openai-agents]'
    python examples/openai_agents_session.py sqlite:///support.db

Run it twice: the second run remembers the first. With a real model, leave out `model=`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import limpet
from limpet.adapters.openai_agents import LimpetSession


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


class Scripted(Model):
    """Asks for the weather if the last item is the user's, then says what it was handed."""

    async def get_response(self, *, input: Any, **_: Any) -> Any:  # called by keywords
        number, last = len(input), input[-1]
        if last.get("role") == "user":
            call = {"call_id": f"call_{number}", "name": "weather", "type": "function_call"}
            said: Any = ResponseFunctionToolCall(arguments='{"city": "Oslo"}', **call)
        else:
            text = f"{last['output']}; {number} items so far"
            part = ResponseOutputText(text=text, type="output_text", annotations=[])
            message: dict[str, Any] = {"role": "assistant", "type": "message"}
            message |= {"id": f"msg_{number}", "status": "completed"}
            said = ResponseOutputMessage(content=[part], **message)
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def main(url: str) -> None:
    agent = Agent(name="Assistant", model=Scripted(), tools=[weather])
    session = LimpetSession("conversation-7", url, user="ada")
    result = await Runner.run(agent, "How is the weather?", session=session)
    print("agent:", result.final_output)
    await session.close()

    async with limpet.open(url) as lp:  # the same conversation, without the framework
        for message in await lp.session(session.key).messages():
            part = message.parts[0]
            print(f"{message.role:>10}:", part.get("text") or part.get("output") or part["input"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["sqlite:///support.db"]))
