"""LimpetSession under the framework's Runner, with a model that needs no network."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.memory import SessionSettings

import limpet
from examples.openai_agents_session import Scripted, main, weather
from limpet.adapters.openai_agents import LimpetSession

QUESTION = "How is the weather?"


class Heard(Scripted):
    """Notes what it was given."""

    def __init__(self) -> None:
        self.heard: list[list[Any]] = []

    async def get_response(self, *, input: Any, **named: Any) -> Any:
        self.heard.append(list(input))
        return await super().get_response(input=input, **named)


class Broken(Scripted):
    """Never answers."""

    async def get_response(self, **_: Any) -> Any:
        raise RuntimeError("the model is away")


def agent(model: Any) -> Agent[Any]:
    return Agent(name="Assistant", model=model, tools=[weather])


async def test_a_run_goes_on_where_the_last_one_ended(lp: limpet.Limpet) -> None:
    """The second run's model is given the whole of the first, calls and outcomes included."""
    model = Heard()
    for number in (1, 2):
        session = LimpetSession("c1", lp)
        result = await Runner.run(agent(model), QUESTION, session=session)
        assert result.final_output == f"rain in Oslo; {4 * number - 1} items so far"
    types = [item.get("type", "message") for item in model.heard[2]]
    turn = ["message", "function_call", "function_call_output", "message"]
    assert types == [*turn, "message"]
    assert len(await session.get_items()) == 8
    assert await lp.session(session.key).pending() == ()
    read = await lp.session(session.key).messages()
    assert [message.role for message in read] == ["user", "assistant", "tool", "assistant"] * 2


def test_a_run_without_await_does_the_same(tmp_path: Path) -> None:
    """run_sync runs it on the loop of its thread, another one every time."""
    session = LimpetSession("c1", f"sqlite:///{tmp_path}/x.db?sync=normal")
    for number in (1, 2):
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        result = Runner.run_sync(agent(Scripted()), QUESTION, session=session)
        assert str(4 * number - 1) in str(result.final_output)
        asyncio.set_event_loop(None)
        loop.close()
    asyncio.run(session.close())


async def test_settings_of_a_run_limit_what_the_model_is_given(lp: limpet.Limpet) -> None:
    """Those of the run go before those of the session, as the framework says."""
    model, session = Heard(), LimpetSession("c1", lp, {"limit": 2})
    await Runner.run(agent(model), QUESTION, session=session)
    config = RunConfig(session_settings=SessionSettings(limit=1))
    await Runner.run(agent(model), QUESTION, session=session, run_config=config)
    assert len(model.heard[2]) == 2  # one of the history, and the question


async def test_a_run_that_failed_leaves_its_question_pending(lp: limpet.Limpet) -> None:
    """Nobody answered: the log says so, and the next run answers it."""
    session = LimpetSession("c1", lp)
    with pytest.raises(RuntimeError, match="away"):
        await Runner.run(agent(Broken()), QUESTION, session=session)
    (left,) = await lp.session(session.key).pending()
    assert left.data["text"] == QUESTION
    await Runner.run(agent(Scripted()), "Are you there?", session=LimpetSession("c1", lp))
    assert await lp.session(session.key).pending() == ()


async def test_the_example_runs_and_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, as its first lines say."""
    for items in (3, 7):
        await main(f"sqlite:///{tmp_path}/x.db?sync=normal")
        said = capsys.readouterr().out
        assert f"{items} items so far" in said
        assert said.count(QUESTION) == (items + 1) // 4


def test_the_program_of_the_page_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/openai-agents.md, with a scripted model: the second run goes on with the first."""
    text = (Path(__file__).parents[3] / "docs" / "openai-agents.md").read_text()
    program = text.partition("```python title=support.py\n")[2].partition("```")[0]
    (tmp_path / "support.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    page = runpy.run_path("support.py", run_name="page")
    page["agent"].model, page["agent"].tools = Scripted(), [weather]
    for _ in range(2):
        asyncio.run(page["main"]())
    assert capsys.readouterr().out.splitlines() == [
        "rain in Oslo; 3 items so far",
        "rain in Oslo; 7 items so far",
    ]
