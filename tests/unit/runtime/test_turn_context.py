"""What a model sees of a turn: messages, its own calls and their results, in the order of turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from limpet import Agent, ModelRequest, Reply, ToolCall
from limpet.model.events import Event
from tests.support.agents import Bank, World, a_world
from tests.support.shape_rules import RULES

SHAPES: Any = tuple(RULES)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def use(*names: str, text: str = "", **input: Any) -> Reply:
    """A reply that calls these tools."""
    return Reply(text, tuple([ToolCall(f"c{n}", name, input) for n, name in enumerate(names)]))


async def shown(session: Any) -> list[str]:
    """The conversation in short, checked by the rules of every API."""
    for shape in SHAPES:
        RULES[shape]((await session.context(shape=shape)).messages)
    return [brief(message) for message in await session.messages()]


def brief(message: limpet.Message) -> str:
    (part, *_) = message.parts
    if part["type"] == "tool_use":
        return f"call {part['name']}"
    if part["type"] == "tool_result":
        return f"result {part['output']}"
    return f"{message.role}: {message.text}"


# --- what is shown -------------------------------------------------------------------------------


async def test_requests_of_the_runtime_are_not_part_of_the_conversation(world: World) -> None:
    """An approval, a question, an unknown effect and a mismatch are between harness and people."""
    bank, amounts = Bank(), iter([1, 2, *[1] * 10])  # other arguments the second time

    async def lost(idempotency_key: str) -> None:
        raise limpet.errors.EffectUnknown("pay")

    async def harness(turn: limpet.Turn) -> None:
        await turn.approve("wire", {"eur": next(amounts)})
        await turn.ask("rating", {"of": 5})
        await turn.effect("refund", bank.refund, order=7)
        await turn.effect("pay", lost)
        await turn.say("Done.")

    s = await world.begin("Pay.")
    kinds = []
    for _ in range(8):
        await world.work(harness, permissions={"refund": "always_ask"})
        assert await shown(s) in (["user: Pay."], ["user: Pay.", "assistant: Done."])
        for request in s.blocked_on:
            kinds.append(request.kind)
            await answered(s, request)
    assert {"approval", "question", "mismatch"} < set(kinds)
    assert len(set(kinds)) == 4
    assert await shown(s) == ["user: Pay.", "assistant: Done."]


async def answered(s: Any, request: limpet.Request) -> None:
    """Answer a request as its kind is answered."""
    if request.kind == "question":
        await s.answer(request.id, 5, actor="user:ada")
    elif request.kind == "approval":
        await s.confirm(request.id, allow=True, actor="user:ada")
    elif request.kind == "mismatch":
        await s.resolve(request.id, run_again=True, actor="user:ada")
    else:
        await s.resolve(request.id, happened="paid", actor="user:ada")


async def test_a_call_and_its_approval_are_one_call(world: World) -> None:
    """Allowed or denied: the model made one call, and reads one result."""
    bank, said = Bank(), iter([use("refund", "refund", order=7), Reply("Well.")])
    refund = limpet.tool(permission="always_ask")(bank.refund)
    agent = Agent(lambda request: next(said), [refund])
    s = await world.begin("Twice, please.")
    await world.work(agent)
    first, second = s.blocked_on
    await s.confirm(first.id, allow=True, actor="user:ada")
    await s.confirm(second.id, allow=False, note="once only", actor="user:ada")
    await world.work(agent)
    assert await shown(s) == [
        "user: Twice, please.",
        "call refund",
        "call refund",
        "result {'order': 7, 'number': 1}",
        "result The user did not allow this call. once only",
        "assistant: Well.",
    ]


async def test_a_tool_of_the_client_is_one_call_with_one_result(world: World) -> None:
    """Recorded as a call, a question, its answer and a result: the model sees call and result."""
    pick = limpet.Tool("pick", "1.0.0", {"type": "object"})
    said = iter([use("pick"), Reply("Red, then.")])
    agent = Agent(lambda request: next(said), [pick])
    s = await world.begin("Which?")
    await world.work(agent)
    (request,) = s.blocked_on
    await s.answer(request.id, "red", actor="user:ada")
    assert (await shown(s))[1:] == ["call pick", "result red"]  # also before the worker has run
    await world.work(agent)
    assert (await shown(s))[1:] == ["call pick", "result red", "assistant: Red, then."]
    types = await world.types()
    assert types.count("agent.tool_use") == types.count("agent.custom_tool_use") == 1
    assert types.count("user.custom_tool_result") == types.count("agent.tool_result") == 1


async def test_a_tool_of_the_client_that_needs_an_approval_is_one_call(world: World) -> None:
    """First a person allows it, then the client answers; the model reads the client's output."""
    pick = limpet.Tool("pick", "1.0.0", {"type": "object"}, permission="always_ask")
    said = iter([use("pick"), Reply("Red, then.")])
    agent = Agent(lambda request: next(said), [pick])
    s = await world.begin("Which?")
    await world.work(agent)
    (request,) = s.blocked_on
    await s.confirm(request.id, allow=True, actor="user:ada")
    await world.work(agent)
    (request,) = s.blocked_on
    assert (request.kind, request.name) == ("question", "pick")
    await s.answer(request.id, "red", actor="user:ada")
    await world.work(agent)
    assert (await shown(s))[1:] == ["call pick", "result red", "assistant: Red, then."]


