"""An unknown effect stays unknown until it is settled: nothing lets a model, or a harness, take it
for one that was not performed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Literal

import pytest

import limpet
from limpet import Agent, ModelRequest, Reply, ToolCall
from limpet.adapters.turn_calls import TurnCalls
from limpet.runtime import effects
from limpet.runtime.effects import outcome_of
from limpet.runtime.turn_log import EffectRecord
from limpet.session.conversation.messages import UNKNOWN
from tests.support.agents import Killed, World, a_world

Policy = Literal["ask", "retry"]
Ends = Literal[
    "raises", "times out", "cancels itself", "dies early", "dies", "pays", "says not done"
]
Says = Literal["happened", "run again", "give up"]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(effects, "BACKOFF_SECONDS", 0)
    async with a_world() as made:
        yield made


class Bank:
    """It honours idempotency keys. Each call ends as its script says; the last entry stays."""

    def __init__(self, *script: Ends) -> None:
        self.ledger: dict[str, int] = {}  # what was paid, by key
        self.calls: list[str] = []
        self._script = list(script)

    async def pay(self, eur: int, idempotency_key: str) -> str:
        self.calls.append(idempotency_key)
        ends = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if ends == "says not done":
            raise limpet.NotDone("the card was declined")
        if ends == "raises":
            raise ConnectionError("503")
        if ends == "dies early":
            raise Killed
        self.ledger[idempotency_key] = eur
        if ends == "dies":
            raise Killed
        if ends == "times out":
            raise TimeoutError
        if ends == "cancels itself":
            raise asyncio.CancelledError
        return f"paid {eur}"


async def stubborn(request: ModelRequest) -> Reply | str:
    """A model that pays; where that failed, it pays again."""
    last = request.messages[-1]
    text = str(last.get("content"))
    failed = last["role"] == "tool" and "paid" not in text and "do not repeat" not in text
    if last["role"] == "tool" and not failed:
        return f"It says: {text}"
    return Reply("", (ToolCall("", "pay", {"eur": 40}),))


def agent_of(bank: Bank, policy: Policy, *, retries: int = 0, **how: Any) -> Agent:
    pay = limpet.tool(on_unknown=policy, retries=retries, **how)(bank.pay)
    return Agent(stubborn, [pay])


async def worked(world: World, harness: Any, **how: Any) -> None:
    """Run it until nothing is due, however long the back-offs are; workers may die."""
    for _ in range(10):
        with suppress(Killed):
            await world.work(harness, **how)
        world.later(3_600)
        await world.session.refresh()
        if limpet.runnable_at(world.session.head) is None:
            return
    raise AssertionError("it does not come to rest")


async def results(world: World) -> list[Any]:
    """The outputs that the model reads."""
    log = await world.log()
    calls = [e.data for e in log if e.type == "agent.tool_use" and "message" in e.data]
    ids = {call["request_id"] for call in calls}
    shown = [e.data for e in log if e.type == "agent.tool_result"]
    return [each["output"] for each in shown if each["request_id"] in ids]


async def decide(world: World, says: Says) -> None:
    (request,) = world.session.blocked_on
    assert request.kind == "unknown_effect"
    if says == "happened":
        await world.session.resolve(request.id, happened="paid, I asked")
    elif says == "run again":
        await world.session.resolve(request.id, run_again=True)
    else:
        await world.session.resolve(request.id, give_up=True, note="leave it")


async def asked_after_a_second_try(world: World, bank: Bank, agent: Agent, policy: Policy) -> None:
    """Try 1 pays and dies; try 2, by the policy or because a person says so, ends as scripted."""
    await world.begin("pay")
    await worked(world, agent)
    if policy == "ask":
        assert len(bank.calls) == 1
        await decide(world, "run again")
        await worked(world, agent)
    assert len(bank.calls) == 2
    assert world.session.blocked_on
    assert not await results(world), "it is not settled"
    assert "effect.failed" not in await world.types()


UNSETTLED: list[Ends] = ["raises", "times out", "cancels itself"]
SAYS: dict[Says, str] = {
    "happened": "paid, I asked",
    "run again": "paid 40",
    "give up": f"{UNKNOWN} leave it",
}


@pytest.mark.parametrize("policy", ["ask", "retry"])
@pytest.mark.parametrize("ends", UNSETTLED)
@pytest.mark.parametrize("says", list(SAYS))
async def test_a_try_that_raises_after_an_unknown_one_is_settled_by_a_person(
    world: World, policy: Policy, ends: Ends, says: Says
) -> None:
    """It never becomes the model's error before that, so no call of the model pays again."""
    bank = Bank("dies", ends, "pays")
    agent = agent_of(bank, policy)
    await asked_after_a_second_try(world, bank, agent, policy)
    await decide(world, says)
    await worked(world, agent)
    assert await results(world) == [SAYS[says]]
    assert list(bank.ledger.values()) == [40]
    assert len(bank.calls) == 2 + (says == "run again")
    assert world.session.stop_reason == "end_turn"


