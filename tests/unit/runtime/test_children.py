"""Children and budgets: work that is delegated, and what it may use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.model.facts.running import budgets
from limpet.model.limits import DELEGATION_DEPTH_MAX
from limpet.runtime.wake import Wake, harness_options
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def research(turn: limpet.Turn) -> None:
    await turn.say(f"found {turn.inputs[0].data['text']}", cost=0.05)


async def asks_a_child(turn: limpet.Turn) -> None:
    if turn.inputs[0].type != "user.message":
        return
    child = await turn.delegate("research", "the invoice", title="look", budget=0.2)
    result = await child.result()
    await turn.say(f"{result['output']}, {result['stop_reason']}")


async def work_children(world: World, harness: Any = research, app: str = "research") -> None:
    while leases := await world.lp.work.claim("c", app=app, lease_seconds=30):
        for lease in leases:
            await Wake(world.lp, lease, harness_options(harness)).run()
    await world.session.refresh()


async def test_a_parent_is_woken_by_the_end_of_its_child(world: World) -> None:
    """In the very commit that closes the child, whichever worker ran it."""
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(asks_a_child)
    assert session.stop_reason == "requires_action"
    (child,) = await session.runs.children()
    assert (child.app, child.user) == ("research", "ada")
    assert not await world.work(asks_a_child), "it waits for the child"
    await work_children(world)
    await world.work(asks_a_child)
    assert await world.said() == ["found the invoice, end_turn"]
    assert not await session.runs.children()
    assert not session.head.pending


async def test_the_result_of_a_terminated_child_has_every_name(world: World) -> None:
    """What it has not said is None, so that a harness reads one result like another."""
    seen: list[Any] = []

    async def manages(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            seen.append(await (await turn.delegate("research", "the invoice")).result())

    session = await world.begin("hi")
    await world.work(manages)
    (key,) = await session.runs.children()
    await (await world.lp.get(key)).terminate()
    await work_children(world)
    await world.work(manages)
    (result,) = seen
    told = (result["stop_reason"], result["summary"], result["output"])
    assert told == ("terminated", None, None)


async def test_a_run_that_dies_creates_no_second_child(world: World) -> None:
    """The child that was created is found again."""
    for at, recorded in ((1, True), (1, False), (2, True), (2, False)):
        session = await world.begin("hi")
        await session.runs.grant(1.0, actor="user:ada")
        await world.die(asks_a_child, at, recorded=recorded)
        world.later()
        await world.work(asks_a_child)
        assert len(await session.runs.children()) == 1
        await work_children(world)
        await world.work(asks_a_child)
        assert len(await world.said()) == 1


async def test_a_child_has_nothing_but_what_it_was_given(world: World) -> None:
    """Fields and tools by name; not the parent's state, inputs or mounts."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.append("note.taken", {}, set={"secret": 1})
        await turn.delegate("research", "x", fields={"order": 7}, tools=["search"])

    session = await world.begin("hi")
    await world.work(harness)
    (key,) = await session.runs.children()
    child = await world.lp.get(key)
    assert dict(child.state) == {"order": 7}
    assert child.head.facts["delegation"]["tools"] == ["search"]
    assert session.state["secret"] == 1


