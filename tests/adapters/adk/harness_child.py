"""A worker with an agent of google-adk: python -m … URL NOTES. See tests/support/harness_kill."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from limpet.adapters.adk import as_harness
from tests.support.harness_kill import Notes, run_child

notes = Notes(sys.argv[2])


class Scripted(BaseLlm):
    """Calls the tool once, then says what it answered."""

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        notes.asked()
        last = llm_request.contents[-1].parts[-1]
        part = types.Part(text="rain")
        if last.function_response is None:
            part = types.Part(function_call=types.FunctionCall(name="weather", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def weather() -> dict[str, str]:
    """The weather."""
    notes.performed()
    return {"sky": "rain"}


if __name__ == "__main__":
    agent = LlmAgent(name="assistant", model=Scripted(model="scripted"), tools=[weather])
    asyncio.run(run_child(sys.argv[1], lambda _: as_harness(agent)))