@pytest.mark.parametrize("policy", ["ask", "retry"])
async def test_run_again_that_raises_again_is_asked_about_again(
    world: World, policy: Policy
) -> None:
    """As often as a person says so; each time under a request of its own."""
    bank = Bank("dies", "raises", "raises", "raises", "pays")
    agent = agent_of(bank, policy)
    await asked_after_a_second_try(world, bank, agent, policy)
    seen = set()
    for _ in range(3):
        (request,) = world.session.blocked_on
        seen.add(request.id)
        assert request.input["why"].endswith("ConnectionError: 503")
        await decide(world, "run again")
        await worked(world, agent)
    assert (len(seen), await results(world)) == (3, ["paid 40"])
    assert len(bank.ledger) == len(set(bank.calls)) == 1


@pytest.mark.parametrize("policy", ["ask", "retry"])
@pytest.mark.parametrize("unknown", [1, 2, 3])
async def test_not_done_settles_it_after_any_number_of_unknown_tries(
    world: World, policy: Policy, unknown: int
) -> None:
    """The function says that nothing was done: that is the model's error, and it may try again."""
    bank = Bank("dies early", *["raises"] * (unknown - 1), "says not done", "pays")
    agent = agent_of(bank, policy)
    await world.begin("pay")
    await worked(world, agent)
    for _ in range(unknown):
        if world.session.blocked_on:
            await decide(world, "run again")
            await worked(world, agent)
    assert await results(world) == ["the card was declined", "paid 40"]
    assert len(bank.ledger) == 1
    (failed,) = [e for e in await world.log() if e.type == "effect.failed"]
    assert failed.data["not_done"] is True


async def test_not_done_is_not_tried_again(world: World) -> None:
    """It is an answer, not an outage; the harness has it as EffectFailed."""
    bank = Bank("says not done")

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.EffectFailed) as failed:
            await turn.effect("pay", bank.pay, eur=40, retries=3)
        await turn.say(failed.value.error)

    await world.begin("pay")
    await worked(world, harness)
    assert (await world.said(), len(bank.calls)) == (["the card was declined"], 1)


async def test_not_done_without_words_is_recorded_once(world: World) -> None:
    """An empty reason is not taken for a failure that is tried again."""
    calls: list[int] = []

    def pay() -> None:
        calls.append(1)
        raise limpet.NotDone("")

    async def harness(turn: limpet.Turn) -> None:
        with suppress(limpet.EffectFailed):
            await turn.effect("pay", pay)
        await turn.ask("more", {})

    session = await world.begin("pay")
    await worked(world, harness)
    await session.answer(session.blocked_on[0].id, 1)
    await worked(world, harness)
    assert len(calls) == 1


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_it_is_tried_again_as_often_as_retries_says_and_then_asked_about(
    world: World, retries: int
) -> None:
    """Under the same key. A worker that dies in between forgets none of the tries."""
    bank = Bank("dies", "raises")
    agent = agent_of(bank, "retry", retries=retries)
    await world.begin("pay")
    await worked(world, agent)
    assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]
    assert len(bank.calls) == 1 + 1 + retries
    assert len(set(bank.calls)) == 1
    assert world.session.blocked_on[0].input["tries"] == len(bank.calls)


async def test_tries_are_counted_over_the_deaths_of_workers(world: World) -> None:
    """The count is in the log. A death is no try that raised: it is not counted."""
    bank = Bank("dies", "raises", "dies", "raises", "dies", "raises", "raises")
    agent = agent_of(bank, "retry", retries=2)
    await world.begin("pay")
    await worked(world, agent, retries=100)
    assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]
    assert len(bank.calls) == 6
    assert not await results(world)


