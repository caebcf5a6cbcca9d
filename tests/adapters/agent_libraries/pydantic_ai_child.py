"""A worker with an agent of pydantic-ai: python -m … URL NOTES. See tests/support/harness_kill."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from limpet.adapters.pydantic_ai import as_harness
from tests.support.harness_kill import Notes, run_child

notes = Notes(sys.argv[2])


class Noting(TestModel):
    def request_stream(self, *args: Any, **named: Any) -> Any:
        notes.asked()
        return super().request_stream(*args, **named)


agent = Agent(Noting())


@agent.tool_plain
def weather() -> str:
    """The weather."""
    notes.performed()
    return "rain"


if __name__ == "__main__":
    asyncio.run(run_child(sys.argv[1], lambda _: as_harness(agent)))
