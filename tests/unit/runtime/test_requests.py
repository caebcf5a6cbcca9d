"""Requests: a turn asks, pauses, and goes on with the one answer; interrupts end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.model.limits import REQUESTS_MAX
from limpet.session.writer import writer_of
from tests.support.agents import Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def wires(turn: limpet.Turn) -> None:
    approval = await turn.approve(
        "wire", {"eur": 900}, deadline=timedelta(hours=4), otherwise="deny"
    )
    await turn.say(f"{bool(approval)} {approval.note} {approval.input['eur']}")


async def test_an_approval_is_answered_once(world: World) -> None:
    """The first answer stands; another one is refused."""
    session = await world.begin("hi")
    await world.work(wires)
    assert (session.status, session.stop_reason) == ("idle", "requires_action")
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True, note="fine")
    with pytest.raises(limpet.errors.RequestAnswered):
        await session.confirm(request.id, allow=False)
    with pytest.raises(limpet.errors.RequestNotFound):
        await session.confirm("another", allow=True)
    await world.work(wires)
    assert await world.said() == ["True fine 900"]
    with pytest.raises(limpet.errors.RequestAnswered):
        await session.confirm(request.id, allow=True)


async def test_one_of_many_answers_at_once_is_recorded(world: World) -> None:
    """Whoever is second is told so."""
    session = await world.begin("hi")
    await world.work(wires)
    (request,) = session.blocked_on
    others = [world.lp.session(session.key) for _ in range(5)]
    answers = [s.confirm(request.id, allow=bool(n)) for n, s in enumerate(others)]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(f, limpet.errors.RequestAnswered) for f in found) == 4


async def test_a_question_is_answered_and_an_approval_confirmed(world: World) -> None:
    """The verb has to fit what was asked."""

    async def asks(turn: limpet.Turn) -> None:
        await turn.say(str(await turn.ask("fx_rate", {"pair": "EURUSD"})))

    session = await world.begin("hi")
    await world.work(asks)
    (request,) = session.blocked_on
    with pytest.raises(
        limpet.errors.RequestMismatch, match=r"Use s\.answer\(request_id, output\) to"
    ):
        await session.confirm(request.id, allow=True)
    await session.answer(request.id, 1.25)
    await world.work(asks)
    assert await world.said() == ["1.25"]
    await world.send("again")
    await world.work(wires)
    with pytest.raises(
        limpet.errors.RequestMismatch, match=r"Use s\.confirm\(request_id, allow=…\) to"
    ):
        await session.answer(session.blocked_on[0].id, 1)
    with pytest.raises(AttributeError):
        session.blocked_on[0].name = "another"  # type: ignore[misc]
    asked = await session.read(types=["agent.tool_use", "agent.custom_tool_use"])
    assert [e.data.get("permission") for e in asked] == [None, "ask"]


async def test_an_answer_may_be_an_error(world: World) -> None:
    """It is raised in the turn as ToolFailed."""

    async def asks(turn: limpet.Turn) -> None:
        try:
            await turn.ask("fx_rate", {})
        except limpet.errors.ToolFailed as error:
            await turn.say(f"{error.output}")

    session = await world.begin("hi")
    await world.work(asks)
    (request,) = session.blocked_on
    await session.answer(request.id, "no rates", is_error=True)
    await world.work(asks)
    assert await world.said() == ["no rates"]
    (result,) = await session.read(types=["agent.tool_result"])
    wanted = {"request_id": request.id, "output": "no rates", "is_error": True}
    assert result.data == wanted


async def test_several_are_asked_at_once_and_a_partial_answer_leaves_the_rest(
    world: World,
) -> None:
    """All that a turn asks at one time is open; each answer is its own."""

    async def harness(turn: limpet.Turn) -> None:
        found = await asyncio.gather(*[turn.approve("pay", {"n": n}) for n in range(3)])
        await turn.say("".join("y" if a else "n" for a in found))

    session = await world.begin("hi")
    await world.work(harness)
    first, second, third = session.blocked_on
    assert [r.input["n"] for r in (first, second, third)] == [0, 1, 2]
    await session.confirm(second.id, allow=False)
    await world.work(harness)
    assert [r.id for r in session.blocked_on] == [first.id, third.id]
    await session.confirm(third.id, allow=True)
    await session.confirm(first.id, allow=True)
    await world.work(harness)
    assert await world.said() == ["yny"]


async def test_a_question_that_the_turn_does_not_come_back_to_has_an_outcome(world: World) -> None:
    """So that the conversation stays valid."""

    async def forgets(turn: limpet.Turn) -> None:
        if turn.attempt == 1:
            await turn.ask("fx_rate", {})

    session = await world.begin("hi")
    await world.work(forgets)
    await session.answer(session.blocked_on[0].id, 1.25)
    await world.work(forgets)
    (outcome,) = await session.read(types=["agent.tool_result"])
    assert (outcome.data["output"], outcome.data["is_error"]) == ("the turn ended", True)


async def test_an_unrelated_message_does_not_drop_a_request(world: World) -> None:
    """It waits for the next turn, and does not wake the paused one."""
    session = await world.begin("hi")
    await world.work(wires)
    (request,) = session.blocked_on
    await world.send("are you there?")
    assert not await world.work(wires)
    assert session.blocked_on == (request,)
    await session.confirm(request.id, allow=True)
    await world.work(wires)
    assert await world.said() == ["True None 900"]
    assert len(session.blocked_on) == 1, "the second message has its own turn"


async def test_after_its_deadline_the_default_answers(world: World) -> None:
    """No worker has to be awake: the session is due then."""
    session = await world.begin("hi")
    await world.work(wires)
    world.later(3600 * 4 - 1)
    assert not await world.work(wires)
    world.later(1)
    await world.work(wires)
    assert await world.said() == ["False the deadline passed 900"]
    assert not session.head.pending


async def test_another_input_than_the_asked_one_stops_the_turn(world: World) -> None:
    """An approval is bound to the hash of what was approved."""
    amounts = iter([900, 9_000])

    async def harness(turn: limpet.Turn) -> None:
        await turn.approve("wire", {"eur": next(amounts)})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)


class Wire:
    """A harness that wires an amount which is another one in every run, if that is approved."""

    def __init__(self, *amounts: int) -> None:
        self.amounts, self.wired = iter(amounts), list[int]()

    async def run(self, turn: limpet.Turn) -> None:
        eur = next(self.amounts)
        if await turn.approve("wire", {"eur": eur}):
            self.wired.append(eur)


async def test_an_accepted_mismatch_does_not_approve_another_input(world: World) -> None:
    """With on_mismatch="accept" the person is asked again, about what is to be done now."""
    wire = Wire(900, 9_000, 9_000)
    session = await world.begin("hi")
    await world.work(wire)
    (first,) = session.blocked_on
    await session.confirm(first.id, allow=True)
    (woken,) = await world.work(wire, on_mismatch="accept")
    assert (woken.reason, wire.wired) == ("requires_action", [])
    (second,) = session.blocked_on
    assert (second.kind, dict(second.input)) == ("approval", {"eur": 9_000})
    await session.confirm(second.id, allow=True)
    await world.work(wire, on_mismatch="accept")
    assert wire.wired == [9_000]
    assert not session.head.pending


async def test_each_mismatch_is_decided_by_itself(world: World) -> None:
    """The request shows both values; run_again runs the turn with all checks on."""
    wire = Wire(900, 9_000, 9_000, 900)
    session = await world.begin("hi")
    await world.work(wire)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(wire)
    (first,) = session.blocked_on
    assert first.kind == "mismatch"
    assert (first.input["recorded"], first.input["now"]) == ({"eur": 900}, {"eur": 9_000})
    await session.resolve(first.id, run_again=True)
    await world.work(wire)
    (second,) = session.blocked_on
    assert (second.kind, second.id != first.id, wire.wired) == ("mismatch", True, [])
    await session.resolve(second.id, run_again=True)
    (woken,) = await world.work(wire)
    assert (woken.reason, wire.wired) == ("end_turn", [900])


async def test_a_mismatch_of_large_values_is_asked_about(world: World) -> None:
    """It shows how each begins, in a form that fits into a request, whatever has to be escaped."""
    texts = iter(["\\" * 9_000, '"' * 9_000])

    async def harness(turn: limpet.Turn) -> None:
        text = next(texts)
        await turn.step("look", lambda of: of, text)
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    (mismatch,) = session.blocked_on
    assert mismatch.input["recorded"].startswith('{"result":"\\\\')
    assert mismatch.input["now"].endswith(" bytes)")


async def test_a_mismatch_that_nobody_can_be_asked_about_counts_as_failed(world: World) -> None:
    """As many requests as there may be are open: the turn comes to an end all the same."""

    async def harness(turn: limpet.Turn) -> None:
        child = await turn.delegate("research", "look")
        if not child.is_ended:
            waits = [turn.approve("go", n) for n in range(REQUESTS_MAX)]
            await asyncio.gather(child.result(), *waits)
        await turn.approve("go", "another way")

    session = await world.begin("hi")
    await world.work(harness, retries=1)
    assert len(session.blocked_on) == REQUESTS_MAX
    (key,) = await session.runs.children()
    await world.lp.wake(key, lambda turn: turn.say("done"))
    reasons = []
    for _ in range(3):
        reasons += [woken.reason for woken in await world.work(harness, retries=1)]
        world.later(1_000)
    assert reasons == ["rescheduling", "retries_exhausted"]
    assert session.runs.failure is not None
    assert session.runs.failure.code == "event.invalid"


async def test_a_request_that_another_replaces_is_not_open_any_more(world: World) -> None:
    """Nobody waits for it; going back to its input asks once more, whatever was said before."""
    amounts = iter([900, 9_000, 900, 900])

    async def harness(turn: limpet.Turn) -> None:
        wire = turn.approve("wire", {"eur": next(amounts)})
        found = await asyncio.gather(wire, turn.ask("rate", {}))
        await turn.say(f"{found[0].input['eur']} {bool(found[0])} {found[1]}")

    session = await world.begin("hi")
    await world.work(harness)
    first, rate = session.blocked_on
    await session.answer(rate.id, 2)
    await world.work(harness, on_mismatch="accept")
    (second,) = session.blocked_on
    assert (dict(second.input), second.id != first.id) == ({"eur": 9_000}, True)
    with pytest.raises(limpet.errors.RequestAnswered):
        await session.confirm(first.id, allow=True)
    await session.confirm(second.id, allow=True)
    await world.work(harness, on_mismatch="accept")
    (third,) = session.blocked_on
    assert (dict(third.input), third.id in (first.id, second.id)) == ({"eur": 900}, False)
    await session.confirm(third.id, allow=True)
    await world.work(harness, on_mismatch="accept")
    assert await world.said() == ["900 True 2"]


async def test_an_effect_that_must_be_approved_is_approved_with_its_arguments(
    world: World,
) -> None:
    """Also where mismatches are accepted: no other argument is used than an approved one."""
    bank, orders = Bank(), iter([7, 8, 8])
    how = {"permissions": {"refund": "always_ask"}, "on_mismatch": "accept"}

    async def harness(turn: limpet.Turn) -> None:
        done = await turn.effect("refund", bank.refund, order=next(orders))
        await turn.say(str(done["order"]))

    session = await world.begin("hi")
    await world.work(harness, **how)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness, **how)
    assert bank.done == []
    (second,) = session.blocked_on
    assert second.input["order"] == 8
    await session.confirm(second.id, allow=True)
    await world.work(harness, **how)
    assert await world.said() == ["8"]


async def test_an_unknown_effect_with_other_arguments_is_asked_about(world: World) -> None:
    """Trying it again would be a second action: whatever its policy, a person sees both."""
    amounts, done = iter([900, 9_000, 9_000]), []

    async def pay(eur: int) -> None:
        done.append(eur)
        if len(done) == 1:
            raise TimeoutError

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, eur=next(amounts), on_unknown="retry")

    session = await world.begin("hi")
    await world.work(harness)
    world.later(60)
    await world.work(harness, on_mismatch="accept")
    assert done == [900]
    (request,) = session.blocked_on
    assert request.kind == "unknown_effect"
    shown = request.input
    assert (shown["recorded_args"], shown["args"]) == ({"eur": 900}, {"eur": 9_000})
    await session.resolve(request.id, run_again=True)
    await world.work(harness, on_mismatch="accept")
    assert done == [900, 9_000]


async def test_an_unknown_effect_is_tried_again_with_the_arguments_that_were_allowed(
    world: World,
) -> None:
    """That it may be done again was said of those alone: with others a person is asked again."""
    amounts, done = iter([900, 9_000, 9_000]), []

    async def pay(eur: int) -> None:
        done.append(eur)
        if len(done) == 1:
            raise TimeoutError

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, eur=next(amounts))

    session = await world.begin("hi")
    await world.work(harness)
    (first,) = session.blocked_on
    assert first.input["args"] == {"eur": 900}
    await session.resolve(first.id, run_again=True)
    await world.work(harness, on_mismatch="accept")
    assert done == [900]
    (second,) = session.blocked_on
    assert (second.kind, second.input["args"]) == ("unknown_effect", {"eur": 9_000})
    await session.resolve(second.id, run_again=True)
    await world.work(harness, on_mismatch="accept")
    assert done == [900, 9_000]
    results = {
        e.data["request_id"]: e.data for e in await session.read(types=["agent.tool_result"])
    }
    assert "is_error" not in results[second.id]


async def test_the_answer_to_a_question_is_a_record_that_may_be_accepted(world: World) -> None:
    """It lets nothing be done: accepted, it stands for the question that is asked now."""
    pairs = iter(["EURUSD", "EURGBP"])

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(str(await turn.ask("rate", {"pair": next(pairs)})))

    session = await world.begin("hi")
    await world.work(harness)
    await session.answer(session.blocked_on[0].id, 1.25)
    await world.work(harness, on_mismatch="accept")
    assert await world.said() == ["1.25"]
    (result,) = await session.read(types=["agent.tool_result"])
    assert (result.data["output"], "is_error" in result.data) == (1.25, False)


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        ({"deadline": timedelta(days=3_650)}, True),
        ({"deadline": timedelta(microseconds=1), "otherwise": "allow"}, True),
        ({"deadline": timedelta(days=3_650, microseconds=1)}, False),
        ({"deadline": timedelta(0)}, False),
        ({"deadline": 5}, False),
        ({"otherwise": "allow"}, False),
        ({"deadline": timedelta(hours=1), "otherwise": "maybe"}, False),
    ],
)
async def test_a_deadline_is_a_time_that_somebody_could_wait_for(
    world: World, how: dict[str, Any], fits: bool
) -> None:
    """Anything else fails the run before anybody is asked."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.approve("wire", {}, **how)

    session = await world.begin("hi")
    (woken, *_) = await world.work(harness)
    assert (woken.reason == "requires_action") is fits
    assert isinstance(woken.error, limpet.InvalidInput) is not fits
    assert len(await session.read(types=["agent.tool_use"])) == fits