async def test_no_death_after_the_last_try_leads_to_another(world: World) -> None:
    """That it raised is recorded, and the request is not: the next run asks, and does not try."""
    found = 0
    for at in range(1, 12):
        bank = Bank("dies", "raises")
        agent = agent_of(bank, "retry")
        await world.begin("pay")
        with suppress(Killed):
            await world.work(agent)
        world.later()
        if not await world.die(agent, at, recorded=True):
            break
        last = (await world.log())[-1]
        recorded = [e.data.get("raised") for e in await world.log() if e.type == "effect.unknown"]
        found += recorded[-1:] == [1] and last.type != "agent.tool_use"
        calls = len(bank.calls)
        world.later()
        await worked(world, agent, retries=100)
        assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]
        assert recorded[-1:] != [1] or len(bank.calls) == calls == 2
    assert found, "no worker died at that moment"


async def test_run_again_allows_as_many_tries_as_the_policy_did(world: World) -> None:
    """A person has looked: what raised before is not counted against it any more."""
    bank = Bank("dies", "raises", "raises", "raises", "raises", "pays")
    agent = agent_of(bank, "retry", retries=1)
    await world.begin("pay")
    await worked(world, agent)
    assert len(bank.calls) == 3
    await decide(world, "run again")
    await worked(world, agent)
    assert len(bank.calls) == 5
    await decide(world, "run again")
    await worked(world, agent)
    assert await results(world) == ["paid 40"]


async def test_a_death_after_run_again_is_tried_again_by_the_policy(world: World) -> None:
    """Nothing has raised since the person decided."""
    bank = Bank("dies", "raises", "dies", "pays")
    agent = agent_of(bank, "retry")
    await world.begin("pay")
    await worked(world, agent)
    await decide(world, "run again")
    await worked(world, agent)
    assert await results(world) == ["paid 40"]
    assert len(bank.ledger) == len(set(bank.calls)) == 1


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("ends", ["times out", "cancels itself"])
async def test_a_first_try_that_is_cut_off_is_unknown(
    world: World, ends: Ends, retries: int
) -> None:
    """Without any crash: with "retry" it is tried again, at once or in a later run, and settled."""
    bank = Bank(ends, "raises", "pays")
    agent = agent_of(bank, "retry", retries=retries)
    await world.begin("pay")
    await worked(world, agent)
    if not retries:
        assert not await results(world)
        await decide(world, "run again")
        await worked(world, agent)
    assert await results(world) == ["paid 40"]
    assert len(bank.ledger) == len(set(bank.calls)) == 1


async def test_a_turn_gives_its_lease_back_before_a_later_run_tries_again(world: World) -> None:
    """The harness sees no error of it, and nothing counts as a failure of the turn."""
    bank, caught = Bank("times out", "pays"), list[Exception]()

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.say(await turn.effect("pay", bank.pay, eur=40, on_unknown="retry"))
        except Exception as error:
            caught.append(error)
            raise

    session = await world.begin("pay")
    (woken,) = await world.work(harness, retries=0)
    assert (woken.reason, session.status) == ("rescheduling", "rescheduling")
    assert session.head.worker is None
    (error,) = [e.data for e in await world.log() if e.type == "session.error"]
    assert (error["code"], error["counts"]) == ("effect.unknown", False)
    world.later(60)
    await world.work(harness, retries=0)
    assert (await world.said(), caught) == (["paid 40"], [])


async def test_a_first_try_that_raises_was_not_performed(world: World) -> None:
    """Where nothing is unknown, an error is an error, and the model may call again."""
    bank = Bank("raises", "pays")
    await world.begin("pay")
    await worked(world, agent_of(bank, "retry"))
    assert await results(world) == ["ConnectionError: 503", "paid 40"]


# --- what else could make an error of it ----------------------------------------------------------


def swallowing(bank: Bank, began: asyncio.Event) -> Any:
    """A client that makes an error of its own of every cancellation, after it has paid."""

    async def pay(eur: int, idempotency_key: str) -> str:
        await bank.pay(eur, idempotency_key)
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            raise ConnectionError("reset") from error
        return ""

    return pay


