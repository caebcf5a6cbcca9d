"""A worker with openai-agents: python -m … URL NOTES. See tests/support/harness_kill."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent, function_tool

from examples.openai_agents_session import Scripted
from limpet.adapters.openai_agents import as_harness
from tests.support.harness_kill import Notes, run_child

notes = Notes(sys.argv[2])


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    notes.performed()
    return f"rain in {city}"


class Noting(Scripted):
    async def get_response(self, *, input: Any, **named: Any) -> Any:
        notes.asked()
        return await super().get_response(input=input, **named)


if __name__ == "__main__":
    agent = Agent(name="Assistant", model=Noting(), tools=[weather])
    asyncio.run(run_child(sys.argv[1], lambda _: as_harness(agent)))