async def test_the_outcome_of_an_approval_is_what_was_said(world: World) -> None:
    """The log has it as the result of the call; what the harness gets cannot be changed."""

    async def harness(turn: limpet.Turn) -> None:
        approval = await turn.approve("wire", {})
        with pytest.raises(AttributeError):
            approval.allow = True  # type: ignore[misc]

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=False, note="no")
    (woken,) = await world.work(harness)
    assert woken.error is None
    (result,) = await session.read(types=["agent.tool_result"])
    assert result.data["output"] == {"allow": False, "note": "no"}
    assert "is_error" not in result.data


async def test_a_mismatch_shows_how_a_large_value_begins(world: World) -> None:
    """A request has a bound, and its answer must not fail on that."""
    words = iter(["x", "y" * 100_000])

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(next(words))
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    (request,) = session.blocked_on
    assert request.input["recorded"] == {"text": "x"}
    assert request.input["now"].startswith('{"text":"yyy')
    assert request.input["now"].endswith("bytes)")


async def test_an_answer_that_comes_before_the_pause_is_recorded_wakes_it(world: World) -> None:
    """The turn is due at once: it does not sleep on an answer that is there."""
    session = await world.begin("hi")

    async def harness(turn: limpet.Turn) -> None:
        asking = asyncio.ensure_future(turn.approve("wire", {}))
        for _ in range(3):
            await asyncio.sleep(0)
        await world.session.refresh()
        for request in world.session.blocked_on:
            await world.session.confirm(request.id, allow=True)
        await asking

    found = await world.work(harness)
    assert [w.reason for w in found] == ["requires_action", "end_turn"]
    assert session.stop_reason == "end_turn"


