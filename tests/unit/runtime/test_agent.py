"""The agent loop: a model that calls tools, recorded so that nothing is asked or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import limpet
from limpet import Agent, ModelRequest, Piece, Reply, ToolCall
from limpet.runtime.tool import ApprovalNeeded, is_allowed
from tests.support import shape_rules
from tests.support.agents import Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


class Script:
    """A model that says what stands in a list, by the number of messages of its own before."""

    def __init__(self, *said: Any) -> None:
        self.said, self.requests = said, list[ModelRequest]()

    def __call__(self, request: ModelRequest) -> Any:
        shape_rules.RULES[request.shape](list(request.messages))
        self.requests.append(request)
        before = [m for m in request.messages if m["role"] == "assistant"]
        said = self.said[min(len(before), len(self.said) - 1)]
        return said() if callable(said) else said


def use(name: str, id: str = "call_1", **input: Any) -> Reply:
    return Reply("", (ToolCall(id, name, input),))


def events_of(log: list[limpet.Event], type: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in log if event.type == type]


async def test_a_model_calls_a_tool_and_reads_its_result(world: World) -> None:
    """The loop: message, call, result, message; and the model sees each of them in order."""

    @limpet.tool
    def weather(city: str) -> dict[str, str]:
        """Say how the weather is."""
        return {"sky": f"grey in {city}"}

    model = Script(
        use("weather", city="Kyiv"), Reply("It is grey.", usage={"input": 9, "output": 4})
    )
    await world.begin("How is it in Kyiv?")
    (woken,) = await world.work(Agent(model, [weather], system="Be brief."))
    assert woken.reason == "end_turn"
    log = await world.log()
    assert [e["text"] for e in events_of(log, "agent.message")] == ["", "It is grey."]
    (called,) = events_of(log, "agent.tool_use")
    (result,) = events_of(log, "agent.tool_result")
    assert (called["name"], called["input"]) == ("weather", {"city": "Kyiv"})
    assert called["provider_id"] == "call_1"
    assert called["request_id"] == result["request_id"] != "call_1"
    assert result["output"] == {"sky": "grey in Kyiv"}
    first, second = model.requests
    assert [tool.name for tool in first.tools] == ["weather"]
    assert first.messages[0] == {"role": "system", "content": "Be brief."}
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool"]


async def test_a_function_may_ask_for_approval_before_it_does_anything(world: World) -> None:
    """It runs again once it is allowed, in another wake; denied, the model reads that."""
    done: list[int] = []

    @limpet.tool
    def refund(order: int) -> str:
        """Pay back."""
        if not is_allowed():
            raise ApprovalNeeded
        done.append(order)
        return "paid"

    model = Script(use("refund", order=1), use("refund", "call_2", order=2), Reply("Done."))
    await world.begin("Refund both.")
    for allow in (True, False):
        await world.work(Agent(model, [refund]))
        (request,) = world.session.blocked_on
        assert (request.kind, request.name) == ("approval", "refund")
        await world.session.confirm(request.id, allow=allow, actor="user:ada")
    (woken,) = await world.work(Agent(model, [refund]))
    assert (woken.reason, done) == ("end_turn", [1])
    results = events_of(await world.log(), "agent.tool_result")
    assert [each.get("is_error", False) for each in results] == [False, True]
    assert results[0]["output"] == "paid"


async def test_pieces_reach_followers_and_the_whole_is_recorded_once(world: World) -> None:
    """Text, tool calls and reasoning stream with one running index; assemble joins the text."""

    async def pieces(request: ModelRequest) -> AsyncIterator[Piece]:
        yield Piece(reasoning="hm")
        yield Piece(text="Look")
        yield Piece(text="ing.")
        yield Piece(tool={"index": 0, "id": "c", "name": "weather", "arguments": '{"city"'})
        yield Piece(tool={"index": 0, "id": None, "name": None, "arguments": ': "Rome"}'})
        yield Piece(usage={"input": 3, "output": 2, "cost": 0.5}, stop="tool_calls")

    replies: list[Reply] = []

    async def harness(turn: limpet.Turn) -> None:
        replies.append(await turn.model("first", pieces))

    session = await world.begin("hi")
    seen: list[limpet.Event] = []

    async def follow() -> None:
        async for event in session.follow(after=session.version):
            seen.append(event)
            if event.type == "session.status_idle":
                return

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    await world.work(harness)
    await asyncio.wait_for(following, 5)
    partials = [event for event in seen if event.partial]
    assert [event.data["index"] for event in partials] == [0, 1, 2, 3, 4]
    assert partials[0].data["reasoning"] == "hm"
    assert partials[3].data["tool"]["name"] == "weather"
    assert limpet.assemble(partials) == "Looking."
    (reply,) = replies
    assert reply.text == "Looking."
    assert reply.stop_reason == "tool_calls"
    assert dict(reply.usage or {}) == {"input": 3, "output": 2, "cost": 0.5}
    assert [(c.name, c.input, c.provider_id) for c in reply.tool_calls] == [
        ("weather", {"city": "Rome"}, "c")
    ]
    assert reply.event is not None
    assert {event.id for event in partials} == {reply.event.id}


async def test_followers_see_the_turn_run_before_the_model_answers(world: World) -> None:
    """The opening and the span of the model are durable when the model is called."""
    seen: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        async def model(request: ModelRequest) -> str:
            seen.extend([e.type for e in await turn.session.read(limit=100)])
            assert request.attempt == 1
            return "hello"

        await turn.model("first", model)

    await world.begin("hi")
    await world.work(harness)
    assert "session.status_changed" in seen
    assert seen.count("span.started") == 2  # of the wake, and of the model


async def test_a_growing_context_is_not_a_mismatch(world: World) -> None:
    """A turn that pauses and goes on finds its model calls, whatever the context is by then."""
    bank = Bank()
    refund = limpet.tool(permission="always_ask")(bank.refund)
    model = Script(use("refund", order=7), Reply("Done."))
    agent = Agent(model, [refund])
    await world.begin("Refund order 7, please.")
    (woken,) = await world.work(agent)
    assert woken.reason == "requires_action"
    (request,) = world.session.blocked_on
    assert (request.kind, request.name, request.input) == ("approval", "refund", {"order": 7})
    await world.session.confirm(request.id, allow=True, actor="user:ada")
    assert [w.reason for w in await world.work(agent)] == ["end_turn"]
    assert len(bank.done) == 1
    assert len(model.requests) == 2
    messages = model.requests[-1].messages
    assert [m["role"] for m in messages] == ["user", "assistant", "tool"]


async def test_a_denied_call_is_told_to_the_model(world: World) -> None:
    """Nothing is done, the model reads why, and the turn goes on."""
    bank = Bank()
    refund = limpet.tool(permission="always_ask")(bank.refund)
    model = Script(use("refund", order=7), Reply("Sorry."))
    await world.begin("Refund order 7.")
    await world.work(Agent(model, [refund]))
    (request,) = world.session.blocked_on
    await world.session.confirm(request.id, allow=False, note="too old", actor="user:ada")
    assert [w.reason for w in await world.work(Agent(model, [refund]))] == ["end_turn"]
    assert bank.done == []
    (result,) = events_of(await world.log(), "agent.tool_result")
    assert result["is_error"] is True
    assert "too old" in str(result["output"])


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (use("nonsense"), "no tool named 'nonsense'"),
        (use("double", n="many"), "does not fit"),
        (use("double", n=1, more=2), "unknown field"),
        (use("fails"), "KeyError"),
        (lambda: fragments("double", '{"n": '), "not valid JSON"),
        (lambda: fragments("double", "[1]"), "not a JSON object"),
        (lambda: fragments("double", '{"n": "' + "x" * 1_000_000 + '"}'), "bytes"),
        (lambda: fragments("", "{}"), "names no tool"),
        (lambda: fragments("double\ud800", "{}"), "no tool named"),
    ],
)
async def test_hostile_calls_become_error_results(world: World, said: Any, says: str) -> None:
    """Unknown tools, wrong inputs and exceptions: the model reads what was wrong."""

    @limpet.tool
    def double(n: int) -> int:
        return 2 * n

    @limpet.tool
    def fails() -> None:
        raise KeyError("gone")

    model = Script(said, Reply("I see."))
    await world.begin("hi")
    assert [w.reason for w in await world.work(Agent(model, [double, fails]))] == ["end_turn"]
    (result,) = events_of(await world.log(), "agent.tool_result")
    assert result["is_error"] is True
    assert says in str(result["output"])
    assert await world.said() == ["", "I see."]


async def fragments(name: str, arguments: str) -> AsyncIterator[Piece]:
    yield Piece(tool={"index": 0, "id": "c", "name": name, "arguments": arguments})


async def test_parallel_calls_run_at_once_and_have_one_result_each(world: World) -> None:
    """Repeated ids of a provider are two calls."""
    running = 0
    most = 0

    @limpet.tool
    async def wait(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return n

    both = Reply("", (ToolCall("same", "wait", {"n": 1}), ToolCall("same", "wait", {"n": 2})))
    model = Script(both, Reply("Done."))
    await world.begin("hi")
    await world.work(Agent(model, [wait]))
    results = events_of(await world.log(), "agent.tool_result")
    assert sorted(r["output"] for r in results) == [1, 2]
    assert len({r["request_id"] for r in results}) == 2
    assert most == 2


async def test_an_endless_loop_ends_with_a_note(world: World) -> None:
    """At max_steps every call has its result, the turn ends normally, and the note names the
    limit."""

    @limpet.tool(pure=True)
    def again() -> str:
        return "again"

    await world.begin("hi")
    model = Script(lambda: use("again"))
    assert [w.reason for w in await world.work(Agent(model, [again], max_steps=3))] == ["end_turn"]
    assert len(model.requests) == 3
    log = await world.log()
    assert len(events_of(log, "agent.tool_use")) == len(events_of(log, "agent.tool_result")) == 3
    assert "3 steps" in (await world.said())[-1]
    assert events_of(log, "agent.message")[-1]["limit"] == "max_steps"


async def test_a_tool_of_the_client_waits_for_its_answer(world: World) -> None:
    """A tool without a function is recorded as a custom tool use and answered with s.answer."""
    screen = limpet.Tool("pick_date", schema={"type": "object", "properties": {}})
    model = Script(use("pick_date"), Reply("Noted."))
    await world.begin("hi")
    await world.work(Agent(model, [screen]))
    (request,) = world.session.blocked_on
    assert request.kind == "question"
    await world.session.answer(request.id, "2026-11-17", actor="user:ada")
    await world.work(Agent(model, [screen]))
    assert "agent.custom_tool_use" in await world.types()
    (result,) = events_of(await world.log(), "agent.tool_result")
    assert result["output"] == "2026-11-17"
    tool = model.requests[-1].messages[-1]
    assert (tool["role"], tool["content"]) == ("tool", "2026-11-17")


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_worker_may_die_at_every_commit(recorded: bool) -> None:
    """However often it dies: the same transcript, each model call recorded once, the effect done
    once for each intent, and asked about where nobody knows."""
    for at in range(1, 40):
        async with a_world() as world:
            bank = Bank()
            refund = limpet.tool(on_unknown="retry")(bank.refund)
            look = limpet.tool(pure=True)(lambda_look)
            two = Reply("", (ToolCall("a", "look", {}), ToolCall("b", "refund", {"order": 7})))
            model = Script(two, Reply("All done.", usage={"input": 1, "output": 1}))
            await world.begin("hi")
            died = await world.die(Agent(model, [refund, look]), at, recorded=recorded)
            world.later()
            await world.work(Agent(model, [refund, look]))
            assert await world.said() == ["", "All done."], at
            results = events_of(await world.log(), "agent.tool_result")
            assert sorted(str(r["output"]) for r in results)[0] == "looked"
            assert len(results) == 2
            assert len(set(bank.done)) == 1
            context = await world.session.context()
            shape_rules.openai(context.messages)
            roles = [m["role"] for m in context.messages]
            assert roles == ["user", "assistant", "tool", "tool", "assistant"]
            if not died:
                return
    raise AssertionError("it never came to its end")


def lambda_look() -> str:
    """Look around."""
    return "looked"


lambda_look.__name__ = "look"


async def test_the_attempt_of_a_model_call_counts_from_its_span(world: World) -> None:
    """A worker that dies while the model speaks: the next one publishes attempt 2."""
    attempts: list[int] = []

    def model(request: ModelRequest) -> str:
        attempts.append(request.attempt)
        return "hello"

    await world.begin("hi")
    assert await world.die(Agent(model), 2, recorded=False)
    world.later()
    await world.work(Agent(model))
    assert attempts == [1, 2]
    assert await world.said() == ["hello"]


async def test_a_model_that_fails_is_asked_again(world: World) -> None:
    """Nothing of the broken reply is recorded; its span has an error."""
    tries: list[int] = []

    async def model(request: ModelRequest) -> AsyncIterator[Piece]:
        tries.append(request.attempt)
        yield Piece(text="half ")
        if len(tries) == 1:
            raise ConnectionError("cut")
        yield Piece(text="whole")

    await world.begin("hi")
    assert [w.reason for w in await world.work(Agent(model))] == ["rescheduling"]
    world.later(600)
    assert [w.reason for w in await world.work(Agent(model))] == ["end_turn"]
    assert await world.said() == ["half whole"]
    ended = events_of(await world.log(), "span.completed")
    assert [e["result"] for e in ended if e["kind"] == "model"] == ["error", "success"]


async def test_usage_beyond_the_budget_stops_the_next_call(world: World) -> None:
    """Cost and tokens of each reply count; the next call raises BudgetReached."""
    world.session = await world.lp.create(
        "support", "ada", actor="user:ada", budget=limpet.Budget(cost=1.0)
    )
    await world.send("hi")
    replies: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        for _ in range(3):
            reply = await turn.model("m", lambda _: Reply("x", usage={"cost": 0.9}))
            replies.append(reply.text)

    (woken,) = await world.work(harness)
    assert woken.reason == "budget_reached"
    assert replies == ["x", "x"]


@pytest.mark.parametrize(
    "usage", [{"tokens": 70}, {"total_tokens": 70}, {"input": 60, "output": 10, "tokens": 70}]
)
async def test_one_number_of_tokens_counts_once(world: World, usage: Any) -> None:
    """Where a reply says only how many tokens it took in all, the budget knows."""
    budget = limpet.Budget(tokens=100)
    world.session = await world.lp.create("support", "ada", actor="user:ada", budget=budget)
    await world.send("hi")
    await world.work(Agent(lambda _: Reply("x", usage=usage)))
    await world.session.refresh()
    assert world.session.runs.budget.remaining.tokens == 30


@pytest.mark.parametrize(
    "wrong",
    [
        lambda turn: turn.step("x", 5),
        lambda turn: turn.model("x", "gpt-5"),
        lambda turn: turn.say(5),
        lambda turn: turn.approve("x", {"order": object()}),
        lambda turn: turn.ask("x", {"order": object()}),
    ],
)
async def test_a_wrong_argument_is_refused_in_our_words(world: World, wrong: Any) -> None:
    """Not with an error of Python from the inside; nothing is recorded."""

    async def harness(turn: limpet.Turn) -> None:
        await wrong(turn)

    world.session = await world.lp.create("support", "ada", actor="user:ada")
    await world.send("hi")
    (woken,) = await world.work(harness, retries=0)
    assert isinstance(woken.error, limpet.InvalidInput)
    assert not [e for e in await world.log() if e.type.startswith("agent.")]


def test_an_agent_takes_a_list_of_tools() -> None:
    """One tool without a list is refused in our words; the agent is shown by its tools."""

    @limpet.tool
    def look(at: str) -> str:
        """Look."""
        return at

    for wrong in (look, None, 7):
        with pytest.raises(limpet.InvalidInput, match="tools is a list of tools"):
            Agent(lambda _: "x", wrong)  # type: ignore[arg-type]
    assert repr(Agent(lambda _: "x", [look])) == "<limpet.Agent ['look']>"
    assert repr(Agent(lambda _: "x", [look], name="eye")) == "<limpet.Agent eye ['look']>"


@pytest.mark.parametrize(
    "message",
    [
        {"choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        {"role": "assistant", "content": "hi", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}],
            "status": "completed", "usage": {"input_tokens": 5, "output_tokens": 2}},
        {"role": "assistant", "content": [{"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}],
            "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 2}},
        {"candidates": [{"content": {"parts": [{"text": "hi"},
            {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}}]}}],
            "usageMetadata": {"prompt_token_count": 5, "candidates_token_count": 2}},
    ],
)  # fmt: skip
async def test_a_providers_own_message_is_understood(world: World, message: Any) -> None:
    """Whole messages of all four APIs, as their clients return them without streaming."""
    replies: list[Reply] = []

    async def harness(turn: limpet.Turn) -> None:
        replies.append(await turn.model("m", lambda _: message))

    await world.begin("hi")
    await world.work(harness)
    (reply,) = replies
    assert reply.text == "hi"
    assert [(c.name, c.input, c.provider_id) for c in reply.tool_calls] == [("f", {"a": 1}, "c")]


@pytest.mark.parametrize("call", [lambda _: 5, lambda _: None, lambda _: object(), lambda _: [1]])
async def test_what_is_not_a_reply_is_refused(world: World, call: Callable[..., Any]) -> None:
    """With the next step in the message; the turn fails and is tried again."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("m", call)

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.InvalidInput)
    assert "limpet.Reply" in str(woken.error)


