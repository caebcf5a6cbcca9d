"""An agent of google-adk whose sessions are in Limpet. Its model is a script: no network is needed.

    pip install 'limpet[adk]'
    python examples/adk_agent.py

Two runners on one database take turns in one conversation, as two processes of a server would.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

import limpet
from limpet.adapters.adk import LimpetSessionService


class Scripted(BaseLlm):
    """Calls the tool with the number it was given, then says what the tool has answered."""

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: FBT001, FBT002  # as ADK calls it
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is None:
            call = types.FunctionCall(name="add", args={"number": int(last.text.split()[-1])})
            part = types.Part(function_call=call)
        else:
            part = types.Part(text=f"The total is {last.function_response.response['total']}.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def add(number: int, tool_context: ToolContext) -> dict[str, int]:
    """Add a number to the total."""
    tool_context.state["total"] = tool_context.state.get("total", 0) + number
    return {"total": tool_context.state["total"]}


async def ask(runner: Runner, text: str) -> None:
    message = types.Content(role="user", parts=[types.Part(text=text)])
    async for event in runner.run_async(user_id="ada", session_id="s1", new_message=message):
        if event.is_final_response() and event.content and event.content.parts:
            print(f"{text} -> {event.content.parts[0].text}")


async def main(url: str) -> None:
    agent = LlmAgent(name="adder", model=Scripted(model="scripted"), tools=[add])
    async with LimpetSessionService(url) as one, LimpetSessionService(url) as two:
        await one.create_session(app_name="sums", user_id="ada", session_id="s1")
        for service, number in ((one, 2), (two, 3), (one, 4)):
            runner = Runner(app_name="sums", agent=agent, session_service=service)
            await ask(runner, f"add {number}")
    async with limpet.open(url) as lp:
        session = await lp.get("sums", "ada", "s1", tail=4)
        print("its last turn in the log:", [event.type for event in session.events])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(f"sqlite:///{Path(place) / 'sums.db'}"))