async def test_calls_that_the_harness_ignores_have_results(world: World) -> None:
    """A turn that ends without running a tool records that: one result for each call."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.model("first", lambda request: use("a", "b"))
        await turn.model("second", lambda request: use("c"))

    s = await world.begin("hi")
    await world.work(harness)
    assert (await world.types()).count("agent.tool_result") == 3
    assert await shown(s) == [
        "user: hi",
        *["call a", "call b", "result the turn ended", "result the turn ended"],
        *["call c", "result the turn ended"],
    ]


# --- where messages stand ------------------------------------------------------------------------


async def test_a_message_stands_where_the_turn_that_took_it_up_begins(world: World) -> None:
    """One that came between a call and its result is read after the answer of that turn."""
    seen: list[list[str]] = []

    def model(request: ModelRequest) -> Reply:
        RULES[request.shape](list(request.messages))
        seen.append([str(m.get("content")) for m in request.messages if m["role"] != "assistant"])
        return Reply(f"answer {len(seen)}") if len(seen) != 1 else use("look")

    @limpet.tool
    async def look() -> str:
        await world.send("And this?")
        await world.send("And that?")
        return "seen"

    s = await world.begin("What is it?")
    assert [w.reason for w in await world.work(Agent(model, [look]))] == ["end_turn"] * 2
    assert seen == [
        ["What is it?"],
        ["What is it?", "seen"],  # what came meanwhile is another turn's
        ["What is it?", "seen", "And this?", "And that?"],
    ]
    assert await shown(s) == [
        "user: What is it?",
        "call look",
        "result seen",
        "assistant: answer 2",
        "user: And this?",
        "user: And that?",
        "assistant: answer 3",
    ]


async def test_a_message_that_no_turn_took_up_yet_stands_at_the_end(world: World) -> None:
    """Also one that came before the turn had recorded anything."""

    async def harness(turn: limpet.Turn) -> None:
        await world.send("early")
        await turn.say("one")
        await world.send("late")
        await turn.say("two")
        assert [m["content"] for m in (await turn.context()).messages] == ["hi", "one\ntwo"]

    s = await world.begin("hi")
    await world.lp.wake(s.key, harness)
    assert await shown(s) == [
        *["user: hi", "assistant: one", "assistant: two", "user: early", "user: late"]
    ]


async def test_the_note_of_an_interrupt_stands_where_its_turn_begins(world: World) -> None:
    """What the interrupted turn still recorded stands before it."""
    contexts: list[list[Any]] = []

    async def harness(turn: limpet.Turn) -> None:
        if turn.note is not None:
            contexts.append([m["content"] for m in (await turn.context()).messages])
            await turn.say("Half.")
            return
        await world.session.interrupt("only half", actor="user:ada")
        await turn.say("All of it.")
        await asyncio.sleep(0)

    s = await world.begin("wire it")
    await world.work(harness)
    world.later(1)
    await world.work(harness)
    assert contexts == [["wire it", "All of it.", "[interrupted] only half"]]
    assert await shown(s) == [
        "user: wire it",
        "assistant: All of it.",
        "user: [interrupted] only half",
        "assistant: Half.",
    ]


async def test_what_an_app_says_between_a_message_and_its_turn_stays_in_place(world: World) -> None:
    """Only turns move messages: a greeting that an app recorded itself stays where it is."""
    s = await world.begin("hi")
    await s.append("agent.message", {"text": "One moment."}, actor="agent:desk")

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("Hello.")

    await world.work(harness)
    assert await shown(s) == ["user: hi", "assistant: One moment.", "assistant: Hello."]


# --- how it is read ------------------------------------------------------------------------------


async def test_the_log_is_read_once_in_a_run(world: World) -> None:
    """Fifty model calls over two thousand messages read each event once."""
    s = await world.begin()
    drafts = [limpet.Draft(type="user.message", data={"text": f"{n}"}) for n in range(2_000)]
    for n in range(0, 2_000, 500):
        await s.append_many(drafts[n : n + 500], actor="user:ada")
    await s.mark_processed([e.seq for e in await s.pending(limit=1_000)])
    await s.mark_processed([e.seq for e in await s.pending(limit=1_000)])
    await world.send("now")
    read = counted(world)
    lengths: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        for n in range(50):
            await turn.model("again", lambda request: lengths.append(len(request.messages)) or "x")
            assert len(read) < 2_100 + 6 * n, "an event was read again"

    await world.work(harness)
    assert lengths[0] == 2_001
    assert len(lengths) == 50


async def test_a_conversation_that_the_run_knows_is_not_read(world: World) -> None:
    """What was loaded with the claim, and recorded since, is the log: nothing is asked for."""
    await world.begin("hi")
    asked: list[Any] = []
    reads = world.store.read

    async def read(*args: Any, **how: Any) -> tuple[Event, ...]:
        asked.append(how)
        return await reads(*args, **how)

    world.store.read = read  # type: ignore[method-assign]
    seen: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        for _ in range(3):
            await turn.model("again", lambda request: seen.append(words(request)) or "so")

    await world.work(harness)
    assert (seen, asked) == (["hi", "hi so", "hi so so"], [])


async def test_a_model_sees_what_others_recorded_until_it_is_called(world: World) -> None:
    """Before the first call of the run and before a later one, though the run did not look."""
    s, seen = await world.begin("hi"), list[str]()

    def model(request: ModelRequest) -> str:
        seen.append(words(request))
        return "so"

    async def harness(turn: limpet.Turn) -> None:
        for note in ("one", "two"):
            await s.append("agent.message", {"text": note}, actor="agent:other")
            await turn.model("next", model)

    await world.work(harness)
    assert seen == ["hi one", "hi one so two"]


def words(request: ModelRequest) -> str:
    """All that a model reads, as one text."""
    return " ".join([word for message in request.messages for word in message["content"].split()])


def counted(world: World) -> list[Event]:
    """The events that the store is asked for from now on, apart from the pending ones."""
    events: list[Event] = []
    reads = world.store.read

    async def read(*args: Any, **how: Any) -> tuple[Event, ...]:
        page = await reads(*args, **how)
        events.extend(page)
        return page

    world.store.read = read  # type: ignore[method-assign]
    return events


async def test_what_is_kept_is_what_a_new_reader_sees(world: World) -> None:
    """Extending the conversation gives what reading it whole gives."""

    def look() -> int:
        return 1

    async def harness(turn: limpet.Turn) -> None:
        for _ in range(4):
            reply = await turn.model("next", lambda request: use("a", "b"))
            extended = await turn.context()
            fresh = limpet.Turn(turn.run, inputs=turn.inputs)
            assert (await fresh.context()).messages == extended.messages
            for call in reply.tool_calls:
                await turn.tool(call, look, pure=True)
        assert (await turn.context()).messages == (await turn.session.context()).messages

    s = await world.begin("one")
    assert [w.error for w in await world.work(harness)] == [None]
    await world.send("two")
    assert [w.reason for w in await world.work(harness)] == ["end_turn"]
    assert len(await shown(s)) == 2 * (1 + 4 * 4)
