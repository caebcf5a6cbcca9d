"""The program that the SDK brings, in a worker, against a model that answers on this machine.

The program runs as it is installed; examples/claude_agent.py has its model, and sends everything
else that it might want to reach to a closed port.
"""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import claude_agent_sdk
import pytest

import limpet
from tests.support.venvs import ROOT

PROGRAM = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
SECONDS_MAX = 200  # for two starts of the program


@pytest.mark.skipif(not PROGRAM.exists(), reason="this wheel of the SDK has no program")
async def test_the_program_itself_runs_in_a_worker_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two turns are one conversation: the second is resumed from the store, not from a file."""
    example = runpy.run_path(str(ROOT / "examples/claude_agent.py"))
    url = f"sqlite:///{tmp_path}/claude.db"
    async with asyncio.timeout(SECONDS_MAX):
        await example["main"](url, "Hello", "And again")
    assert capsys.readouterr().out.splitlines() == [
        "user: Hello",
        "assistant: I know 1 of your messages.",
        "user: And again",
        "assistant: I know 2 of your messages.",
    ]
    async with limpet.open(url) as lp:
        session = await lp.get("support", "ada", "c1")
        assert session.stop_reason == "end_turn"
        assert session.runs.usage.input >= 2 * 3
        (transcript,) = [head async for head in lp.each(app="claude")]
        said = [m.text for m in await lp.session(transcript.key).messages() if m.role == "user"]
        assert said[-1] == "And again"
