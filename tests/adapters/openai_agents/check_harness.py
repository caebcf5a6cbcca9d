"""An agent of openai-agents in a worker: approvals, usage, handoffs, and a crash in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails

import limpet
from limpet.adapters.openai_agents import as_harness
from tests.support.harness_kill import killed_and_run_again
from tests.support.harness_stream import streamed

performed: list[str] = []
USED = Usage(requests=1, input_tokens=30, output_tokens=12)


@function_tool
def look(order: int) -> str:
    performed.append("look")
    return "paid twice"


@function_tool(needs_approval=True)
def refund(order: int) -> str:
    performed.append("refund")
    return "receipt"


class Scripted(Model):
    """Calls one tool after another, then says what it heard."""

    def __init__(self, *tools: str) -> None:
        self.tools, self.heard = tools, list[list[Any]]()

    async def get_response(self, *, input: Any, **_: Any) -> Any:
        self.heard.append(list(input))
        begin = max(n for n, item in enumerate(input) if item.get("role") == "user")
        done = [item for item in input[begin:] if item.get("type") == "function_call_output"]
        if len(done) < len(self.tools):
            name = self.tools[len(done)]
            given = "{}" if name.startswith("transfer") else '{"order": 7}'
            call = {"call_id": f"call_{len(input)}", "name": name, "type": "function_call"}
            said: Any = ResponseFunctionToolCall(arguments=given, **call)
        else:
            heard = " ".join(str(item["output"]) for item in done)
            part = ResponseOutputText(text=f"done: {heard}", type="output_text", annotations=[])
            message: dict[str, Any] = {"role": "assistant", "type": "message"}
            message |= {"id": "msg", "status": "completed"}
            said = ResponseOutputMessage(content=[part], **message)
        return ModelResponse(output=[said], usage=USED, response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Streaming(Scripted):
    """Says the same, in pieces."""

    async def stream_response(self, *_: Any, **named: Any) -> AsyncIterator[Any]:
        whole = await self.get_response(**named)
        text = "".join(part.text for item in whole.output for part in item.content)
        for piece in (text[:2], text[2:]):
            yield SimpleNamespace(type="response.output_text.delta", delta=piece)
        details = InputTokensDetails.model_construct(cached_tokens=8)
        used = ResponseUsage.model_construct(
            input_tokens=30, output_tokens=12, input_tokens_details=details
        )
        response = SimpleNamespace(output=whole.output, usage=used, id="r1")
        yield SimpleNamespace(type="response.completed", response=response)


async def run(lp: limpet.Limpet, harness: Any) -> limpet.Session[Any]:
    await limpet.Worker(lp, harness, app="support", idle_exit=True, signals=False).run()
    return await lp.get("support", "ada", "c1")


@pytest.fixture
async def session(lp: limpet.Limpet) -> limpet.Session[Any]:
    performed.clear()
    made = await lp.create("support", "ada", "c1", budget=limpet.Budget(tokens=10_000))
    await made.append("user.message", {"text": "Help!"}, actor="user:ada")
    return made


async def test_an_approval_pauses_the_run_and_nothing_is_repeated(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The model is asked three times in all, each tool runs once, the tokens are on the budget."""
    model = Scripted("look", "refund")
    harness = as_harness(Agent(name="Support", model=model, tools=[look, refund]))
    session = await run(lp, harness)
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("approval", "refund")
    assert performed == ["look"]
    await session.confirm(request.id, allow=True)
    session = await run(lp, harness)
    assert (session.stop_reason, session.blocked_on) == ("end_turn", ())
    assert (performed, len(model.heard)) == (["look", "refund"], 3)
    budget = session.runs.budget
    assert budget is not None
    assert budget.spent.tokens == 3 * (30 + 12)
    read = await session.messages()
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message.role for message in read] == roles
    assert read[-1].text == "done: paid twice receipt"


async def test_a_denial_is_told_to_the_model(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    model = Scripted("refund")
    harness = as_harness(Agent(name="Support", model=model, tools=[refund]))
    session = await run(lp, harness)
    await session.confirm(session.blocked_on[0].id, allow=False)
    session = await run(lp, harness)
    assert (session.stop_reason, performed) == ("end_turn", [])
    assert model.heard[-1][-1]["type"] == "function_call_output"


async def test_a_second_turn_knows_the_first(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The history is the session's: calls and outcomes come to the model as items."""
    model = Scripted("look")
    harness = as_harness(Agent(name="Support", model=model, tools=[look]))
    session = await run(lp, harness)
    await session.append("user.message", {"text": "And now?"}, actor="user:ada")
    session = await run(lp, harness)
    types = [item.get("type", item.get("role")) for item in model.heard[2]]
    assert types == ["user", "function_call", "function_call_output", "assistant", "user"]
    assert session.stop_reason == "end_turn"


async def test_a_handoff_goes_on_in_the_turn(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """The agent that takes over has its model and its tools in the turn as well."""
    second = Scripted("look", "refund")
    payments = Agent(name="Payments", model=second, tools=[look, refund])
    first = Scripted("transfer_to_payments")
    harness = as_harness(Agent(name="Support", model=first, handoffs=[payments]))
    session = await run(lp, harness)
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True)
    session = await run(lp, harness)
    assert session.stop_reason == "end_turn"
    assert (len(first.heard), len(second.heard)) == (1, 2)
    uses = [message for message in await session.messages() if message.role == "tool"]
    assert len(uses) == 2


async def test_a_stream_is_seen_by_followers(
    lp: limpet.Limpet, session: limpet.Session[Any]
) -> None:
    """Pieces of text are partials, and the whole is one message."""
    pieces = await streamed(lp, session, as_harness(Agent(name="Support", model=Streaming())))
    assert pieces == ["do", "ne: "]
    used = (await lp.get(session.key)).runs.usage
    assert (used.input, used.output, used.cache_read) == (30, 12, 8)
    assert (await session.messages())[-1].text == "done: "


def test_a_kill_between_two_calls_repeats_neither(tmp_path: Path) -> None:
    """kill -9 in the second model call: the first one and the tool are not repeated."""
    killed_and_run_again(tmp_path, "tests.adapters.openai_agents.harness_child")