@pytest.mark.parametrize("cost", [1e10, 2.0**52])
async def test_a_child_ends_however_much_it_has_spent(
    world: World, cost: float, tmp_path: Path
) -> None:
    """Its account is one that the parent can record, whatever a harness says that a call took."""

    async def spends(turn: limpet.Turn) -> None:
        for _ in range(2):
            await turn.say("much", cost=cost, usage={"input": 2**62, "output": 2**62})

    async def manages(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await (await turn.delegate("research", "x", budget=1e9)).result()

    session = await world.begin("hi")
    await session.runs.grant(4e12, actor="user:ada")
    await world.work(manages)
    await work_children(world, spends)
    await world.work(manages)
    assert (session.stop_reason, await session.runs.children()) == ("end_turn", ())
    assert session.runs.budget is not None
    assert session.runs.budget.delegated.tokens == budgets.AMOUNT_MAX
    await world.lp.export(session.key, tmp_path / "one.limpet")
    async with limpet.open("memory://") as other:
        await other.import_(tmp_path / "one.limpet")
        assert (await other.get(session.key)).runs.budget == session.runs.budget


async def test_delegation_is_bounded_in_depth(world: World) -> None:
    """A chain of children comes to an end, with an error."""

    async def deeper(turn: limpet.Turn) -> None:
        await (await turn.delegate("support", "deeper")).result()

    await world.begin("hi")
    found = await world.work(deeper, retries=0)
    assert sum(w.reason == "requires_action" for w in found) == DELEGATION_DEPTH_MAX
    assert isinstance(found[-1].error, limpet.errors.InvalidEvent)


async def test_children_at_once_are_bounded(world: World) -> None:
    """So many may be at work for one session."""

    async def many(turn: limpet.Turn) -> None:
        for _ in range(65):
            await turn.delegate("research", "x")

    session = await world.begin("hi")
    (woken,) = await world.work(many, retries=0)
    assert isinstance(woken.error, limpet.errors.InvalidEvent)
    assert len(await session.runs.children()) == 64


async def test_a_child_with_a_revisit_has_not_ended(world: World) -> None:
    """It ends when nothing is pending, timers included."""
    from datetime import timedelta

    async def comes_back(turn: limpet.Turn) -> None:
        if turn.inputs:
            turn.revisit(timedelta(minutes=1), "wait")
        else:
            await turn.say("late")

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(asks_a_child)
    await work_children(world, comes_back)
    assert not await world.work(asks_a_child)
    world.later(61)
    await work_children(world, comes_back)
    await world.work(asks_a_child)
    assert await world.said() == ["late, end_turn"]


async def test_an_interrupt_reaches_the_children(world: World) -> None:
    """They are interrupted too, and the parent is not woken by their end."""
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(asks_a_child)
    (key,) = await session.runs.children()
    await session.interrupt()
    await world.work(asks_a_child)
    await work_children(world)
    child = await world.lp.get(key)
    assert child.stop_reason == "interrupted"
    assert not await world.work(asks_a_child)
    assert not session.head.pending
    assert not await session.runs.children()


async def test_a_parent_that_ends_before_it_lets_go_of_an_interrupted_child_is_told(
    world: World,
) -> None:
    """The child was interrupted with its parent, whose worker died before it recorded that; then
    the parent was terminated. It must not count the child for good."""
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(asks_a_child)
    await session.interrupt("stop", actor="user:ada")
    assert await world.die(asks_a_child, 2, recorded=False)  # the first interrupts the child
    world.later()
    await session.terminate("enough", actor="user:ada")
    await world.work(asks_a_child)
    await work_children(world)
    await session.refresh()
    assert not await session.runs.children()
    assert session.runs.budget is not None
    assert session.runs.budget.remaining.cost == 1.0


# --- budgets -------------------------------------------------------------------------------------


def total(session: limpet.Session[Any]) -> int:
    """What is spent, reserved and left, in millionths."""
    view = session.runs.budget
    assert view is not None
    parts = (view.spent.cost, view.reserved.cost, view.remaining.cost)
    return sum([round((part or 0) * budgets.MILLION) for part in parts])


async def test_the_sum_over_the_tree_never_changes(world: World) -> None:
    """Before, while and after a child works, nothing appears and nothing vanishes."""
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")

    async def whole() -> int:
        await session.refresh()
        kids = [await world.lp.get(key) for key in keys]
        return total(session) + sum(total(kid) for kid in kids)

    keys: list[limpet.Key] = []
    assert await whole() == 1_000_000
    await world.work(asks_a_child)
    keys += await session.runs.children()
    assert session.runs.budget is not None
    assert session.runs.budget.remaining.cost == 0.8
    assert await whole() == 1_000_000
    await work_children(world)
    assert await whole() == 1_000_000
    await world.work(asks_a_child)
    assert await whole() == 1_000_000
    assert session.runs.budget is not None
    assert session.runs.budget.remaining.cost == 0.95


async def test_a_call_beyond_the_budget_is_refused(world: World) -> None:
    """Before it is made; the turn stops with budget_reached."""
    called = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("cheap", lambda: called.append(1), max_cost=0.4)
        await turn.step("dear", lambda: called.append(2), max_cost=0.7)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.BudgetReached)
    assert (session.stop_reason, called) == ("budget_reached", [1])
    assert session.runs.budget is not None
    assert (session.runs.budget.spent.cost, session.runs.budget.reserved.cost) == (0.4, 0.0)