async def test_every_tool_call_has_one_outcome(world: World) -> None:
    """Answered, expired or interrupted: the conversation stays valid."""
    session = await world.begin("hi")
    await world.work(wires)
    await session.interrupt()
    await world.work(wires)
    log = await world.log()
    uses = [e.data["request_id"] for e in log if e.type == "agent.tool_use"]
    results = [e.data["request_id"] for e in log if e.type == "agent.tool_result"]
    assert uses == results


# --- a no ---------------------------------------------------------------------------------------


async def test_a_denial_that_nobody_catches_ends_the_turn(world: World) -> None:
    """A no is an answer: the turn is not tried again, and its inputs are processed."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=1)

    session = await world.begin("hi")
    ask = {"permissions": {"refund": "always_ask"}}
    await world.work(harness, **ask)
    await session.confirm(session.blocked_on[0].id, allow=False, note="not today")
    (woken,) = await world.work(harness, **ask)
    assert (woken.reason, bank.done) == ("end_turn", [])
    assert isinstance(woken.error, limpet.ToolDenied)
    assert (session.status, session.stop_reason) == ("idle", "end_turn")
    assert (session.head.pending, session.blocked_on) == (0, ())
    (error,) = await session.read(types=["session.error"])
    assert (error.data["code"], error.data["counts"]) == ("tool.denied", False)
    assert "not today" in error.data["message"]
    world.later(3600)
    assert not await world.work(harness, **ask)
    assert not (await world.lp.work.dead_letters(app="support")).items


async def test_a_tool_that_a_rule_denies_ends_the_turn(world: World) -> None:
    """Also among others that run at the same time, if all of them were denied."""

    async def harness(turn: limpet.Turn) -> None:
        async with asyncio.TaskGroup() as group:
            for order in range(2):
                group.create_task(turn.effect("refund", Bank().refund, order=order))

    session = await world.begin("hi")
    (woken,) = await world.work(harness, permissions={"refund": "deny"})
    assert woken.reason == "end_turn"
    assert isinstance(woken.error, ExceptionGroup)
    assert session.head.pending == 0


async def test_an_error_beside_a_denial_is_tried_again(world: World) -> None:
    """What failed beside it may succeed."""

    async def fails() -> None:
        raise OSError("no route")

    async def harness(turn: limpet.Turn) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(turn.effect("refund", Bank().refund, order=1))
            group.create_task(fails())

    session = await world.begin("hi")
    (woken,) = await world.work(harness, permissions={"refund": "deny"})
    assert woken.reason == "rescheduling"
    assert session.head.pending == 1


async def test_an_unknown_effect_that_a_person_gives_up_ends_the_turn(world: World) -> None:
    """It is neither tried again nor a dead letter."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("call", never, timeout=0.001)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    session = await world.begin("hi")
    await world.work(harness)
    await session.resolve(session.blocked_on[0].id, give_up=True, note="leave it")
    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert isinstance(woken.error, limpet.EffectUnknown)
    (error,) = await session.read(types=["session.error"])
    assert error.data["code"] == "effect.unknown"
    assert session.head.pending == 0


