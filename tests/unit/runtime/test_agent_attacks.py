"""Attacks on the agent loop: hostile tools, models and harnesses leave a turn that is right."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

import limpet
from limpet import Agent, ModelRequest, Piece, Reply, ToolCall
from limpet.runtime.model_call import TEXT_BYTES_MAX
from tests.support.agents import APP, Bank, World, a_world
from tests.unit.runtime.test_agent import Script, events_of, use

MUCH = "x" * 9_000_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unspeakable:
    """A value without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Undumpable:
    """A model whose own code fails."""

    def model_dump(self, mode: str) -> Any:
        raise RuntimeError(mode)


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda: MUCH, id="much text"),
        pytest.param(lambda: {"a": ["é" * 10] * 300_000}, id="much data"),
        pytest.param(cyclic, id="cyclic"),
        pytest.param(deep, id="deep"),
        pytest.param(lambda: math.nan, id="nan"),
        pytest.param(lambda: {"n": math.inf}, id="infinite"),
        pytest.param(lambda: b"\xff\x00", id="bytes"),
        pytest.param(lambda: 10**40, id="large integer"),
        pytest.param(lambda: "\ud800\x00", id="surrogate"),
        pytest.param(lambda: {("a", 1): 2}, id="tuple as a key"),
        pytest.param(Unspeakable, id="no text"),
        pytest.param(Undumpable, id="no dump"),
    ],
)
async def test_whatever_a_tool_returns_is_its_result(
    world: World, value: Callable[[], Any], pure: bool
) -> None:
    """The tool has run once and succeeded, whether or not its value can be stored as it is."""
    ran = []

    def act() -> Any:
        ran.append(1)
        return value()

    await world.begin("go")
    agent = Agent(Script(use("act"), "Done."), [limpet.tool(pure=pure)(act)])
    woken = await world.work(agent)
    log = await world.log()
    assert ran == [1]
    assert [each.reason for each in woken] == ["end_turn"]
    (result,) = events_of(log, "agent.tool_result")
    assert "is_error" not in result
    assert len(events_of(log, "effect.succeeded")) == (not pure)
    assert not events_of(log, "effect.unknown")


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Mute(), id="no text"),
        pytest.param(asyncio.CancelledError(), id="cancelled"),
        pytest.param(StopIteration(1), id="stop"),
        pytest.param(RecursionError(), id="recursion"),
        pytest.param(ExceptionGroup("several", [Mute()]), id="group"),
        pytest.param(KeyError("\ud800"), id="surrogate"),
    ],
)
async def test_whatever_a_tool_raises_is_its_result(
    world: World, error: BaseException, pure: bool
) -> None:
    """An error without a text, a cancellation of its own and the like end the call, not the turn.

    Of an effect that was cancelled from inside nobody knows how far it came: a person is asked.
    """

    async def act() -> Any:
        raise error

    await world.begin("go")
    agent = Agent(Script(use("act"), "Done."), [limpet.tool(pure=pure)(act)])
    woken = await world.work(agent)
    is_asked = isinstance(error, asyncio.CancelledError) and not pure
    assert [each.kind for each in world.session.blocked_on] == ["unknown_effect"] * is_asked
    for request in world.session.blocked_on:
        await world.session.resolve(request.id, give_up=True)
        woken += await world.work(agent)
    assert woken[-1].reason == "end_turn"
    log = await world.log()
    (call,) = [each for each in events_of(log, "agent.tool_use") if "message" in each]
    results = events_of(log, "agent.tool_result")
    (result,) = [each for each in results if each["request_id"] == call["request_id"]]
    assert result["is_error"] is True


async def test_an_error_without_a_text_is_a_failure_like_any_other(world: World) -> None:
    """Of a model, an effect or a harness: the turn fails, and the worker goes on."""

    async def model(request: ModelRequest) -> Any:
        raise Mute

    def act() -> None:
        raise Mute

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.EffectFailed):
            await turn.effect("act", act)
        with pytest.raises(Mute):
            await turn.model("model", model)
        raise Mute

    await world.begin("go")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "retries_exhausted"
    (error,) = events_of(await world.log(), "session.error")
    assert error["message"] == "Mute"


