"""ADK's Runner on the service: turns, tools, sync runs, rewinding and resuming."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService

import limpet
from limpet.adapters.adk import LimpetSessionService
from tests.adapters.adk.agents import APP, Scripted, ask, asked, runner

ADA = {"app_name": APP, "user_id": "ada"}


async def test_turns_are_those_of_adks_own_service(service: LimpetSessionService) -> None:
    """The same conversation leaves the same state and the same events as with ADK's in memory."""

    async def converse(on: Any) -> list[Any]:
        await on.create_session(**ADA, session_id="s", state={"total": 1})
        run = runner(on)
        answers = [await ask(run, text) for text in ("hi", "add 2", "add 3", "bye")]
        found = await on.get_session(**ADA, session_id="s")
        kinds = [
            (e.author, [sorted(p.model_dump(exclude_none=True)) for p in e.content.parts])
            for e in found.events
        ]
        state = {name: value for name, value in found.state.items() if "temp:" not in name}
        return [answers, kinds, state]

    assert await converse(service) == await converse(InMemorySessionService())


async def test_a_sync_run_in_a_running_loop_works(tmp_path: Path) -> None:
    """Runner.run has a thread and a loop of its own, while the caller's loop waits for it."""
    async with LimpetSessionService(f"sqlite:///{tmp_path}/support.db?sync=normal") as service:
        await service.create_session(**ADA, session_id="s")
        message = asked("add 4")
        events = list(runner(service).run(user_id="ada", session_id="s", new_message=message))
        assert events[-1].content.parts[0].text == "the total is 4"
        found = await service.get_session(**ADA, session_id="s")
        assert found is not None
        assert found.state == {"total": 4, "app:added": 1}


async def test_another_service_goes_on_where_one_left_off(tmp_path: Path) -> None:
    """A conversation goes on in a new service on the same database, with all it had."""
    url = f"sqlite:///{tmp_path}/support.db?sync=normal"
    async with LimpetSessionService(url) as service:
        await service.create_session(**ADA, session_id="s")
        await ask(runner(service), "add 2")
    async with LimpetSessionService(url) as service:
        assert await ask(runner(service), "add 3") == "the total is 5"
        assert await ask(runner(service), "hi") == "9 messages"


async def test_a_rewind_keeps_the_state_given_at_creation(service: LimpetSessionService) -> None:
    """A rewind restores what was there before, the initial state included, and it is read back."""
    begin = {"plan": {"tier": "gold"}, "total": 10, "note": "x"}
    await service.create_session(**ADA, session_id="s", state=begin)
    run = runner(service)
    await ask(run, "add 1")
    first = await service.get_session(**ADA, session_id="s")
    assert first is not None
    await ask(run, "add 5")
    second = await service.get_session(**ADA, session_id="s")
    assert second is not None
    target = second.events[len(first.events)].invocation_id
    await run.rewind_async(user_id="ada", session_id="s", rewind_before_invocation_id=target)
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    assert found.state["total"] == 11
    assert {n: found.state[n] for n in ("plan", "note")} == {"plan": {"tier": "gold"}, "note": "x"}
    start = second.events[0].invocation_id
    await run.rewind_async(user_id="ada", session_id="s", rewind_before_invocation_id=start)
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    assert {name: found.state[name] for name in begin} == begin
    assert found.events[-1].actions.state_delta["total"] == 10


async def test_adks_own_services_lose_it() -> None:
    """The same rewind on ADK's own service deletes the state that the session was created with."""
    service = InMemorySessionService()
    await service.create_session(**ADA, session_id="s", state={"plan": "gold"})
    run = runner(service)
    await ask(run, "add 1")
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    start = found.events[0].invocation_id
    await run.rewind_async(user_id="ada", session_id="s", rewind_before_invocation_id=start)
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    assert found.state["plan"] is None


def test_the_example_runs(tmp_path: Path) -> None:
    """examples/adk_agent.py: two services on one database take turns in one conversation."""
    example = Path(__file__).parents[3] / "examples" / "adk_agent.py"
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "add 2 -> The total is 2.",
        "add 3 -> The total is 5.",
        "add 4 -> The total is 9.",
        "its last turn in the log: "
        "['agent.tool_use', 'agent.tool_result', 'agent.message', 'session.processed']",
    ]


async def test_an_open_limpet_is_of_one_loop() -> None:
    """From a second event loop it is refused with advice, not used by two threads at once."""
    async with limpet.open("memory://") as lp:
        service = LimpetSessionService(lp)
        await service.create_session(**ADA, session_id="s")
        run = runner(service).run(user_id="ada", session_id="s", new_message=asked("hi"))
        with pytest.raises(limpet.InvalidInput, match="Pass its URL"):
            list(run)


def test_the_program_of_the_page_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/adk.md, with a scripted model: the second run goes on with the conversation."""
    text = (Path(__file__).parents[3] / "docs" / "adk.md").read_text()
    program = text.partition("```python title=support.py\n")[2].partition("```")[0]
    (tmp_path / "support.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    page = runpy.run_path("support.py", run_name="page")
    page["agent"].model, page["agent"].tools = Scripted(model="scripted"), []
    for turn in range(2):
        asyncio.run(page["main"]())
        with limpet.open_sync("sqlite:///support.db") as lp:
            assert len(lp.get("support", "ada", "s1").messages()) == 2 * turn + 2