async def test_a_turn_that_reached_its_budget_goes_on_when_enough_is_granted(world: World) -> None:
    """Its input is not processed. Until then nobody claims it, also if another input comes."""
    called: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("cheap", lambda: called.append(1), max_cost=0.4)
        await turn.step("dear", lambda: called.append(2), max_cost=0.7)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(harness)
    assert (session.stop_reason, session.head.pending) == ("budget_reached", 1)
    await world.send("are you there?")
    await session.runs.grant(0.05, actor="user:ada")
    assert not await world.work(harness), "not enough"
    woken = await world.lp.wake(session.key, harness)
    assert (woken.ran, woken.reason) == (False, "budget_reached")
    await session.runs.grant(0.05, actor="user:ada")
    first, second = await world.work(harness)
    assert (first.reason, called[:2]) == ("end_turn", [1, 2]), "the first step is not repeated"
    assert second.reason == "budget_reached", "the next turn, of the other input"
    wakes = [each.why for each in await session.runs.activations()]
    assert sorted(wakes) == ["input", "input", "retry"]


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_grant_that_comes_while_the_wake_is_closed_counts(
    world: World, tokens: bool
) -> None:
    """Whoever is first: what is left is judged when the turn stops, not when it was refused."""
    amount = limpet.Budget(tokens=70) if tokens else limpet.Budget(cost=0.7)

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.step("dear", lambda: 1, max_cost=amount.cost, max_tokens=amount.tokens)
        except limpet.BudgetReached:
            await world.lp.session(world.session.key, actor="user:ada").runs.grant(amount)
            raise

    session = await world.begin("hi")
    await session.runs.grant(limpet.Budget(cost=0.1, tokens=10), actor="user:ada")
    reasons = [woken.reason for woken in await world.work(harness)]
    world.later(2)  # what was given back undone is held back for a moment
    reasons += [woken.reason for woken in await world.work(harness)]
    assert reasons == ["budget_reached", "end_turn"]
    assert session.head.pending == 0


async def test_a_turn_that_reached_its_budget_can_be_interrupted(world: World) -> None:
    """Its input is done with then, and the next one is a turn of its own."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "dear":
            await turn.step("dear", lambda: 1, max_cost=2)

    session = await world.begin("dear")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(harness)
    await session.interrupt(actor="user:ada")
    await world.send("cheap")
    await world.work(harness)
    assert (session.stop_reason, session.head.pending) == ("end_turn", 0)


async def test_an_interrupt_that_comes_before_the_turn_is_held_ends_it(world: World) -> None:
    """It is not held then: no grant would come, and a worker would claim it again and again."""

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.step("dear", lambda: 1, max_cost=2)
        except limpet.BudgetReached:
            await world.lp.session(world.session.key, actor="user:ada").interrupt()
            raise

    session = await world.begin("dear")
    await session.runs.grant(1.0, actor="user:ada")
    reasons = [woken.reason for woken in await world.work(harness)]
    assert reasons == ["budget_reached", "settled"]
    assert (session.stop_reason, session.head.pending) == ("interrupted", 0)


async def test_a_turn_waits_for_every_limit_that_is_overdrawn(world: World) -> None:
    """Tokens that messages have overdrawn refuse every call, also one that asks for none."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("long", usage={"output": 20})
        await turn.step("dear", lambda: 1, max_cost=2)

    session = await world.begin("hi")
    await session.runs.grant(limpet.Budget(cost=1.0, tokens=10), actor="user:ada")
    await world.work(harness)
    assert session.stop_reason == "budget_reached"
    await session.runs.grant(1.0, actor="user:ada")
    assert not await world.work(harness), "it has the cost, and no tokens"
    await session.runs.grant(limpet.Budget(tokens=10), actor="user:ada")
    assert not await world.work(harness), "nothing is left, which is not enough"
    await session.runs.grant(limpet.Budget(tokens=1), actor="user:ada")
    assert [woken.reason for woken in await world.work(harness)] == ["end_turn"]


async def test_a_child_that_reaches_its_budget_ends(world: World) -> None:
    """Nobody else could grant it more: the rest goes back, and the parent decides."""

    async def spends(turn: limpet.Turn) -> None:
        await turn.step("dear", lambda: 1, max_cost=0.5)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(asks_a_child)
    await work_children(world, spends)
    await world.work(asks_a_child)
    assert await world.said() == ["None, budget_reached"]
    assert (session.head.pending, session.runs.budget.remaining.cost) == (0, 1.0)  # type: ignore[union-attr]  # it has one


async def test_a_budget_that_is_not_the_sessions_own_is_a_failure(world: World) -> None:
    """It is tried again later: no grant would ever be waited for."""

    async def harness(turn: limpet.Turn) -> None:
        raise limpet.BudgetReached("cost", 2, 1)

    session = await world.begin("hi")
    await world.work(harness)
    assert (session.stop_reason, session.head.pending) == ("rescheduling", 1)


async def test_a_reservation_settles_at_what_was_used(world: World) -> None:
    """Or at all of it, if nobody says."""

    async def harness(turn: limpet.Turn) -> None:
        async with turn.reserve(cost=0.5, tokens=100) as reservation:
            reservation.settle(cost=0.1, tokens=30)
        async with turn.reserve(cost=0.2):
            pass

    session = await world.begin("hi")
    await session.runs.grant(limpet.Budget(cost=1.0, tokens=1_000), actor="user:ada")
    await world.work(harness)
    assert session.runs.budget is not None
    assert session.runs.budget.spent == limpet.Budget(0.3, 30)
    assert session.runs.budget.remaining == limpet.Budget(0.7, 970)