async def test_a_timeout_that_the_function_makes_an_error_of_is_unknown(world: World) -> None:
    """That it raised says nothing: it was cut off."""
    bank = Bank("pays")

    async def harness(turn: limpet.Turn) -> None:
        pay = swallowing(bank, asyncio.Event())
        await turn.effect("pay", pay, eur=40, timeout=0.001, retries=3)

    await world.begin("pay")
    await worked(world, harness)
    assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]
    assert len(bank.calls) == 1


async def test_a_clients_own_timeout_is_unknown(world: World) -> None:
    """Clients raise errors of their own from TimeoutError, over a few layers."""

    class ReadTimeout(Exception):
        """As a client of HTTP has it."""

    async def pay(eur: int) -> None:
        try:
            try:
                raise TimeoutError
            except TimeoutError as error:
                raise OSError("the transport gave up") from error
        except OSError as error:
            raise ReadTimeout from error

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, eur=40)

    await world.begin("pay")
    await worked(world, harness)
    assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]


async def test_a_group_with_a_timeout_in_it_is_unknown(world: World) -> None:
    """One of several tasks of the function was cut off."""

    async def pay(eur: int) -> None:
        raise ExceptionGroup("both", [ValueError("no"), TimeoutError()])

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, eur=40)

    await world.begin("pay")
    await worked(world, harness)
    assert [r.kind for r in world.session.blocked_on] == ["unknown_effect"]


@pytest.mark.parametrize("swallows", [True, False])
async def test_an_interrupt_leaves_a_result_that_says_do_not_repeat(
    world: World, swallows: bool
) -> None:
    """The turn is over, so the call has a result; the next turn's model reads what it means."""
    bank, began = Bank("pays"), asyncio.Event()

    async def waits(eur: int, idempotency_key: str) -> str:
        await bank.pay(eur, idempotency_key)
        began.set()
        return str(await asyncio.get_running_loop().create_future())

    pay = swallowing(bank, began) if swallows else waits
    agent = Agent(stubborn, [limpet.tool(name="pay", on_unknown="retry", retries=3)(pay)])
    session = await world.begin("pay")
    working = asyncio.ensure_future(world.work(agent))
    await began.wait()
    await world.lp.session(session.key).interrupt("stop")
    await working
    assert await results(world) == [UNKNOWN]
    assert "effect.failed" not in await world.types()
    assert len(bank.calls) == 1


@pytest.mark.parametrize("when", ["a worker died", "a person is asked"])
async def test_an_interrupt_while_nobody_runs_it_leaves_such_a_result_too(
    world: World, when: str
) -> None:
    """Whether its worker has died, or it waits for a decision."""
    bank = Bank("dies" if when == "a worker died" else "times out")
    agent = agent_of(bank, "ask")
    session = await world.begin("pay")
    with suppress(Killed):
        await world.work(agent)
    await session.interrupt(actor="user:ada")
    await worked(world, agent)
    assert await results(world) == [UNKNOWN]
    assert len(bank.calls) == 1


async def test_an_error_of_another_task_that_ends_the_effect_leaves_it_unknown(
    world: World,
) -> None:
    """Its task group cancels it, and its client makes a ConnectionError of that."""
    bank, began = Bank("pays"), asyncio.Event()

    async def fails() -> None:
        await began.wait()
        raise ValueError("elsewhere")

    async def harness(turn: limpet.Turn) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(turn.effect("pay", swallowing(bank, began), eur=40))
            group.create_task(fails())

    await world.begin("pay")
    await world.work(harness)
    types = await world.types()
    assert "effect.unknown" in types
    assert "effect.failed" not in types


async def test_a_cancellation_of_long_ago_does_not_make_a_failure_unknown(world: World) -> None:
    """The harness has caught it; what the function raises afterwards is its own."""

    async def harness(turn: limpet.Turn) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        with pytest.raises(limpet.EffectFailed):
            await turn.effect("pay", Bank("raises").pay, eur=40)

    await world.begin("pay")
    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"


Change = Callable[[Bank], tuple[Any, dict[str, Any]]]


def _denied(bank: Bank) -> tuple[Any, dict[str, Any]]:
    return agent_of(bank, "retry"), {"permissions": {"pay": "deny"}}


def _removed(bank: Bank) -> tuple[Any, dict[str, Any]]:
    return Agent(stubborn, []), {}


def _without_function(bank: Bank) -> tuple[Any, dict[str, Any]]:
    return Agent(stubborn, [limpet.Tool("pay")]), {}