async def test_an_unknown_effect_with_a_policy_to_retry_is_tried_with_the_turn(
    world: World,
) -> None:
    """Nobody has decided anything: the next run tries it under the same key."""
    keys = []

    async def call(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise TimeoutError
        return "done"

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("call", call, on_unknown="retry"))

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, session.head.pending) == ("rescheduling", 1)
    world.later(60)
    await world.work(harness)
    assert await world.said() == ["done"]
    assert keys[0] == keys[1]


# --- interrupts ----------------------------------------------------------------------------------


async def test_an_interrupt_clears_blocks_and_revisits_with_no_worker_alive(world: World) -> None:
    """It is in the fold: whoever reads the session sees it at once."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "first":
            turn.revisit(timedelta(hours=1), "later", "k")
        else:
            await turn.approve("wire", {})

    session = await world.begin("first")
    await world.work(harness)
    await world.send("second")
    await world.work(harness)
    assert session.blocked_on
    assert session.head.timers
    await session.interrupt()
    assert (session.status, session.stop_reason) == ("idle", "interrupted")
    assert not session.blocked_on
    assert not session.head.timers
    assert session.head.priority == 1_000
    await world.work(harness)
    assert not session.head.pending
    assert session.head.priority == 0


async def test_a_message_after_the_interrupt_has_its_own_turn(world: World) -> None:
    """The paused turn's inputs count as processed; the new message is answered."""
    seen = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append([m.data["text"] for m in turn.inputs])
        if len(seen) == 1:
            await turn.approve("wire", {})

    session = await world.begin("first")
    await world.work(harness)
    await session.interrupt()
    await world.send("instead")
    await world.work(harness)
    assert seen == [["first"], ["instead"]]
    assert not session.head.pending
    assert session.stop_reason == "end_turn"