async def test_the_reservation_of_a_dead_run_settles_at_its_maximum(world: World) -> None:
    """Nobody knows what it has used."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("think", lambda: 1, max_cost=0.25)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    assert await world.die(harness, 2, recorded=False)
    world.later()
    await world.work(harness)
    assert session.runs.budget is not None
    assert session.runs.budget.spent.cost == 0.5
    assert session.runs.budget.reserved.cost == 0


@pytest.mark.parametrize("inside", [True, False])
async def test_a_block_is_reserved_once_however_often_its_turn_runs(
    world: World, inside: bool
) -> None:
    """The turn pauses inside the block, or after it; what was settled is not paid again."""

    async def harness(turn: limpet.Turn) -> None:
        async with turn.reserve(cost=0.6) as reservation:
            if inside:
                await turn.ask("rate", {})
            reservation.settle(cost=0.05)
        if not inside:
            await turn.ask("rate", {})

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(harness)
    assert session.runs.budget is not None
    assert session.runs.budget.reserved.cost == (0.6 if inside else 0)
    await session.answer(session.blocked_on[0].id, 1, actor="user:ada")
    world.store.commits = 0
    await world.work(harness)
    assert world.store.commits == (2 if inside else 1)  # nothing that is recorded is sent again
    assert session.stop_reason == "end_turn"
    assert session.runs.budget.spent.cost == 0.05
    assert session.runs.budget.remaining.cost == 0.95


async def test_a_block_that_a_dead_run_left_is_paid_and_reserved_again(world: World) -> None:
    """All of the first counts as used; the second, which pauses, settles at what it used."""

    async def harness(turn: limpet.Turn) -> None:
        async with turn.reserve(cost=0.25) as reservation:
            await turn.step("think", lambda: 1)
            await turn.ask("rate", {})
            reservation.settle(cost=0.05)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    assert await world.die(harness, 2, recorded=False)
    world.later()
    await world.work(harness)
    assert session.runs.budget is not None
    assert (session.runs.budget.spent.cost, session.runs.budget.reserved.cost) == (0.25, 0.25)
    await session.answer(session.blocked_on[0].id, 1, actor="user:ada")
    await world.work(harness)
    assert (session.runs.budget.spent.cost, session.runs.budget.reserved.cost) == (0.3, 0.0)


@pytest.mark.parametrize("say", [True, False])
async def test_a_stream_uses_what_its_model_says_and_not_its_maximum_too(
    world: World, say: bool
) -> None:
    """A message counts its own cost, and its reservation only what it does not say."""
    pieces = ["a", {"text": "b", "cost": 0.03, "usage": {"input": 5, "output": 6}}]

    async def harness(turn: limpet.Turn) -> None:
        await turn.stream("answer", pieces, say=say, max_cost=0.1, max_tokens=100)
        await turn.stream("other", ["c"], say=say, max_cost=0.2)

    session = await world.begin("hi")
    await session.runs.grant(limpet.Budget(cost=1.0, tokens=1_000), actor="user:ada")
    await world.work(harness)
    assert session.runs.budget is not None
    assert session.runs.budget.spent == limpet.Budget(0.23, 11)


async def test_a_call_and_its_settlement_are_one_commit(world: World) -> None:
    """The reservation, the step, the end of the turn; a worker that dies in between pays once."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("think", lambda: 1, max_cost=0.25)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    assert await world.die(harness, 3, recorded=True)
    assert world.store.commits == 3
    await session.refresh()
    assert session.runs.budget is not None
    assert (session.runs.budget.spent.cost, session.stop_reason) == (0.25, "end_turn")


async def test_racing_reservations_never_exceed_the_budget(world: World) -> None:
    """The commit refuses, whatever each of them believed."""
    refused = 0

    async def harness(turn: limpet.Turn) -> None:
        nonlocal refused

        async def one() -> None:
            nonlocal refused
            try:
                await turn.step("think", lambda: 1, max_cost=0.3)
            except limpet.BudgetReached:
                refused += 1

        await asyncio.gather(*[one() for _ in range(5)])

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(harness)
    assert refused == 2
    assert session.runs.budget is not None
    assert session.runs.budget.spent.cost == 0.9


async def test_a_session_without_a_budget_is_counted_and_not_refused(world: World) -> None:
    """usage has what was said; there is no limit."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("x", usage={"input": 900, "output": 120, "cache_read": 7}, cost=0.004)

    session = await world.begin("hi")
    await world.work(harness)
    assert session.runs.usage == limpet.Usage(1, 900, 120, 7, 0.004)
    assert session.runs.budget is None


@pytest.mark.parametrize("wrong", [-1, "x", True, float("nan")], ids=str)
async def test_a_budget_is_a_number_from_zero(world: World, wrong: Any) -> None:
    """Anything else is refused."""
    session = await world.begin()
    with pytest.raises(limpet.errors.InvalidEvent):
        await session.runs.grant(wrong, actor="user:ada")