@pytest.mark.parametrize("kind", [float, int, Any], ids=["float", "int", "any"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("1e300", id="large"),
        pytest.param("-1e25", id="negative"),
        pytest.param("123456789012345678901234567890", id="past 64 bits"),
        pytest.param("[" * 90 + "]" * 90, id="deep"),
        pytest.param("[" * 100_000, id="deeper"),
        pytest.param("NaN", id="nan"),
        pytest.param('"\\ud800"', id="surrogate"),
    ],
)
async def test_whatever_a_model_calls_a_tool_with_is_answered(
    world: World, value: str, kind: Any
) -> None:
    """With a result of the tool, or with an error that the model reads; the turn goes on."""

    def act(amount: Any) -> str:
        return "ok"

    act.__annotations__["amount"] = kind
    given = {"index": 0, "id": "c", "name": "act", "arguments": f'{{"amount": {value}}}'}
    model = Script(lambda: iter([Piece(tool=given)]), "Done.")
    await world.begin("go")
    (woken,) = await world.work(Agent(model, [act]), retries=0)
    assert woken.reason == "end_turn"
    assert len(events_of(await world.log(), "agent.tool_result")) == 1


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param({"input": 10**40, "output": 1}, id="past 64 bits"),
        pytest.param({"input": 2**63 - 1, "output": 2**63 - 1}, id="sum past 64 bits"),
        pytest.param({"input": -5, "cost": -1}, id="negative"),
        pytest.param({"input": math.nan, "cost": math.nan}, id="nan"),
        pytest.param({"cost": 1e300}, id="large cost"),
        pytest.param({"cost": 10**400}, id="larger cost"),
        pytest.param({"cost": math.inf}, id="infinite cost"),
        pytest.param({"input": True, "cost": "1"}, id="other types"),
        pytest.param("lots", id="text"),
    ],
)
async def test_usage_that_cannot_be_is_left_out(world: World, usage: Any) -> None:
    """The reply is recorded, once, and the budget is as it was."""
    world.session = await world.lp.create(APP, "ada", budget=1.0, actor="user:ada")
    await world.send("go")
    (woken,) = await world.work(Agent(lambda _: Reply("Hi", usage=usage)), retries=0)
    assert woken.reason == "end_turn"
    assert await world.said() == ["Hi"]
    assert world.session.runs.budget.remaining.cost == 1.0


def fragment(arguments: Any, number: int = 0, id: Any = "c", **more: Any) -> Piece:
    call = {"index": number, "id": id, "name": "x", "arguments": arguments, **more}
    return Piece(tool=call)


def native(value: Any) -> Piece:
    return Piece(native={"type": "thinking", "signature": value})


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([Piece(text=MUCH)], id="a long text"),
        pytest.param([Piece(text=MUCH[:1_000_000])] * 9, id="many texts"),
        pytest.param([Piece(reasoning=MUCH)], id="a long thought"),
        pytest.param([Piece(stop=MUCH)], id="a long reason"),
        pytest.param([native("\ud800")], id="native surrogate"),
        pytest.param([native(math.nan)], id="native nan"),
        pytest.param([native(b"1")], id="native bytes"),
        pytest.param([native(MUCH)], id="native much"),
        pytest.param([fragment("{}", 10**30)], id="a large index"),
        pytest.param([fragment("{}", id=MUCH, name=MUCH)], id="a long name"),
        pytest.param([fragment(MUCH)], id="long arguments"),
        pytest.param([fragment("{}", signature=MUCH)], id="a long signature"),
        pytest.param([fragment({"a": {1, 2}}, id=5, name=7)], id="other types"),
        pytest.param([fragment({"a": object()})], id="an object"),
        pytest.param([fragment("{}", n, f"c{n}") for n in range(1_000)], id="a thousand calls"),
        pytest.param([fragment("12345678") for _ in range(50_000)], id="many fragments"),
        pytest.param([fragment(MUCH[:60_000], n) for n in range(128)], id="long calls"),
    ],
)
async def test_whatever_a_model_streams_is_one_reply(world: World, pieces: Sequence[Piece]) -> None:
    """It is recorded within the limits of an event, and the model is not asked a second time."""
    asked = []

    async def model(request: ModelRequest) -> AsyncIterator[Piece]:
        asked.append(len(request.messages))
        if len(asked) > 1:
            yield Piece(text="End.")
            return
        yield Piece(text="a")
        for piece in pieces:
            yield piece

    await world.begin("go")
    (woken,) = await world.work(Agent(model), retries=0)
    assert woken.reason == "end_turn"
    log = await world.log()
    calls = events_of(log, "agent.tool_use")
    assert len(asked) == (2 if calls else 1)
    assert len(events_of(log, "agent.tool_result")) == len(calls)


