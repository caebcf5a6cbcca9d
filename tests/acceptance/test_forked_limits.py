"""A fork may not do what its original may not, and has nothing to spend until it is granted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import limpet

ADA = "user:ada"


async def refunds(turn: limpet.Turn) -> None:
    await turn.effect("refund", lambda: None)


async def spends(turn: limpet.Turn) -> None:
    await turn.say("5.0", cost=5.0)


async def woken(lp: limpet.Limpet, s: limpet.Session[Any], harness: Any) -> limpet.Woken:
    await s.append("user.message", {"text": "go"}, actor=ADA)
    return await lp.wake(s.key, harness)


async def test_a_fork_has_the_permissions_of_its_original(lp: limpet.Limpet) -> None:
    """As they are now, at whichever event it begins, and so has a fork of it."""
    await lp.permissions.put("careful", {"tools": {"refund": "deny"}}, actor=ADA)
    s = await lp.create("support", "ada", "p")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await s.setup.attach(permissions="careful")
    for fork in (await s.fork(), await s.fork(1), await (await s.fork()).fork()):
        assert fork.setup.current.permissions == "careful@1"
        assert isinstance((await woken(lp, fork, refunds)).error, limpet.ToolDenied)
        assert (await lp.get(fork.key)).setup.current.permissions == "careful@1"


async def test_a_fork_has_the_tools_of_its_original(lp: limpet.Limpet) -> None:
    """Each as it is bound there, with what it asks for and costs."""
    s = await lp.create("support", "ada", "p")
    tool = limpet.Tool("refund", permission="always_ask", cost=0.5)
    await s.tools.bind(limpet.ToolRegistry([tool]), actor=ADA)
    fork = await s.fork()
    assert fork.tools.bound == s.tools.bound
    assert (await woken(lp, fork, refunds)).reason == "requires_action"


async def test_a_fork_of_a_session_with_no_tools_to_use_has_none(lp: limpet.Limpet) -> None:
    """A binding without tools is one, and what was left out of it is still wanted."""
    refund = limpet.Tool("refund", required=False)
    registry = limpet.ToolRegistry([refund], authorize=lambda tool, session: "not for you")
    s = await lp.create("support", "ada", "p")
    await s.tools.bind(registry, actor=ADA)
    fork = await s.fork()
    assert isinstance((await woken(lp, fork, refunds)).error, limpet.ToolDenied)
    assert fork.head.facts["degraded"] == s.head.facts["degraded"]


async def test_a_fork_of_a_child_may_not_do_what_the_parent_may_not(lp: limpet.Limpet) -> None:
    """What the parent's worker forbids is a limit of the child, and of every fork of it."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")

    s = await lp.create("support", "ada", "p")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, delegates, permissions={"refund": "deny"})
    (child,) = await s.runs.children()
    fork = await (await lp.get(child)).fork()
    assert (fork.runs.parent, fork.setup.current.limits) == (None, {"refund": "deny"})
    assert isinstance((await woken(lp, fork, refunds)).error, limpet.ToolDenied)


async def test_a_fork_has_nothing_to_spend_until_it_is_granted(lp: limpet.Limpet) -> None:
    """Every limit of its original, and nothing in it; what its original has is left alone."""
    s = await lp.create("support", "ada", "p", budget=limpet.Budget(cost=1.0, tokens=100))
    for fork in (await s.fork(), await (await s.fork()).fork()):
        assert fork.runs.budget is not None
        assert fork.runs.budget.limit == fork.runs.budget.remaining == limpet.Budget(0.0, 0)
        assert (await woken(lp, fork, spends)).reason == "budget_reached"
        assert (await fork.refresh()).runs.usage.cost == 0
        await fork.runs.grant(limpet.Budget(cost=6.0, tokens=1), actor=ADA)
        assert (await lp.wake(fork.key, spends)).reason == "end_turn"
        await fork.refresh()
        assert fork.runs.budget.remaining == limpet.Budget(1.0, 1)
    await s.refresh()
    assert s.runs.budget is not None
    assert s.runs.budget.remaining == limpet.Budget(1.0, 100)


async def test_a_fork_has_the_limits_that_its_original_has(lp: limpet.Limpet) -> None:
    """And no other: of cost without one of tokens, timeouts; none where the original has none."""
    s = await lp.create("support", "ada", "p", budget=limpet.Budget(tokens=100))
    fork = await s.fork()
    assert fork.runs.budget is not None
    assert fork.runs.budget.limit == limpet.Budget(None, 0)
    idle = limpet.Timeouts(idle=timedelta(hours=1), absolute=timedelta(days=2))
    slow = await lp.create("support", "ada", "slow", timeouts=idle)
    assert (await slow.fork()).head.timeouts == idle
    free = await (await lp.create("support", "ada", "free")).fork()
    assert (free.runs.budget, free.head.timeouts, free.setup.current) == (
        None,
        None,
        limpet.Setup(),
    )
    assert (await woken(lp, free, spends)).reason == "end_turn"
    assert (await lp.maintenance.verify()).ok


async def test_tools_given_by_name_stay_the_limit_of_a_child(lp: limpet.Limpet) -> None:
    """For every fork of it, and when a registry with more of them binds it as it is resumed."""

    async def delegates(turn: limpet.Turn) -> None:
        for tools in (("search",), {"search"}, (name for name in ["search"])):
            await turn.delegate("research", "look", tools=tools)

    s = await lp.create("support", "ada", "p")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    assert (await lp.wake(s.key, delegates)).error is None
    lp.policies.lifecycle(
        "research", tools=limpet.ToolRegistry([limpet.Tool("search"), limpet.Tool("refund")])
    )
    for key in await s.runs.children():
        child = await lp.get(key)
        assert child.head.facts["delegation"]["tools"] == ["search"]
        for fork in (await child.fork(), await (await child.fork()).fork()):
            assert isinstance((await woken(lp, fork, refunds)).error, limpet.ToolDenied)
            assert (await lp.get(fork.key)).head.facts["given"] == ["search"]
            await fork.refresh()
            await fork.suspend(actor=ADA)
            await fork.resume(actor=ADA)
            assert set(fork.tools.bound) == {"search"}
        await child.suspend(actor=ADA)
        await child.resume(actor=ADA)
        assert set(child.tools.bound) == {"search"}
    assert (await lp.maintenance.verify()).ok