def _with_other_parameters(bank: Bank) -> tuple[Any, dict[str, Any]]:
    async def pay(cents: int, idempotency_key: str) -> str:
        return await bank.pay(cents, idempotency_key)

    return Agent(stubborn, [limpet.tool(on_unknown="retry")(pay)]), {}


CHANGES: dict[str, Change] = {
    "its permission is deny": _denied,
    "the tool is removed": _removed,
    "it is the client's by now": _without_function,
    "its parameters have other names": _with_other_parameters,
}


@pytest.mark.parametrize("change", list(CHANGES))
async def test_a_call_that_is_refused_when_it_is_tried_again_is_still_unknown(
    world: World, change: str
) -> None:
    """A refusal says that nothing was done: of a call that may have paid, a person decides."""
    bank = Bank("dies", "pays")
    await world.begin("pay")
    with suppress(Killed):
        await world.work(agent_of(bank, "retry"))
    world.later()
    agent, how = CHANGES[change](bank)
    await worked(world, agent, **how)
    assert not await results(world)
    assert "an earlier try has no outcome; the last: " in world.session.blocked_on[0].input["why"]
    await decide(world, "run again")  # and it is refused again
    await worked(world, agent, **how)
    assert not await results(world)
    await decide(world, "give up")
    await worked(world, agent, **how)
    assert await results(world) == [f"{UNKNOWN} leave it"]
    assert len(bank.calls) == len(bank.ledger) == 1


async def test_a_tool_that_is_pure_by_now_settles_its_call_as_an_effect(world: World) -> None:
    """Its earlier try was one: the outcome of that is recorded, not a step beside it."""
    bank = Bank("dies", "raises", "pays")
    await world.begin("pay")
    with suppress(Killed):
        await world.work(agent_of(bank, "retry"))
    world.later()
    await worked(world, agent_of(bank, "retry", pure=True))
    assert not await results(world)
    await decide(world, "run again")
    await worked(world, agent_of(bank, "retry", pure=True))
    assert await results(world) == ["paid 40"]
    assert "step.recorded" not in await world.types()


async def test_a_call_that_a_person_does_not_allow_any_more_is_still_unknown(world: World) -> None:
    """The permission became always_ask meanwhile, and they say no: that settles nothing."""
    bank = Bank("dies", "pays")
    session = await world.begin("pay")
    with suppress(Killed):
        await world.work(agent_of(bank, "retry"))
    world.later()
    how: dict[str, Any] = {"permissions": {"pay": "always_ask"}}
    await worked(world, agent_of(bank, "retry"), **how)
    (request,) = session.blocked_on
    assert request.kind == "approval"
    await session.confirm(request.id, allow=False)
    await worked(world, agent_of(bank, "retry"), **how)
    assert not await results(world)
    await decide(world, "happened")
    await worked(world, agent_of(bank, "retry"), **how)
    assert await results(world) == ["paid, I asked"]


@pytest.mark.parametrize("key", [None, "order-7"])
async def test_an_effect_by_hand_that_is_denied_when_it_is_tried_again_is_still_unknown(
    world: World, key: str | None
) -> None:
    """turn.effect raises ToolDenied only where nothing was done."""
    bank, denied = Bank("dies", "pays"), list[limpet.ToolDenied]()

    async def harness(turn: limpet.Turn) -> None:
        how: Any = {"on_unknown": "retry", "key": key}
        try:
            await turn.say(await turn.effect("pay", bank.pay, eur=40, **how))
        except limpet.ToolDenied as error:
            denied.append(error)

    await world.begin("pay")
    with suppress(Killed):
        await world.work(harness)
    world.later()
    await worked(world, harness, permissions={"pay": "deny"})
    assert not denied
    await decide(world, "happened")
    await worked(world, harness, permissions={"pay": "deny"})
    await world.send("again")
    await worked(world, harness, permissions={"pay": "deny"})
    assert (await world.said(), len(bank.calls), len(denied)) == (["paid, I asked"], 1, 1)


SUCCEEDED: dict[str, Change] = {**CHANGES, "nothing": lambda bank: (agent_of(bank, "retry"), {})}