async def test_an_interrupt_beats_a_confirmation_in_the_same_window(world: World) -> None:
    """What was approved is not run any more."""
    session = await world.begin("hi")
    await world.work(wires)
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True)
    await session.interrupt()
    await world.work(wires)
    assert not await world.said()
    assert not session.head.pending
    assert session.stop_reason == "interrupted"


async def test_a_running_harness_sees_the_interrupt(world: World) -> None:
    """Interrupted is raised at its next await, and the turn closes as interrupted."""
    bank, seen = Bank(), []
    began = asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except limpet.Interrupted as error:
            seen.append(error.note)
            with pytest.raises(limpet.Interrupted):
                await turn.effect("refund", bank.refund, order=1)
            raise

    session = await world.begin("hi")
    working = asyncio.ensure_future(world.work(harness))
    await began.wait()
    await world.lp.session(session.key).interrupt()
    (woken,) = await working
    assert (woken.reason, seen, bank.done) == ("interrupted", [None], [])
    assert not session.head.pending
    assert not await world.work(harness)
    processed = [e for e in await world.log() if e.type == "session.status_idle"]
    assert [e.data["processed"] for e in processed] == [[2, 3]]


async def test_an_effect_that_an_interrupt_cuts_off_is_recorded_as_unknown(world: World) -> None:
    """Nobody knows whether it was done, and the log says so."""
    began = asyncio.Event()

    async def slow() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("call", slow)

    session = await world.begin("hi")
    working = asyncio.ensure_future(world.work(harness))
    await began.wait()
    await world.lp.session(session.key).interrupt()
    await working
    types = await world.types()
    assert types.count("effect.unknown") == 1
    assert types.count("span.started") == types.count("span.completed") == 2
    assert session.stop_reason == "interrupted"


