"""An agent of google-adk in a worker: approvals, state, usage, transfers, and a crash."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

import limpet
from limpet.adapters.adk import as_harness
from tests.support.harness_kill import killed_and_run_again
from tests.support.harness_stream import streamed

performed: list[str] = []
heard: list[list[Any]] = []
USED = types.GenerateContentResponseUsageMetadata(prompt_token_count=30, candidates_token_count=12)


def look(order: int, tool_context: ToolContext) -> dict[str, str]:
    """Look at an order."""
    performed.append("look")
    tool_context.state["order"] = order
    return {"seen": "paid twice"}


def refund(order: int) -> dict[str, str]:
    """Pay back."""
    performed.append("refund")
    return {"seen": "receipt"}


class Scripted(BaseLlm):
    """Calls one tool after another, then says in two pieces what it heard."""

    model: str = "scripted"
    tools: tuple[str, ...] = ()

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts]
        heard.append(parts)
        asked = max(n for n, part in enumerate(parts) if part.text in ("Help!", "And now?"))
        done = [part.function_response for part in parts[asked:] if part.function_response]
        if len(done) < len(self.tools):
            name = self.tools[len(done)]
            given = {"agent_name": "payments"} if name.startswith("transfer") else {"order": 7}
            call = types.FunctionCall(name=name, args=given)
            yield said(types.Part(function_call=call))
        else:
            text = " ".join(each.response.get("seen", "denied") for each in done)
            yield said(types.Part(text="done: "), partial=True)
            yield said(types.Part(text=text), partial=True)
            yield said(types.Part(text=f"done: {text}"))


def said(part: types.Part, *, partial: bool | None = None) -> LlmResponse:
    content = types.Content(role="model", parts=[part])
    return LlmResponse(content=content, partial=partial, usage_metadata=None if partial else USED)


def agent(*tools: str) -> LlmAgent:
    offered = [look, FunctionTool(refund, require_confirmation=True)]
    return LlmAgent(name="support", model=Scripted(tools=tools), tools=offered, output_key="answer")


async def run(lp: limpet.Limpet, harness: Any) -> limpet.Session[Any]:
    await limpet.Worker(lp, harness, app="support", idle_exit=True, signals=False).run()
    return await lp.get("support", "ada", "c1")


@pytest.fixture
async def session(lp: limpet.Limpet) -> limpet.Session[Any]:
    performed.clear()
    heard.clear()
    made = await lp.create("support", "ada", "c1", budget=limpet.Budget(tokens=10_000))
    await made.append("user.message", {"text": "Help!"}, actor="user:ada")
    return made


async def test_an_approval_pauses_the_run_and_nothing_is_repeated(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The model is asked three times in all, each tool runs once, the tokens are on the budget,
    and the state that a tool and the output_key set is the session's."""
    harness = as_harness(agent("look", "refund"))
    session = await run(lp, harness)
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("approval", "refund")
    assert performed == ["look"]
    await session.confirm(request.id, allow=True)
    session = await run(lp, harness)
    assert (session.stop_reason, session.blocked_on) == ("end_turn", ())
    assert (performed, len(heard)) == (["look", "refund"], 3)
    budget = session.runs.budget
    assert budget is not None
    assert budget.spent.tokens == 3 * (30 + 12)
    read = await session.messages()
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message.role for message in read] == roles
    assert read[-1].text == "done: paid twice receipt"
    assert session.values["order"] == 7
    assert session.values["answer"] == "done: paid twice receipt"


async def test_a_denial_is_told_to_the_model(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    harness = as_harness(agent("refund"))
    session = await run(lp, harness)
    await session.confirm(session.blocked_on[0].id, allow=False)
    session = await run(lp, harness)
    assert (session.stop_reason, performed) == ("end_turn", [])
    assert (await session.messages())[-1].text == "done: denied"


async def test_a_tool_that_asks_for_a_confirmation_while_it_runs_pauses_the_run(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """It runs again once it is allowed, with what it asked for confirmed."""

    def book(tool_context: ToolContext) -> str:
        """Book it."""
        confirmation = tool_context.tool_confirmation
        if confirmation is None:
            tool_context.request_confirmation(hint="Really?", payload={"nights": 2})
            return "not yet"
        performed.append("book")
        return f"booked {confirmation.payload['nights']} {confirmation.confirmed}"

    model = Scripted(tools=("book",))
    harness = as_harness(LlmAgent(name="support", model=model, tools=[book]))
    session = await run(lp, harness)
    (request,) = session.blocked_on
    assert (request.kind, request.name, performed) == ("approval", "book", [])
    await session.confirm(request.id, allow=True)
    session = await run(lp, harness)
    assert (session.stop_reason, performed) == ("end_turn", ["book"])
    results = [m.parts[0]["output"] for m in await session.messages() if m.role == "tool"]
    assert results == ["booked 2 True"]


async def test_a_second_turn_knows_the_first(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The history is the session's: calls and outcomes come to the model as parts."""
    harness = as_harness(agent("look"))
    session = await run(lp, harness)
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, harness)
    first, call, outcome, answer, second = heard[2]
    assert (first.text, answer.text, second.text) == ("Help!", "done: paid twice", "And now?")
    assert call.function_call.name == outcome.function_response.name == "look"
    assert session.stop_reason == "end_turn"


async def test_a_transfer_goes_on_in_the_turn(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The agent that takes over has its model and its tools in the turn as well."""
    payments = LlmAgent(
        name="payments",
        model=Scripted(tools=("refund",)),
        tools=[FunctionTool(refund, require_confirmation=True)],
    )
    root = LlmAgent(
        name="support", model=Scripted(tools=("transfer_to_agent",)), sub_agents=[payments]
    )
    harness = as_harness(root)
    session = await run(lp, harness)
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True)
    session = await run(lp, harness)
    assert (session.stop_reason, performed) == ("end_turn", ["refund"])
    tools = [message for message in await session.messages() if message.role == "tool"]
    assert [message.parts[0]["name"] for message in tools] == ["transfer_to_agent", "refund"]


async def test_a_stream_is_seen_by_followers(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """Pieces of text are partials, and the whole is one message."""
    pieces = await streamed(lp, session, as_harness(agent("look")))
    assert pieces == ["done: ", "paid twice"]
    assert (await session.messages())[-1].text == "done: paid twice"


def test_a_kill_between_two_calls_repeats_neither(tmp_path: Path) -> None:
    """kill -9 in the second model call: the first one and the tool are not repeated."""
    killed_and_run_again(tmp_path, "tests.adapters.adk.harness_child")