@pytest.mark.parametrize("change", list(SUCCEEDED))
async def test_a_success_that_a_suspended_session_recorded_is_the_result(
    world: World, change: str
) -> None:
    """Suspended while it paid, refused by the time it is resumed: the model reads that it paid."""
    bank = Bank("pays")
    session = await world.begin("pay")

    async def pay(eur: int, idempotency_key: str) -> str:
        await session.suspend(actor="user:ada")
        return await bank.pay(eur, idempotency_key)

    await world.work(Agent(stubborn, [limpet.tool(on_unknown="retry")(pay)]))
    assert not await results(world)
    await session.resume(actor="user:ada")
    agent, how = SUCCEEDED[change](bank)
    await worked(world, agent, **how)
    assert (await results(world), len(bank.calls)) == (["paid 40"], 1)


@pytest.mark.parametrize("ends", ["pays", "raises"])
async def test_an_interrupt_does_not_hide_what_a_suspended_session_recorded(
    world: World, ends: Ends
) -> None:
    """The result of its call says what came of it, not that it was interrupted."""
    bank = Bank(ends)
    session = await world.begin("pay")

    async def pay(eur: int, idempotency_key: str) -> str:
        await session.suspend(actor="user:ada")
        return await bank.pay(eur, idempotency_key)

    await world.work(Agent(stubborn, [limpet.tool(pay)]))
    await session.resume(actor="user:ada")
    await session.interrupt(actor="user:ada")
    await worked(world, agent_of(bank, "ask"))
    assert await results(world) == ["paid 40" if ends == "pays" else "ConnectionError: 503"]


@pytest.mark.parametrize("ends", ["pays", "raises"])
async def test_an_effect_by_hand_with_an_outcome_is_not_refused(world: World, ends: Ends) -> None:
    """Denied by now, it was performed, or was not: the record says which."""
    bank, denied = Bank(ends), list[limpet.ToolDenied]()

    async def harness(turn: limpet.Turn) -> None:
        try:
            said = await turn.effect("pay", bank.pay, eur=40)
        except limpet.EffectFailed as error:
            said = error.error
        except limpet.ToolDenied as error:
            denied.append(error)
            return
        if turn.attempt == 1:
            raise Killed
        await turn.say(said)

    await world.begin("pay")
    with suppress(Killed):
        await world.work(harness)
    world.later()
    await worked(world, harness, permissions={"pay": "deny"})
    assert (denied, len(bank.calls)) == ([], 1)
    assert await world.said() == ["paid 40" if ends == "pays" else "ConnectionError: 503"]


async def test_a_call_whose_fallback_is_gone_is_not_made_by_another_tool(world: World) -> None:
    """The tool whose circuit was open has another bank, which does not know the key."""
    here, there = Bank("pays"), Bank("dies", "pays")
    tools = {
        name: limpet.tool(on_unknown="retry", name=name)(bank.pay)
        for name, bank in (("pay", here), ("pay_slowly", there))
    }
    switch = limpet.ToolSwitch(open=True, fallback="pay_slowly")
    await world.lp.policies.switch_tool("support", "pay", switch)
    await world.begin("pay")
    with suppress(Killed):
        await world.work(Agent(stubborn, list(tools.values())))
    assert (here.calls, len(there.calls)) == ([], 1)
    world.later()
    await worked(world, Agent(stubborn, [tools["pay"]]))
    assert not here.calls
    await decide(world, "happened")
    await worked(world, Agent(stubborn, [tools["pay"]]))
    assert await results(world) == ["paid, I asked"]


async def test_a_tool_that_is_not_authorized_when_it_is_tried_again_is_asked_about(
    world: World,
) -> None:
    """By the registry of the app: each decision to run it again is refused, and asked about."""
    bank, refuses = Bank("dies", "pays"), list[str]()
    registry = limpet.ToolRegistry(
        [limpet.Tool("pay")], authorize=lambda tool, session: refuses[0] if refuses else True
    )
    world.lp.policies.lifecycle("support", tools=registry)

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("pay", bank.pay, eur=40, on_unknown="retry"))

    await world.begin("pay")
    with suppress(Killed):
        await world.work(harness)
    world.later()
    refuses.append("its owner has left")
    for _ in range(2):
        await worked(world, harness)
        (request,) = world.session.blocked_on
        assert "its owner has left" in request.input["why"]
        await decide(world, "run again")
    refuses.clear()
    await worked(world, harness)
    assert await world.said() == ["paid 40"]
    assert len(bank.calls) == 2