async def test_a_stream_without_an_end_is_closed(world: World) -> None:
    """What it said up to the limit is recorded, and says why it stops there."""
    closed = []

    async def model(request: ModelRequest) -> AsyncIterator[Piece]:
        try:
            while True:
                yield Piece(text=MUCH[:100_000])
        finally:
            closed.append(1)

    await world.begin("go")
    (woken,) = await world.work(Agent(model), retries=0)
    assert woken.reason == "end_turn"
    assert closed == [1]
    (message,) = events_of(await world.log(), "agent.message")
    assert message["stop_reason"] == "too_long"
    assert TEXT_BYTES_MAX - 200_000 < len(message["text"]) <= TEXT_BYTES_MAX


async def test_a_stream_that_cannot_be_closed_is_a_whole_reply(world: World) -> None:
    """The model is not paid a second time because its connection failed at the very end."""

    class Stream:
        def __init__(self) -> None:
            self.left = ["a", "b"]

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

        async def aclose(self) -> None:
            raise ConnectionError("gone")

    await world.begin("go")
    (woken,) = await world.work(Agent(lambda _: Stream()), retries=0)
    assert woken.reason == "end_turn"
    assert await world.said() == ["ab"]


def spoil(value: Any) -> None:
    """Empty everything that can be changed."""
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            spoil(each)
        value.clear()


@pytest.mark.parametrize("shape", ["openai", "openai-responses", "anthropic", "gemini"])
async def test_a_call_may_change_its_request(world: World, shape: Any) -> None:
    """What the next call sees is what the log says."""
    parts = [{"type": "text", "text": "hi"}, {"type": "data", "data": {"a": [1]}}]
    session = await world.begin()
    await session.append("user.message", {"content": parts}, actor="user:ada")
    said = [use("act", x={"a": [1, {"b": 2}]}), use("act", x=[1]), Reply("Done.")]

    def act(x: Any) -> Any:
        return {"out": [x]}

    def model(request: ModelRequest) -> Any:
        seen.append(repr(request.messages))
        spoil(request.messages)
        return said[len(seen) - 1]

    seen: list[str] = []
    expected: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        for _ in said:
            expected.append(repr((await session.context(shape=shape)).messages))
            reply = await turn.model("m", model, tools=[act], shape=shape)
            for call in reply.tool_calls:
                assert not (await turn.tool(call)).is_error

    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert seen == expected