def test_requests_are_bounded() -> None:
    """A head stays small: too large an input is refused before anything is recorded."""
    from limpet.model.facts.running.requests import asked

    with pytest.raises(limpet.errors.InvalidEvent, match="blob"):
        asked("r", "approval", "wire", {"text": "x" * 20_000}, input_hash="h")


async def test_more_requests_than_may_be_open_are_made_in_turn(world: World) -> None:
    """Sixteen may be open at one time; the next is asked when one of them has its answer."""

    async def harness(turn: limpet.Turn) -> None:
        answers = await asyncio.gather(*[turn.approve("pay", n) for n in range(17)])
        await turn.say(f"{sum(map(bool, answers))} of {len(answers)}")

    session = await world.begin("hi")
    await world.work(harness)
    assert [request.input for request in session.blocked_on] == list(range(16))
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    assert [request.input for request in session.blocked_on] == list(range(1, 17))
    for request in session.blocked_on:
        await session.confirm(request.id, allow=True)
    await world.work(harness)
    assert await world.said() == ["17 of 17"]


async def test_an_interrupt_just_before_the_end_drops_what_the_turn_asks_for(world: World) -> None:
    """It is recorded between the last output and the end: its revisits do not come."""

    async def harness(turn: limpet.Turn) -> None:
        turn.revisit(timedelta(hours=1), "later")
        await turn.say("done")
        await other.interrupt(actor="user:ada")

    session = await world.begin("hi")
    other = await world.lp.get(session.key)
    await world.work(harness)
    world.later(1)
    await world.work(harness)
    assert session.stop_reason == "interrupted"
    assert session.head.timers == {}


# --- an interrupt with a note --------------------------------------------------------------------


