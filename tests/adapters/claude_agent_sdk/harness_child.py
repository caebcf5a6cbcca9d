"""A worker with a scripted program of the Claude Agent SDK: python -m … URL NOTES FOLDER.

The first process dies while its tool runs: the transcript has the call, and no result.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import limpet
from limpet.adapters.claude_agent_sdk import as_harness
from tests.adapters.claude_agent_sdk.check_harness import Program, options
from tests.support.harness_kill import Notes, run_child

notes = Notes(sys.argv[2])


class Killed(Program):
    """Notes what it hears and does. It needs no permission for its tool."""

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] != "user":
            await super().write(data)
            return
        notes.note(f"{self._options.resume} {message['message']['content']}")
        self._mirror("user", message["message"]["content"])
        self._say({"type": "tool_use", "id": "t1", "name": "Refund", "input": {"order": 7}})
        self._running = asyncio.create_task(self._run_tool())

    async def _run_tool(self) -> None:
        async with (
            limpet.open(sys.argv[1]) as lp,
            asyncio.timeout(60),
            aclosing(lp.watch(app="claude")) as entries,
        ):
            async for entry in entries:  # until the store has the call
                if entry.event.type == "agent.tool_use":
                    break
        notes.note("tool")
        if notes.lines().count("tool") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self._finish("allow")


if __name__ == "__main__":
    asyncio.run(
        run_child(
            sys.argv[1],
            lambda lp: as_harness(options(lp, Path(sys.argv[3])), transport=Killed),
        )
    )
