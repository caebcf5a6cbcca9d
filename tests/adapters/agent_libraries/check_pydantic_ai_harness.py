"""A pydantic-ai agent in a worker: approvals, streams, usage, and a crash between any two calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

import limpet
from limpet.adapters.pydantic_ai import as_harness
from tests.support.harness_kill import killed_and_run_again
from tests.support.harness_stream import streamed

performed: list[str] = []


class Counting(TestModel):
    """Counts what the model was really asked."""

    asked = 0

    def request_stream(self, *args: Any, **named: Any) -> Any:
        Counting.asked += 1
        return super().request_stream(*args, **named)


class Verdict(BaseModel):
    guilty: bool


agent = Agent(Counting(), system_prompt="Be brief.")


@agent.tool_plain
def look(order: int) -> str:
    performed.append("look")
    return "paid twice"


@agent.tool_plain(requires_approval=True)
def refund(order: int) -> str:
    performed.append("refund")
    return "receipt"


async def run(lp: limpet.Limpet, harness: Any) -> limpet.Session[Any]:
    worker = limpet.Worker(lp, harness, app="support", idle_exit=True, signals=False)
    await worker.run()
    return await lp.get("support", "ada", "c1")


@pytest.fixture
async def session(lp: limpet.Limpet) -> limpet.Session[Any]:
    performed.clear()
    Counting.asked = 0
    made = await lp.create("support", "ada", "c1", budget=limpet.Budget(tokens=10_000))
    await made.append("user.message", {"text": "Help!"}, actor="user:ada")
    return made


async def test_an_approval_pauses_the_run_and_nothing_is_repeated(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The model is asked twice in all, each tool runs once, and the tokens are on the budget."""
    session = await run(lp, as_harness(agent))
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("approval", "refund")
    assert performed == ["look"]
    await session.confirm(request.id, allow=True)
    session = await run(lp, as_harness(agent))
    assert (session.stop_reason, session.blocked_on) == ("end_turn", ())
    assert performed == ["look", "refund"]
    assert Counting.asked == 2
    budget = session.runs.budget
    assert budget is not None
    assert budget.spent.tokens == session.runs.usage.input + session.runs.usage.output > 0
    roles = [message.role for message in await session.messages()]
    assert roles == ["user", "assistant", "assistant", "tool", "tool", "assistant"]


async def test_a_denial_is_told_to_the_model(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    session = await run(lp, as_harness(agent))
    await session.confirm(session.blocked_on[0].id, allow=False)
    session = await run(lp, as_harness(agent))
    assert session.stop_reason == "end_turn"
    assert performed == ["look"]


async def test_a_tool_that_asks_while_it_runs_pauses_the_run(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """By ApprovalRequired, of its own or of a toolset: it runs again once it is allowed."""
    approved: list[bool] = []
    booked: FunctionToolset[Any] = FunctionToolset()

    @booked.tool
    def book(ctx: RunContext, nights: int) -> str:
        approved.append(ctx.tool_call_approved)
        return "booked"

    asking = Agent(TestModel(), toolsets=[booked.approval_required()])

    @asking.tool
    def pay(ctx: RunContext, cents: int) -> str:
        approved.append(ctx.tool_call_approved)
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "paid"

    harness = as_harness(asking)
    session = await run(lp, harness)
    assert {(each.kind, each.name) for each in session.blocked_on} == {
        ("approval", "book"),
        ("approval", "pay"),
    }
    assert True not in approved
    for request in session.blocked_on:
        await session.confirm(request.id, allow=request.name == "pay")
    session = await run(lp, harness)
    assert approved.count(True) == 1
    outputs = {m.parts[0]["name"]: m.parts[0] for m in await session.messages() if m.role == "tool"}
    assert (outputs["pay"]["output"], outputs["book"]["is_error"]) == ("paid", True)


async def test_a_tool_of_the_client_is_a_question(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """An external tool has no function: the answer is its result."""
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    paint = ToolDefinition(name="paint", parameters_json_schema=schema)
    harness = as_harness(Agent(TestModel(), toolsets=[ExternalToolset([paint])]))
    session = await run(lp, harness)
    (request,) = session.blocked_on
    assert (request.kind, request.name, dict(request.input)) == (
        "question",
        "paint",
        {"color": "a"},
    )
    await session.answer(request.id, "painted")
    session = await run(lp, harness)
    assert (await session.messages())[-1].text == '{"paint":"painted"}'


async def test_what_an_output_tool_returns_is_said(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """As JSON, after the result of its call."""
    harness = as_harness(Agent(TestModel(), output_type=Verdict))
    session = await run(lp, harness)
    read = await session.messages()
    assert [message.role for message in read] == ["user", "assistant", "tool", "assistant"]
    assert (read[2].parts[0]["is_error"], read[3].text) == (False, '{"guilty":false}')


async def test_a_second_turn_knows_the_first(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The history is the session's, so the agent does not call its tools again."""
    session = await run(lp, as_harness(agent))
    await session.confirm(session.blocked_on[0].id, allow=True)
    session = await run(lp, as_harness(agent))
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, as_harness(agent))
    assert session.stop_reason == "end_turn"
    assert performed == ["look", "refund"]


async def test_a_stream_is_seen_by_followers(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """Pieces of text are partials, and the whole is one message."""
    speaker = Agent(TestModel(custom_output_text="It rains here."))
    pieces = await streamed(lp, session, as_harness(speaker))
    assert len(pieces) > 1
    assert "".join(pieces) == "It rains here."
    assert (await session.messages())[-1].text == "It rains here."


def test_a_kill_between_two_calls_repeats_neither(tmp_path: Path) -> None:
    """kill -9 in the second model call: the first one and the tool are not repeated."""
    killed_and_run_again(tmp_path, "tests.adapters.agent_libraries.pydantic_ai_child")