class Listens:
    """A harness that keeps what each of its turns is about, and asks where it is told to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def run(self, turn: limpet.Turn) -> None:
        texts = [message.data["text"] for message in turn.inputs]
        self.seen.append((turn.attempt, texts, turn.note))
        if turn.note == "ask" or "ask" in texts:
            await turn.approve("wire", {})
        await turn.say(f"{texts} {turn.note}")


async def test_an_interrupt_with_a_note_begins_a_turn(world: World) -> None:
    """What the paused turn waits for is dropped, its inputs are processed, and the harness is
    called once with the note and without inputs."""
    listens = Listens()
    session = await world.begin("ask")
    await world.work(listens)
    note = await session.interrupt("use the other account")
    assert (session.blocked_on, session.stop_reason) == ((), "interrupted")
    (woken,) = await world.work(listens)
    assert (woken.ran, woken.reason) == (True, "end_turn")
    assert listens.seen == [(1, ["ask"], None), (1, [], "use the other account")]
    assert not session.head.pending
    assert (session.stop_reason, session.head.priority) == ("end_turn", 0)
    assert not await world.work(listens)
    idle = [e.data for e in await world.log() if e.type == "session.status_idle"]
    assert [(d["stop_reason"], d.get("redirect")) for d in idle] == [
        ("requires_action", None),
        ("interrupted", note.seq),
        ("end_turn", None),
    ]
    assert note.seq in idle[-1]["processed"]
    (activation, *_) = await session.runs.activations()
    assert activation.why == "interrupt"
    context = await session.context()
    said = [m["content"] for m in context.messages if m["role"] == "user"]
    assert said == ["ask", "[interrupted] use the other account"]
    assert (await world.lp.maintenance.verify()).ok


async def test_an_interrupt_with_a_note_redirects_a_running_harness(world: World) -> None:
    """It sees Interrupted, its turn is over, and the next one is about the note."""
    began, seen = asyncio.Event(), []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.note)
        if turn.note is None:
            began.set()
            await asyncio.get_running_loop().create_future()

    session = await world.begin("hi")
    working = asyncio.ensure_future(world.work(harness))
    await began.wait()
    world.later(0.001)
    note = await world.lp.session(session.key).interrupt("stop it")
    assert [woken.reason for woken in await working] == ["interrupted", "end_turn"]
    assert seen == [None, "stop it"]
    assert not session.head.pending
    idle = [e.data for e in await world.log() if e.type == "session.status_idle"]
    assert [d["processed"] for d in idle] == [[2], [note.seq]]


async def test_an_interrupt_with_a_note_wakes_an_idle_session(world: World) -> None:
    """Messages that wait, before it or after it, have a turn of their own, and revisits too."""
    listens = Listens()
    session = await world.begin("one")
    await session.interrupt("first this")
    await world.send("two")
    await world.work(listens)
    assert listens.seen == [(1, [], "first this"), (1, ["one", "two"], None)]
    assert not session.head.pending


async def test_the_last_of_several_interrupts_counts(world: World) -> None:
    """A later note replaces the one before; an interrupt without a note begins nothing."""
    listens = Listens()
    session = await world.begin("ask")
    await world.work(listens)
    await session.interrupt("a")
    await session.interrupt("b")
    await world.work(listens)
    assert [note for _, _, note in listens.seen] == [None, "b"]
    await session.interrupt("c")
    await session.interrupt()
    (woken,) = await world.work(listens)
    assert (woken.ran, woken.reason) == (False, "settled")
    assert len(listens.seen) == 2
    assert not session.head.pending
    assert session.head.priority == 0


async def test_a_turn_that_an_interrupt_began_is_interrupted_in_turn(world: World) -> None:
    """Also while it waits for an answer: its note is not delivered again."""
    listens = Listens()
    session = await world.begin("hi")
    await session.interrupt("ask")
    await world.work(listens)
    assert session.blocked_on
    await session.interrupt("never mind")
    await world.work(listens)
    assert listens.seen == [(1, [], "ask"), (1, [], "never mind"), (1, ["hi"], None)]
    assert not session.head.pending


async def test_a_paused_turn_keeps_its_note(world: World) -> None:
    """Every run of the turn has it, and no other turn."""
    listens = Listens()
    session = await world.begin()
    await session.interrupt("ask", actor="user:ada")
    await world.work(listens)
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True, actor="user:ada")
    await world.work(listens)
    await world.send("more")
    await world.work(listens)
    assert listens.seen == [(1, [], "ask"), (2, [], "ask"), (1, ["more"], None)]


async def test_a_newer_interrupt_is_not_lost_while_the_turn_closes(world: World) -> None:
    """It comes after the wake has looked, and before the end is recorded."""
    seen, notes = [], iter(["second"])

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.note)
        if turn.note is None:
            await other.interrupt("first", actor="user:ada")
            await turn.step("hear", lambda: None)

    async def commit(commits: Any) -> Any:
        closing = [d for c in commits for d in c.drafts if d.type == "session.status_idle"]
        if closing and closing[-1].data["stop_reason"] == "interrupted":
            for note in notes:
                await other.interrupt(note, actor="user:ada")
        return await recorded(commits)

    session = await world.begin("hi")
    other = world.lp.session(session.key)
    recorded, world.store.commit = world.store.commit, commit  # type: ignore[method-assign]
    await world.work(harness)
    assert seen == [None, "second"]
    assert not session.head.pending


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("at", range(1, 5))
async def test_a_note_survives_every_crash(world: World, at: int, recorded: bool) -> None:
    """The turn that it begins ends once, wherever a worker dies."""
    listens = Listens()
    session = await world.begin("ask")
    await world.work(listens)
    await session.interrupt("go on")
    await world.die(listens, at, recorded=recorded)
    world.later()
    await world.work(listens)
    assert await world.said() == ["[] go on"]
    assert {note for _, _, note in listens.seen} == {None, "go on"}
    assert not session.head.pending
    assert session.stop_reason == "end_turn"
    assert (await world.lp.maintenance.verify()).ok


async def test_a_child_that_is_interrupted_with_its_parent_begins_no_turn(world: World) -> None:
    """The note is the parent's: the child ends."""
    notes: list[Any] = []

    async def parent(turn: limpet.Turn) -> None:
        notes.append(turn.note)
        if turn.note is None:
            await (await turn.delegate("research", "look")).result()

    async def child(turn: limpet.Turn) -> None:
        notes.append(("child", turn.note))
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(parent)
    (key,) = await session.runs.children()
    await world.lp.wake(key, child)
    await session.interrupt("differently")
    await world.work(parent)
    woken = await world.lp.wake(key, child)
    assert (woken.ran, woken.reason) == (False, "settled")
    assert notes == [None, ("child", None), "differently"]
    assert not (await world.lp.get(key)).head.pending


