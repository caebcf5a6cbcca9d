"""Budgets as a user meets them: what is spent counts, and a child has the limits of its parent."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.runtime.wake import Wake, harness_options

ADA = "user:ada"


async def begun(lp: limpet.Limpet, **how: Any) -> limpet.Session[Any]:
    s = await lp.create("support", "ada", "p", **how)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    return s


async def only_child(lp: limpet.Limpet, s: limpet.Session[Any]) -> limpet.Session[Any]:
    (key,) = await s.runs.children()
    return await lp.get(key)


def view(s: limpet.Session[Any]) -> limpet.BudgetView:
    assert s.runs.budget is not None
    return s.runs.budget


def says(cost: float) -> Any:
    async def harness(turn: limpet.Turn) -> None:
        await turn.say("so much", cost=cost)

    return harness


# --- what is spent counts ------------------------------------------------------------------------


async def test_what_was_said_to_cost_stops_the_next_turn(lp: limpet.Limpet) -> None:
    """Also if nothing was reserved: it is held until something is left, and then runs."""
    s = await begun(lp, budget=0.01)
    assert (await lp.wake(s.key, says(20.0))).reason == "end_turn"
    await s.append("user.message", {"text": "more"}, actor=ADA)
    woken = await lp.wake(s.key, says(1.0))
    assert (woken.ran, woken.reason) == (True, "budget_reached")
    assert isinstance(woken.error, limpet.BudgetReached)
    assert (woken.error.amount, woken.error.left) == (None, pytest.approx(-19.99))
    await s.refresh()
    assert (s.stop_reason, s.head.pending, view(s).spent.cost) == ("budget_reached", 1, 20.0)
    assert await lp.work.claim("w", app="support") == ()
    await s.runs.grant(19.99, actor=ADA)
    assert await lp.work.claim("w", app="support") == (), "nothing is left yet"
    await s.runs.grant(0.5, actor=ADA)
    (lease,) = await lp.work.claim("w", app="support")
    assert (await Wake(lp, lease, harness_options(says(0.25))).run()).reason == "end_turn"
    await s.refresh()
    assert (view(s).spent.cost, s.head.pending) == (20.25, 0)


async def test_no_turn_begins_when_the_budget_is_just_used_up(lp: limpet.Limpet) -> None:
    """Of tokens as of cost; an interrupt ends the turn that is held."""
    s = await begun(lp, budget=limpet.Budget(tokens=100))

    async def speaks(turn: limpet.Turn) -> None:
        await turn.say("long", usage={"input": 60, "output": 40})

    assert (await lp.wake(s.key, speaks)).reason == "end_turn"
    await s.append("user.message", {"text": "more"}, actor=ADA)
    assert (await lp.wake(s.key, speaks)).reason == "budget_reached"
    assert (await lp.wake(s.key, speaks)).ran is False
    await s.interrupt(actor=ADA)
    await lp.wake(s.key, speaks)
    await s.refresh()
    assert (s.stop_reason, s.head.pending, s.runs.usage.tokens) == ("interrupted", 0, 100)


async def test_a_turn_goes_on_with_nothing_left_and_its_calls_are_refused_beyond(
    lp: limpet.Limpet,
) -> None:
    """A call is made at the limit, and none past it; what was spent is always recorded."""
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("all of it", cost=1.0)
        await turn.step("at the limit", done.append, "step")
        await turn.effect("mail", lambda: done.append("mail"))
        await turn.say("beyond", cost=0.5)
        call: Any = getattr(turn, turn.inputs[0].data["verb"])
        await call("past it", *CALLS[turn.inputs[0].data["verb"]](done))

    for number, verb in enumerate(CALLS):
        s = await lp.create("support", "ada", f"s{number}", budget=1.0)
        await s.append("user.message", {"text": "hi", "verb": verb}, actor=ADA)
        done.clear()
        woken = await lp.wake(s.key, harness)
        assert isinstance(woken.error, limpet.BudgetReached), verb
        assert (woken.reason, done) == ("budget_reached", ["step", "mail"])
        await s.refresh()
        assert view(s).spent.cost == 1.5
        await s.runs.grant(1.0, actor=ADA)
        assert (await lp.wake(s.key, harness)).reason == "end_turn"


CALLS: dict[str, Any] = {
    "step": lambda done: (done.append, "past"),
    "stream": lambda done: (["past"],),
    "effect": lambda done: (lambda: done.append("past"),),
    "delegate": lambda done: ("past",),
}


async def test_a_child_with_nothing_left_ends_and_its_parent_decides(lp: limpet.Limpet) -> None:
    """It was given nothing, or has used it up: its turn is over, and the parent learns why."""
    results: list[Any] = []

    async def manages(turn: limpet.Turn) -> None:
        child = await turn.delegate("research", "look", budget=0)
        results.append((await child.result())["stop_reason"])

    s = await begun(lp, budget=1.0)
    await lp.wake(s.key, manages)
    (child,) = await s.runs.children()
    assert (await lp.wake(child, says(5.0))).reason == "budget_reached"
    assert (await lp.wake(s.key, manages)).reason == "end_turn"
    await s.refresh()
    assert (results, view(s).remaining.cost) == (["budget_reached"], 1.0)


# --- a child -------------------------------------------------------------------------------------


async def test_a_child_has_every_limit_of_its_parent(lp: limpet.Limpet) -> None:
    """Where the call names none, a quarter of what is left; where it names one, that."""
    given: list[Any] = [None, 0.2, limpet.Budget(tokens=10), limpet.Budget(cost=0.1, tokens=20)]

    async def delegates(turn: limpet.Turn) -> None:
        for budget in given:
            await turn.delegate("research", "look", budget=budget)

    s = await begun(lp, budget=limpet.Budget(cost=1.0, tokens=1_000))
    await lp.wake(s.key, delegates)
    limits = [view(await lp.get(key)).limit for key in await s.runs.children()]
    assert limits == [
        limpet.Budget(0.25, 250),
        limpet.Budget(0.2, 187),
        limpet.Budget(0.1375, 10),
        limpet.Budget(0.1, 20),
    ]
    assert view(s).remaining == limpet.Budget(0.3125, 533)


async def test_a_child_of_a_parent_without_a_limit_has_none(lp: limpet.Limpet) -> None:
    """But what it uses is counted against a limit that its parent is granted meanwhile."""

    async def delegates(turn: limpet.Turn) -> None:
        await (await turn.delegate("research", "look")).result()

    s = await begun(lp)
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    assert (s.runs.budget, child.runs.budget) == (None, None)
    await s.runs.grant(10.0, actor=ADA)
    await lp.wake(child.key, says(3.0))
    await s.refresh()
    assert (view(s).limit.cost, view(s).delegated.cost, view(s).remaining.cost) == (10.0, 3.0, 7.0)
    await child.refresh()
    assert (child.runs.budget, child.runs.usage.cost) == (None, 3.0)


@pytest.mark.parametrize("cost", [0.01, 50.0])
@pytest.mark.parametrize("limit", [10.0, 0.1])
async def test_the_end_of_a_child_never_changes_the_limit_of_its_parent(
    lp: limpet.Limpet, limit: float, cost: float
) -> None:
    """However much it was lent and has spent, beyond its budget too: the sum over both stays."""
    ways: list[Any] = [None, 0, limit / 2, limpet.Share(1.0)]

    for number, way in enumerate(ways):
        s = await lp.create("support", "ada", f"s{number}", budget=limit)

        async def lends(turn: limpet.Turn, way: Any = way) -> None:
            if turn.inputs[0].type == "user.message":
                await turn.delegate("research", "look", budget=way)

        await s.append("user.message", {"text": "hi"}, actor=ADA)
        await lp.wake(s.key, lends)
        child = await only_child(lp, s)
        await lp.wake(child.key, says(cost))
        await child.refresh()
        await s.refresh()
        assert view(s).limit.cost == limit
        assert view(s).remaining.cost == pytest.approx(limit - child.runs.usage.cost)
        assert view(child).remaining.cost == 0
        assert not await s.runs.children()


async def test_a_grant_to_a_child_is_one_to_the_tree(lp: limpet.Limpet) -> None:
    """What it does not use of it goes to its parent too, and through that one to the top."""

    async def delegates(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await (await turn.delegate("research", "look", budget=0.4)).result()

    s = await begun(lp, budget=1.0)
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    await lp.wake(child.key, delegates)
    grandchild = await only_child(lp, child)
    await grandchild.runs.grant(2.0, actor=ADA)
    await child.runs.grant(limpet.Budget(cost=0.5, tokens=7), actor=ADA)
    await lp.wake(grandchild.key, says(0.7))
    await child.refresh()
    assert view(child).remaining.cost == pytest.approx(0.4 + 0.5 + 2.0 - 0.7)
    await lp.wake(child.key, delegates)
    await s.refresh()
    assert view(s).remaining == limpet.Budget(pytest.approx(1.0 + 0.5 + 2.0 - 0.7), None)  # type: ignore[arg-type]  # as a number
    assert view(s).limit.cost == 3.5


async def test_a_child_whose_parent_is_gone_keeps_what_is_left(lp: limpet.Limpet) -> None:
    """Nobody could take it back, and it must not vanish."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", budget=0.4, cascade=False)

    s = await begun(lp, budget=1.0)
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    await lp.delete(s.key)
    assert (await lp.wake(child.key, says(0.1))).reason == "end_turn"
    await child.refresh()
    assert view(child).remaining.cost == pytest.approx(0.3)


async def test_a_reservation_without_an_amount_can_be_settled(lp: limpet.Limpet) -> None:
    """A harness that reserves what it was told to need need not ask whether that is anything."""

    async def harness(turn: limpet.Turn) -> None:
        async with turn.reserve() as held:
            held.settle(cost=0.01)

    s = await lp.create("support", "ada", budget=1.0)
    await s.append("user.message", {"text": "go"}, actor="user:ada")
    assert (await lp.wake(s.key, harness)).error is None
