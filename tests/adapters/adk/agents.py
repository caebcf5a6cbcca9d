"""An agent whose model is a script: it calls a tool when asked to add, and answers otherwise."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from tests.adapters.adk.saying import called, content

APP = "support"


class Scripted(BaseLlm):
    """It streams what it says in two pieces, and calls `add` with the last number it was told."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is not None:
            total = last.function_response.response["total"]
            for piece in ("the total is ", f"{total}"):
                yield LlmResponse(content=content(piece), partial=True)
            yield LlmResponse(content=content(f"the total is {total}"))
        elif last.text.startswith("add "):
            yield LlmResponse(content=content(called("add", id="", number=int(last.text[4:]))))
        else:
            yield LlmResponse(content=content(f"{len(llm_request.contents)} messages"))


def add(number: int, tool_context: ToolContext) -> dict[str, int]:
    """Add a number to the total."""
    total = tool_context.state.get("total", 0) + number
    tool_context.state["total"] = total
    tool_context.state["app:added"] = tool_context.state.get("app:added", 0) + 1
    tool_context.state["temp:scratch"] = number
    return {"total": total}


def runner(service: Any) -> Runner:
    agent = LlmAgent(name="bot", model=Scripted(model="scripted"), tools=[add])
    return Runner(app_name=APP, agent=agent, session_service=service)


def asked(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def ask(run: Runner, text: str, user: str = "ada", session: str = "s") -> str:
    """One turn: what the agent said at its end."""
    answer = ""
    async for event in run.run_async(user_id=user, session_id=session, new_message=asked(text)):
        if event.is_final_response() and event.content and event.content.parts:
            answer = event.content.parts[0].text or ""
    return answer