async def test_an_interrupt_that_is_appended_as_an_event_interrupts_too(world: World) -> None:
    """With a note that is a text it redirects, with anything else it only ends the turn."""
    listens = Listens()
    session = await world.begin("ask")
    for data, notes in (({}, []), ({"note": 5}, []), ({"note": "b"}, ["b"])):
        await world.work(listens)
        assert session.blocked_on
        listens.seen.clear()
        await session.append("user.interrupt", data, actor="user:ada")
        assert session.blocked_on == ()
        await world.work(listens)
        assert [note for _, _, note in listens.seen] == notes
        await world.send("ask")


async def test_a_fold_keeps_the_words_of_events_and_nothing_else_of_them(world: World) -> None:
    """It is in every snapshot: what else such an event has, or a text without a bound, is not."""
    session = await world.begin("hi")
    large = {"more": "x" * 100_000}
    asks = {"request_id": "r", "awaits": "question", "name": "rate", "input": {"of": "eur"}}
    await session.append("agent.custom_tool_use", {**asks, **large}, actor="agent:a")
    wanted = {"title": "paid", "criteria": ["the invoice is paid"]}
    await session.append("user.define_outcome", {**wanted, **large}, actor="user:ada")
    too_long = {"title": "x" * 100_000, "criteria": []}
    await session.append("user.define_outcome", too_long, actor="user:ada")
    words = [{"name": "rate", "input": {"of": "eur"}}, wanted]
    assert list(writer_of(session).known.texts.values()) == words
    again = await world.lp.get(session.key)
    assert [dict(each) for each in writer_of(again).known.texts.values()] == words
    assert again.outcome is not None
    assert (again.outcome.current.title, again.blocked_on[0].input) == ("paid", {"of": "eur"})


async def test_an_approval_that_is_used_after_its_deadline_counts_no_more(world: World) -> None:
    """No worker was there in time; a yes of the deadline itself would have stood."""
    for otherwise, said in (("deny", "False the deadline passed"), ("allow", "True fine")):

        async def harness(turn: limpet.Turn, otherwise: Any = otherwise) -> None:
            hours = timedelta(hours=4)
            approval = await turn.approve("wire", {}, deadline=hours, otherwise=otherwise)
            await turn.say(f"{bool(approval)} {approval.note}")

        session = await world.begin("hi")
        await world.work(harness)
        await session.confirm(session.blocked_on[0].id, allow=True, note="fine")
        world.later(5 * 3600)
        await world.work(harness)
        assert await world.said() == [said]


async def test_an_approval_that_was_used_in_time_stands(world: World) -> None:
    """Later runs of the turn see what the first one saw, however late they are."""
    seen = []

    async def harness(turn: limpet.Turn) -> None:
        approval = await turn.approve("wire", {}, deadline=timedelta(hours=4))
        seen.append((approval.allow, approval.note))
        await turn.ask("rate", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True, note="fine")
    await world.work(harness)
    world.later(5 * 3600)
    await session.answer(session.blocked_on[0].id, 1)
    await world.work(harness)
    assert seen == [(True, "fine"), (True, "fine")]