async def test_a_call_too_large_to_be_asked_about_is_an_error_result(world: World) -> None:
    """A request is kept with the state, so it has a bound; the model reads it."""

    @limpet.tool(permission="always_ask")
    def note(text: str) -> None:
        raise AssertionError("nobody allowed it")

    model = Script(use("note", text="x" * 20_000), Reply("I see."))
    await world.begin("hi")
    assert [w.reason for w in await world.work(Agent(model, [note]))] == ["end_turn"]
    (result,) = events_of(await world.log(), "agent.tool_result")
    assert result["is_error"] is True
    assert "bytes" in result["output"]


async def test_models_that_speak_at_once_keep_their_own_tools(world: World) -> None:
    """A call is for the tool that its own model was offered; sync generators stream too."""

    def one(what: str) -> limpet.Tool:
        return limpet.tool(name="do", pure=True)(lambda: what)

    results: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        async def ask(name: str) -> None:
            reply = await turn.model(name, lambda _: iter([call]), tools=[one(name)])
            await asyncio.sleep(0)
            results.append((name, (await turn.tool(reply.tool_calls[0])).output))

        call = Piece(tool={"index": 0, "id": "c", "name": "do", "arguments": "{}"})
        await asyncio.gather(ask("a"), ask("b"))

    await world.begin("hi")
    await world.work(harness)
    assert sorted(results) == [("a", "a"), ("b", "b")]


async def test_a_call_says_its_permission_and_a_named_agent_its_name(world: World) -> None:
    """The strictest of tool, worker and session is recorded with the call."""
    tool = limpet.tool(name="do")(lambda: 1)
    model = Script(use("do"), Reply("Done."))
    await world.begin("hi")
    await world.work(Agent(model, [tool], name="helper"), permissions={"do": "deny"})
    log = await world.log()
    assert [e["permission"] for e in events_of(log, "agent.tool_use")] == ["deny"]
    assert {e.actor for e in log if e.type == "agent.message"} == {"agent:helper"}
    assert [e["is_error"] for e in events_of(log, "agent.tool_result")] == [True]