@pytest.mark.parametrize("permission", ["always_allow", "always_ask"])
@pytest.mark.parametrize("pure", [True, False])
async def test_a_call_that_is_handed_over_twice_at_once_runs_once(
    world: World, pure: bool, permission: Any
) -> None:
    """Both hands get the one result; a person is asked once."""
    bank = Bank()
    refund = limpet.tool(permission=permission, pure=pure)(bank.refund)
    if pure:
        refund = limpet.tool(permission=permission, pure=pure, name="refund")(look_up(bank))

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("m", Script(use("refund", order=1)), tools=[refund])
        (call,) = reply.tool_calls
        first, second = await asyncio.gather(turn.tool(call), turn.tool(call))
        assert first == second
        assert not first.is_error

    await world.begin("go")
    (woken,) = await world.work(harness)
    if permission == "always_ask":
        (request,) = world.session.blocked_on
        await world.session.confirm(request.id, allow=True)
        (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert len(bank.done) == 1


def look_up(bank: Bank) -> Callable[..., Any]:
    async def look(order: int) -> Any:
        return await bank.refund(order, "none")

    return look


async def test_a_call_of_an_earlier_turn_has_its_result(world: World) -> None:
    """It is not run again by a harness that keeps it, whatever the function."""
    bank, kept, results = Bank(), list[ToolCall](), list[Any]()

    async def harness(turn: limpet.Turn) -> None:
        if not kept:
            reply = await turn.model("m", Script(use("refund", order=1)), tools=[bank.refund])
            kept.extend(reply.tool_calls)
        results.append(await turn.tool(kept[0], bank.refund))

    await world.begin("go")
    await world.work(harness)
    await world.send("again")
    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert len(bank.done) == 1
    assert results[0] == results[1]
    assert len(events_of(await world.log(), "agent.tool_result")) == 1


async def test_a_function_of_the_harness_is_no_way_round_an_approval(world: World) -> None:
    """The tool that the model was offered asks, also if turn.tool gets another function. And once
    the turn was interrupted, the call is over."""
    bank, kept = Bank(), list[ToolCall]()
    refund = limpet.tool(permission="always_ask")(bank.refund)

    async def harness(turn: limpet.Turn) -> None:
        if not kept:
            reply = await turn.model("m", Script(use("refund", order=1)), tools=[refund])
            kept.extend(reply.tool_calls)
        assert (await turn.tool(kept[0], bank.refund)).is_error

    await world.begin("go")
    (woken,) = await world.work(harness)
    assert woken.reason == "requires_action"
    await world.session.interrupt()
    await world.send("again")
    woken = (await world.work(harness))[-1]
    assert woken.reason == "end_turn"
    assert bank.done == []


async def test_tools_that_a_model_cannot_tell_apart_are_refused() -> None:
    """Models accept few characters in a name: two names must not become one."""
    tools = [limpet.tool(name=name)(lambda: None) for name in ("größe", "grüße")]
    with pytest.raises(limpet.InvalidInput, match="'gr__e'"):
        Agent(Script("Hi"), tools)


async def test_more_calls_than_a_session_may_ask_about_are_asked_in_turn(world: World) -> None:
    """None of them is answered with an error because too many wait for a person."""
    bank = Bank()
    refund = limpet.tool(permission="always_ask")(bank.refund)
    calls = tuple([ToolCall(f"c{n}", "refund", {"order": n}) for n in range(40)])
    agent = Agent(Script(Reply("", calls), "Done."), [refund])
    await world.begin("go")
    (woken,) = await world.work(agent)
    asked = set()
    while woken.reason == "requires_action":
        for request in world.session.blocked_on:
            asked.add(request.id)
            await world.session.confirm(request.id, allow=True)
        (woken,) = await world.work(agent)
    assert woken.reason == "end_turn"
    assert len(asked) == len(bank.done) == 40


async def test_an_agent_ends_after_all_its_tools(world: World) -> None:
    """A call that ends the turn does not leave the effect of another without its outcome."""
    done = []

    async def slow() -> str:
        for _ in range(20):
            await asyncio.sleep(0)
        done.append(1)
        return "done"

    dear = limpet.Tool("dear", cost=100.0, function=lambda: 1)
    world.session = await world.lp.create(APP, "ada", budget=1.0, actor="user:ada")
    await world.send("go")
    model = Script(Reply("", (ToolCall("a", "slow", {}), ToolCall("b", "dear", {}))), "Done.")
    (woken,) = await world.work(Agent(model, [slow, dear]))
    assert woken.reason == "budget_reached"
    assert done == [1]
    log = await world.log()
    assert len(events_of(log, "effect.succeeded")) == 1
    assert not events_of(log, "effect.unknown")


@pytest.mark.parametrize("name", ["x" * 250, "a/b c", "\u202e", "größe"])
async def test_a_function_for_every_call_takes_any_name(world: World, name: str) -> None:
    """The name is the model's, so it is not a mistake of the harness."""

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("m", Script(use(name)))
        await turn.tool(reply.tool_calls[0], lambda: 1)

    await world.begin("go")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "end_turn"


@pytest.mark.parametrize("on_unknown", ["ask", "retry"])
@pytest.mark.parametrize("fails", [True, False])
async def test_an_effect_that_nobody_waits_for_ends_before_its_turn(
    world: World, fails: bool, on_unknown: Any
) -> None:
    """A harness that gathers and fails, or forgets a task, leaves no effect running beside the next
    run of the turn: its outcome is recorded first."""
    done = []

    async def slow() -> str:
        for _ in range(50):
            await asyncio.sleep(0)
        done.append(1)
        return "done"

    offered, tasks = limpet.tool(on_unknown=on_unknown)(slow), list[Any]()

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("m", Script(use("slow")), tools=[offered])
        tasks.append(asyncio.ensure_future(turn.tool(reply.tool_calls[0])))
        for _ in range(10):
            await asyncio.sleep(0)
        if fails and len(tasks) == 1:
            raise ValueError("too early")

    await world.begin("go")
    (woken,) = await world.work(harness)
    assert woken.reason == ("rescheduling" if fails else "end_turn")
    assert done == [1]
    assert tasks[0].done()
    world.later(60)
    await world.work(harness)
    log = await world.log()
    assert done == [1]
    assert not events_of(log, "effect.unknown")
    assert [each["output"] for each in events_of(log, "agent.tool_result")] == ["done"]


async def test_an_interrupt_ends_an_effect_that_nobody_waits_for(world: World) -> None:
    """It is cancelled like one that the harness waits for, and counts as unknown."""
    began, ended = asyncio.Event(), list[str]()

    async def slow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    tasks = []

    async def harness(turn: limpet.Turn) -> None:
        tasks.append(asyncio.ensure_future(turn.effect("slow", slow)))
        await asyncio.Event().wait()

    session = await world.begin("go")
    working = asyncio.ensure_future(world.work(harness))
    await began.wait()
    await session.interrupt(actor="user:ada")
    await asyncio.wait_for(working, 10)
    assert ended == ["cancelled"]
    assert tasks[0].cancelled()
    assert len(events_of(await world.log(), "effect.unknown")) == 1


async def test_a_pure_tool_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as `retries` says, like one that acts."""
    monkeypatch.setattr("limpet.runtime.effects.BACKOFF_SECONDS", 0.0)
    tries = []

    def look() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError
        return len(tries)

    async def harness(turn: limpet.Turn) -> None:
        pure = limpet.tool(pure=True)(look)
        reply = await turn.model("m", Script(use("look")), tools=[pure])
        assert (await turn.tool(reply.tool_calls[0], retries=2)).output == 3

    await world.begin("go")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "end_turn"


@pytest.mark.parametrize("said", [{"choices": []}, {"candidates": []}, {"output": []}])
async def test_a_reply_without_a_choice_says_nothing(world: World, said: Any) -> None:
    """Providers leave the choice out where they refuse; the turn ends."""
    await world.begin("go")
    (woken,) = await world.work(Agent(lambda _: said), retries=0)
    assert woken.reason == "end_turn"
    assert await world.said() == [""]


async def test_an_id_that_a_harness_makes_up_is_used_once(world: World) -> None:
    """In a later turn it is not taken for the call before, and nothing runs."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        number = len(bank.done)
        await turn.tool(ToolCall("call_0", "refund", {"order": number}), bank.refund)

    await world.begin("go")
    await world.work(harness)
    await world.send("again")
    (woken,) = await world.work(harness, retries=0)
    assert isinstance(woken.error, limpet.InvalidInput)
    assert len(bank.done) == 1


@pytest.mark.parametrize("permission", ["always_allow", "always_ask"])
@pytest.mark.parametrize("pure", [True, False])
async def test_a_tool_is_authorized_whenever_it_is_used(
    world: World, pure: bool, permission: Any
) -> None:
    """Whether it acts or only looks; and nobody is asked about what is not authorized."""
    ran = []
    registry = limpet.ToolRegistry([limpet.Tool("look")], authorize=lambda *_: not ran or "no more")
    world.lp.policies.lifecycle(APP, tools=registry)
    session = await world.begin("go")
    await session.tools.bind(registry, "look")
    look = limpet.tool(pure=pure, permission=permission, name="look")(lambda: ran.append(1))
    agent = Agent(Script(use("look"), use("look"), "Done."), [look])
    woken = await world.work(agent)
    for request in session.blocked_on:
        await session.confirm(request.id, allow=True)
        woken += await world.work(agent)
    assert woken[-1].reason == "end_turn"
    assert ran == [1]
    *_, last = events_of(await world.log(), "agent.tool_result")
    assert "no more" in last["output"]


async def test_a_run_without_the_model_call_keeps_to_the_permission_of_the_tool(
    world: World,
) -> None:
    """As in a graph whose node with the model is done: the recorded call says what it asks for."""
    bank, kept = Bank(), list[ToolCall]()
    refund = limpet.tool(permission="always_ask")(bank.refund)

    async def harness(turn: limpet.Turn) -> None:
        if not kept:
            reply = await turn.model("m", Script(use("refund", order=1)), tools=[refund])
            kept.extend(reply.tool_calls)
            raise ValueError("the worker dies here")
        await turn.tool(kept[0], bank.refund)

    await world.begin("go")
    await world.work(harness)
    world.later(60)
    (woken,) = await world.work(harness)
    assert woken.reason == "requires_action"
    assert bank.done == []


async def test_a_stream_of_texts_that_cannot_be_stored_is_cleaned(world: World) -> None:
    """Clients cut texts in the middle of a character."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.stream("s", ["a\ud800", {"text": "b\x00"}])

    await world.begin("go")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "end_turn"
    assert await world.said() == ["a?b\ufffd"]
