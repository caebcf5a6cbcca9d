"""One session under four frameworks, each in a process and an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from tests.support import venvs

SAID = {
    "adk": "I fly to Oslo.",
    "langgraph": "It is for work.",
    "pydantic-ai": "I need a hotel.",
    "openai-agents": "What do you know?",
}
ENVIRONMENTS = {"pydantic-ai": "agent-libraries"}  # where it has another name


async def test_one_conversation_goes_through_four_frameworks(tmp_path: Path) -> None:
    """examples/crossing.py: one conversation, one state, and a turn of each in one log."""
    url = f"sqlite:///{tmp_path}/trip.db"
    for framework, text in SAID.items():
        try:
            python = venvs.python_of(ENVIRONMENTS.get(framework, framework))
        except venvs.NotInstalled as error:
            pytest.skip(f"{framework} is not tested here: {error}")
        command = ("examples/crossing.py", framework, url, text)
        code, said = venvs.run(python, *command, timeout=120)
        assert code == 0, said
        assert text in said
    async with limpet.open(url) as lp:
        session = await lp.get("travel", "ada", "trip")
        assert session.values["note"] == SAID["adk"]
        read = [message for message in await session.messages() if message.text]
        assert [message.role for message in read] == ["user", "assistant"] * 4
        assert all(text in read[-1].text for text in SAID.values())
        assert read[-1].text.startswith("I know 7 messages")
        turns = {message.event.invocation_id for message in read if message.role == "assistant"}
        assert len(turns) == 4
        assert session.stop_reason == "end_turn"
        assert await session.pending() == ()