async def test_a_locked_tool_is_tried_again_when_it_is_free(world: World) -> None:
    """Another session has it for a while: nobody is asked, and the harness sees no error."""
    bank, registry = Bank("dies", "pays"), limpet.ToolRegistry([limpet.Tool("pay", exclusive=True)])
    other = await world.lp.create("support", "bob", actor="user:bob")
    await other.tools.bind(registry)

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(await turn.effect("pay", bank.pay, eur=40, on_unknown="retry"))

    session = await world.begin("pay")
    await session.tools.bind(registry)
    with suppress(Killed):
        await world.work(harness)
    world.later()
    lock = await other.tools.lock("pay", seconds=3_000)
    (woken,) = await world.work(harness, retries=1)
    assert (woken.reason, session.blocked_on) == ("rescheduling", ())
    await world.lp.work.release(lock)
    await worked(world, harness)
    assert await world.said() == ["paid 40"]


async def test_a_denied_effect_does_not_count_among_the_calls_of_its_name(world: World) -> None:
    """The next one has the number, and the identity, that it always had."""
    bank, seen = Bank("pays"), list[str]()

    async def harness(turn: limpet.Turn) -> None:
        with suppress(limpet.ToolDenied):
            await turn.effect("pay", bank.pay, eur=40)
        seen.append(await turn.effect("ship", bank.pay, eur=1))

    await world.begin("pay")
    await worked(world, harness, permissions={"pay": "deny"})
    (intent,) = [e.data for e in await world.log() if e.type == "effect.intended"]
    assert (intent["name"], intent["occurrence"]) == ("ship", 1)


async def test_a_turn_short_of_budget_waits_and_then_settles_it(world: World) -> None:
    """A refused reservation records no result; after a grant it is tried again under its key."""
    bank = Bank("dies", "pays")

    async def harness(turn: limpet.Turn) -> None:
        paid = await turn.effect("pay", bank.pay, eur=40, on_unknown="retry", max_cost=0.6)
        await turn.say(paid)

    session = await world.begin("pay")
    await session.runs.grant(1.0)
    await worked(world, harness)
    assert (session.stop_reason, len(bank.calls)) == ("budget_reached", 1)
    await session.runs.grant(1.0)
    await worked(world, harness)
    assert await world.said() == ["paid 40"]
    assert len(bank.ledger) == len(set(bank.calls)) == 1


async def test_what_an_earlier_turn_left_unknown_under_a_key_stays_unknown(world: World) -> None:
    """A later turn that raises under that key asks about it, as its own would be."""
    bank = Bank("times out", "raises", "pays")

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", bank.pay, eur=40, key="order-7", on_unknown="retry")

    session = await world.begin("pay")
    await world.work(harness)
    await session.interrupt(actor="user:ada")
    await worked(world, harness)
    await world.send("again")
    await worked(world, harness)
    assert [r.kind for r in session.blocked_on] == ["unknown_effect"]
    assert bank.calls == ["order-7"] * 2
    assert "effect.failed" not in await world.types()


async def test_a_frameworks_own_call_that_a_person_gives_up_says_do_not_repeat(
    world: World,
) -> None:
    """Its framework would make an error of EffectUnknown, and its model a second try."""

    async def run() -> None:
        raise TimeoutError

    async def harness(turn: limpet.Turn) -> None:
        result = await TurnCalls(turn, "model").tool("x", "pay", {}, run, asks=False)
        await turn.say(f"{result.output} {result.is_error}")

    await world.begin("pay")
    await worked(world, harness)
    await decide(world, "give up")
    await worked(world, harness)
    assert await world.said() == [f"{UNKNOWN} True"]


