"""`adk web` and `adk run` on a Limpet store, through the services.py that docs/adk.md shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 120  # for the start of a process that imports all of ADK, and a conversation
AGENT = """
from tests.adapters.adk.agents import Scripted, add
from google.adk.agents.llm_agent import LlmAgent

root_agent = LlmAgent(name="bot", model=Scripted(model="scripted"), tools=[add])
"""


def recipe() -> str:
    """services.py as the page has it."""
    page = (ROOT / "docs/adk.md").read_text()
    (found,) = re.findall(
        r"^```python title=services.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    return found


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """The agents directory, with services.py where `adk web` and where `adk run` looks for it."""
    agents = tmp_path / "agents"
    (agents / "support").mkdir(parents=True)
    for place in (agents, agents / "support"):
        (place / "services.py").write_text(recipe())
    (agents / "support" / "__init__.py").write_text("from . import agent\n")
    (agents / "support" / "agent.py").write_text(AGENT)
    return agents


@pytest.fixture
def web(agents: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running `adk web`."""
    command = [sys.executable, "-m", "google.adk.cli", "web", "--no-reload", "--port", "0"]
    command += ["--session_service_uri=limpet+sqlite:///x.db", str(agents)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    late = threading.Timer(SECONDS_MAX, process.kill)  # one that never starts says nothing
    late.start()
    try:
        assert process.stdout is not None
        said = b""
        for line in process.stdout:
            said += line
            if found := re.search(rb"Uvicorn running on (http://127.0.0.1:\d+)", line):
                break
        else:
            raise AssertionError(said.decode())
        late.cancel()
        yield found[1].decode()
    finally:
        late.cancel()
        process.terminate()
        process.communicate(timeout=60)


def asked(url: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


async def test_adk_web_keeps_its_sessions_in_limpet(web: str, tmp_path: Path) -> None:
    """A session made over HTTP is run, listed and read, and is one of ours in x.db."""
    sessions = f"{web}/apps/support/users/ada/sessions"
    made = asked(sessions, {"state": {"total": 1}, "sessionId": "s"})
    assert made["state"] == {"total": 1}
    message = {"role": "user", "parts": [{"text": "add 2"}]}
    run = {"appName": "support", "userId": "ada", "sessionId": "s", "newMessage": message}
    events = asked(f"{web}/run", run)
    assert events[-1]["content"]["parts"][0]["text"] == "the total is 3"
    assert [session["id"] for session in asked(sessions)] == ["s"]
    assert asked(f"{sessions}/s")["state"] == {"total": 3, "app:added": 1}
    async with limpet.open(f"sqlite:///{tmp_path}/x.db") as lp:
        kept = await lp.get("support", "ada", "s")
        kinds = [event.type for event in kept.events]
        assert kinds[1:5] == [
            "user.message",
            "agent.tool_use",
            "agent.tool_result",
            "agent.message",
        ]
        assert (kept.values["total"], kept.head.pending) == (3, 0)
        assert (await lp.maintenance.verify()).ok


def ran(agent: Path, typed: str) -> str:
    """What `adk run` says to what is typed, in the directory above the agents."""
    command = [sys.executable, "-m", "google.adk.cli", "run"]
    command += ["--session_service_uri=limpet+sqlite:///x.db", str(agent)]
    how: dict[str, Any] = {"cwd": agent.parents[1], "capture_output": True, "text": True}
    how["timeout"] = SECONDS_MAX  # or one that waits for more than was typed waits for us
    done = subprocess.run(command, input=typed, check=False, **how)
    return f"{done.stdout}{done.stderr}"


async def test_adk_run_keeps_its_sessions_in_limpet(agents: Path, tmp_path: Path) -> None:
    """A conversation on the terminal is one of ours in x.db."""
    assert "the total is 2" in ran(agents / "support", "add 2\nexit\n")
    async with limpet.open(f"sqlite:///{tmp_path}/x.db") as lp:
        (head,) = (await lp.list(app="support")).items
        spoken = await lp.session(head.key).messages()
        assert [message.role for message in spoken] == ["user", "assistant", "tool", "assistant"]