# --- compensations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "script", "outcomes", "held"),
    [
        ("ask", ["raises", "pays"], ["failed", "done"], False),
        ("ask", ["times out"], ["unknown"], True),
        ("retry", ["times out", "raises", "pays"], ["unknown", "unknown", "done"], False),
        ("retry", ["times out", "says not done", "pays"], ["unknown", "failed", "done"], False),
    ],
)
async def test_a_compensation_that_is_unknown_stays_so(
    world: World, policy: Policy, script: list[Ends], outcomes: list[str], held: bool
) -> None:
    """The same rule: a try that raises after one without an outcome was not "not undone"."""
    bank = Bank(*script)

    async def undo(session: limpet.Session[Any], effect: limpet.PastEffect) -> str:
        return await bank.pay(1, effect.idempotency_key)

    world.lp.policies.lifecycle("support", compensations={"undo": undo})

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("buy", lambda: "bought", on_unknown=policy, compensate="undo")
        await turn.ask("more", {})

    session = await world.begin("pay")
    await worked(world, harness)
    await session.terminate()
    await worked(world, harness)
    names = {"compensation_failed": "failed", "compensation_unknown": "unknown"}
    names["compensated"] = "done"
    types = [type.removeprefix("effect.") for type in await world.types()]
    assert [names[type] for type in types if type in names] == outcomes
    assert ("held" in session.head.facts.get("ending", {})) is held
    assert len(set(bank.calls)) == 1


async def test_a_compensation_that_raises_after_an_unknown_try_is_held_again(world: World) -> None:
    """With "ask" a person had it tried again, and nobody knows more than before."""
    bank = Bank("times out", "raises", "pays")

    async def undo(session: limpet.Session[Any], effect: limpet.PastEffect) -> str:
        return await bank.pay(1, effect.idempotency_key)

    world.lp.policies.lifecycle("support", compensations={"undo": undo})

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("buy", lambda: "bought", compensate="undo")
        await turn.ask("more", {})

    session = await world.begin("pay")
    await worked(world, harness)
    await session.terminate()
    for calls in (1, 2):
        await worked(world, harness)
        assert ("held" in session.head.facts["ending"], len(bank.calls)) == (True, calls)
        await world.lp.work.requeue(session.key)
    await worked(world, harness)
    assert "ending" not in session.head.facts or "undo" not in session.head.facts["ending"]
    assert len(set(bank.calls)) == 1


# --- what is recorded ----------------------------------------------------------------------------


def _event(type: str, **data: Any) -> limpet.Event:
    data = {"name": "pay", "occurrence": 1, "args_hash": "h", "key": "k", **data}
    return limpet.Event(seq=1, id="e", type=type, actor="worker:w", at_us=1, data=data)


def _intent(tries: int) -> limpet.Event:
    return _event("effect.intended", tries=tries, span_id="s")


@pytest.mark.parametrize(
    ("events", "is_unknown"),
    [
        ([], False),
        ([_intent(1)], True),
        ([_intent(1), _event("effect.failed", error="no")], False),
        ([_intent(1), _event("effect.unknown", error="died")], True),
        ([_intent(1), _intent(2), _event("effect.failed", error="no")], True),
        ([_intent(1), _event("effect.unknown", error="died"), _intent(2)], True),
        ([_intent(1), _intent(2), _event("effect.succeeded", result=1)], False),
        ([_intent(1), _intent(2), _event("effect.failed", error="no", not_done=True)], False),
    ],
)
def test_a_record_is_unknown_until_an_event_settles_it(
    events: list[limpet.Event], is_unknown: bool
) -> None:
    """A failure settles nothing where another try has no outcome, also in logs of earlier
    releases, which recorded such a failure."""
    record = EffectRecord("k", "h")
    for event in events:
        record.take(event)
    assert record.is_unknown is is_unknown


# --- the rule -------------------------------------------------------------------------------------

ERROR, TIMEOUT, NOT_DONE = ConnectionError("503"), TimeoutError(), limpet.NotDone("declined")


@pytest.mark.parametrize(
    ("error", "maybe", "is_cut", "outcome"),
    [
        (ERROR, False, False, "failed"),
        (ERROR, True, False, "unknown"),
        (ERROR, False, True, "unknown"),
        (TIMEOUT, False, False, "unknown"),
        (limpet.EffectUnknown("pay"), False, False, "unknown"),
        (ExceptionGroup("", [ERROR, TIMEOUT]), False, False, "unknown"),
        (ExceptionGroup("", [ERROR, ERROR]), False, False, "failed"),
        (NOT_DONE, False, False, "failed"),
        (NOT_DONE, True, True, "failed"),
        (ExceptionGroup("", [NOT_DONE]), True, False, "unknown"),
    ],
)
def test_one_rule_decides_the_outcome(
    error: Exception, maybe: bool, is_cut: bool, outcome: str
) -> None:
    """Of every try of an effect, a tool and a compensation."""
    assert outcome_of(error, maybe=maybe, is_cut=is_cut) == outcome
