"""Delegated sessions: what they inherit, and what they never get."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import limpet

ADA = "user:ada"


async def begun(lp: limpet.Limpet, **how: Any) -> limpet.Session[Any]:
    s = await lp.create("support", "ada", "p", **how)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    return s


async def only_child(lp: limpet.Limpet, s: limpet.Session[Any]) -> limpet.Session[Any]:
    (key,) = await s.runs.children()
    return await lp.get(key)


async def test_a_child_has_a_subset_of_its_parents_tools(lp: limpet.Limpet) -> None:
    """As they are bound there; none if none are named, and never one that the parent lacks."""
    tools: Any = ["search"]

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", tools=tools)

    s = await begun(lp)
    registry = limpet.ToolRegistry(
        [limpet.Tool("search", permission="always_ask"), limpet.Tool("refund")]
    )
    await s.tools.bind(registry, actor=ADA)
    assert (await lp.wake(s.key, delegates)).error is None
    child = await only_child(lp, s)
    assert child.tools.bound == {"search": s.tools.bound["search"]}
    for wrong, error in (
        (["shell"], limpet.errors.ToolAuthorizationFailed),
        ("search", limpet.InvalidInput),
        ([5], limpet.InvalidInput),
    ):
        tools = wrong
        await child.append("user.message", {"text": "more"}, actor=ADA)
        woken = await lp.wake(child.key, delegates)
        assert isinstance(woken.error, error)
        assert await child.runs.children() == ()


async def test_a_child_of_a_child_has_no_tool_that_its_parent_was_not_given(
    lp: limpet.Limpet,
) -> None:
    """Also where tools are only names, which nobody has bound."""

    async def first(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", tools=["search"])

    async def second(turn: limpet.Turn) -> None:
        await turn.delegate("reading", "read", tools=["search", "refund"])

    s = await begun(lp)
    await lp.wake(s.key, first)
    child = await only_child(lp, s)
    woken = await lp.wake(child.key, second)
    assert isinstance(woken.error, limpet.errors.ToolAuthorizationFailed)
    assert "refund" in str(woken.error)


async def test_a_child_runs_under_its_parents_permissions(lp: limpet.Limpet) -> None:
    """What the parent must ask for, the child must ask for."""
    done: list[str] = []

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("refund", lambda: done.append("refund"))

    s = await begun(lp)
    await lp.permissions.put("p", {"tools": {"refund": "always_ask"}}, actor=ADA)
    await s.setup.attach(permissions="p")
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    assert child.setup.current.permissions == "p@1"
    assert (await lp.wake(child.key, acts)).reason == "requires_action"
    assert done == []


async def test_what_a_bound_tool_asks_for_is_asked_for_in_every_child(lp: limpet.Limpet) -> None:
    """Also in a child of a child that binds the tool again without asking."""
    done: list[str] = []

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", tools=["refund", "search"])

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("search", lambda: done.append("search"))
        await turn.effect("refund", lambda: done.append("refund"))

    s = await begun(lp)
    tools = [limpet.Tool("refund", permission="always_ask"), limpet.Tool("search")]
    await s.tools.bind(limpet.ToolRegistry(tools), actor=ADA)
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    await lp.wake(child.key, delegates)
    below = await only_child(lp, child)
    free = [limpet.Tool("refund"), limpet.Tool("search")]
    await below.tools.bind(limpet.ToolRegistry(free), actor=ADA)
    expected = {"*": "deny", "refund": "always_ask", "search": "always_allow"}
    for each in (child, below):
        assert await each.setup.permissions() == expected
        await each.append("user.message", {"text": "more"}, actor=ADA)
        assert (await lp.wake(each.key, acts)).reason == "requires_action"
    assert done == ["search", "search"]


@pytest.mark.parametrize("bound", [True, False])
async def test_a_child_uses_the_tools_that_it_was_given_and_no_others(
    lp: limpet.Limpet, *, bound: bool
) -> None:
    """Nor does a child of it; where tools are only names, which nobody has bound, as well."""
    done: list[str] = []

    async def acts(turn: limpet.Turn) -> None:
        for name in ("search", "refund"):
            with suppress(limpet.ToolDenied):
                await turn.effect(name, lambda name=name: done.append(f"{turn.session.app} {name}"))
        if turn.session.app != "reading":
            below = "research" if turn.session.app == "support" else "reading"
            await turn.delegate(below, "look", tools=["search"] if below == "research" else None)

    s = await begun(lp)
    if bound:
        tools = [limpet.Tool("search"), limpet.Tool("refund")]
        await s.tools.bind(limpet.ToolRegistry(tools), actor=ADA)
    await lp.wake(s.key, acts)
    child = await only_child(lp, s)
    await lp.wake(child.key, acts)
    below = await only_child(lp, child)
    await lp.wake(below.key, acts)
    assert done == ["support search", "support refund", "research search"]
    assert await child.setup.check_permission("search") == "always_allow"
    assert await child.setup.check_permission("refund") == "deny"
    assert await below.setup.check_permission("search") == "deny"
    assert await below.setup.check_permission("memory_write") == "always_allow"


async def test_what_a_child_has_from_its_parent_is_a_part_of_its_setup(lp: limpet.Limpet) -> None:
    """It shows in the fingerprint, and newer documents do not take it away."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")

    s = await begun(lp)
    await s.tools.bind(limpet.ToolRegistry([limpet.Tool("refund", permission="always_ask")]))
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    assert child.setup.current.limits == {"refund": "always_ask"}
    assert await child.setup.compare() == ()
    other = await lp.create("research", "ada")
    assert child.setup.current.fingerprint != other.setup.current.fingerprint
    (change,) = other.setup.current.compare(child.setup.current)
    assert str(change) == "limit refund was added (always_ask)"


async def test_a_child_that_its_parent_runs_has_the_permissions_of_the_parents_worker(
    lp: limpet.Limpet,
) -> None:
    """What the worker forbids the parent, the parent cannot have a child do in the same process."""
    done: list[str] = []

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("refund", lambda: done.append("refund"))

    async def runs(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp, harnesses={"research": acts})
        made = await tools.call("session_delegate", {"app": "research", "message": "refund"})
        await tools.call("session_run_child", {"id": made["id"]})

    s = await begun(lp)
    for permission in ("always_ask", "deny"):
        await s.append("user.message", {"text": "go"}, actor=ADA)
        woken = await lp.wake(s.key, runs, permissions={"refund": permission})
        assert woken.error is None
    assert len(await s.runs.children()) == 1, "the one who was denied has ended"
    assert done == []


async def test_a_child_keeps_to_the_permissions_of_its_parents_worker_whoever_runs_it(
    lp: limpet.Limpet,
) -> None:
    """Another worker, which allows everything, asks or refuses all the same; so do its children."""
    done: list[str] = []

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look")

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("search", lambda: done.append("search"))
        await turn.effect("refund", lambda: done.append("refund"))

    s = await begun(lp)
    how: Any = {"permissions": {"*": "deny", "search": "always_allow", "refund": "always_ask"}}
    await lp.wake(s.key, delegates, **how)
    child = await only_child(lp, s)
    await lp.wake(child.key, delegates)
    below = await only_child(lp, child)
    for each in (child, below):
        assert await each.setup.check_permission("other") == "deny"
        await each.append("user.message", {"text": "more"}, actor=ADA)
        assert (await lp.wake(each.key, acts)).reason == "requires_action"
    assert done == ["search", "search"]


async def test_a_share_is_a_part_of_what_the_parent_has_left(lp: limpet.Limpet) -> None:
    """Of each limit it has, after what it has spent; the parent keeps the rest."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.say("on it", cost=0.2, usage={"input": 50, "output": 50})
        await turn.delegate("research", "look", budget=limpet.Share(0.25))

    s = await begun(lp, budget=limpet.Budget(cost=1.0, tokens=1_000))
    await lp.wake(s.key, delegates)
    child = await only_child(lp, s)
    assert child.runs.budget is not None
    assert child.runs.budget.limit == limpet.Budget(cost=0.2, tokens=225)
    await s.refresh()
    assert s.runs.budget is not None
    assert s.runs.budget.remaining == limpet.Budget(cost=0.6, tokens=675)


@pytest.mark.parametrize("share", [0, 1.5, -0.5, True, "half"])
async def test_a_share_is_between_0_and_1(lp: limpet.Limpet, share: Any) -> None:
    """Anything else is refused, and so is a share of no budget; no child is created."""

    async def delegates(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", budget=limpet.Share(share))

    async def fair(turn: limpet.Turn) -> None:
        await turn.delegate("research", "look", budget=limpet.Share(0.5))

    s = await begun(lp)
    assert isinstance((await lp.wake(s.key, fair)).error, limpet.InvalidInput)
    await s.runs.grant(1.0, actor=ADA)
    assert isinstance((await lp.wake(s.key, delegates)).error, limpet.InvalidInput)
    assert await s.runs.children() == ()


async def test_a_child_has_its_parents_owner_and_a_scope_of_its_own(lp: limpet.Limpet) -> None:
    """Each delegation is another session of the same user, without the state of its parent."""

    async def delegates(turn: limpet.Turn) -> None:
        for _ in range(2):
            await turn.delegate("support", "look", fields={"order": 7})

    s = await begun(lp, state={"secret": 1})
    await lp.wake(s.key, delegates)
    keys = await s.runs.children()
    assert {key.user for key in keys} == {"ada"}
    assert len({*keys, s.key}) == 3
    assert [dict((await lp.get(key)).state) for key in keys] == [{"order": 7}] * 2


async def test_a_parent_completes_after_its_children(lp: limpet.Limpet) -> None:
    """While one is at work, complete() is refused and names it."""

    async def delegates(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await turn.delegate("research", "look")

    async def looks(turn: limpet.Turn) -> None:
        await turn.say("found")

    s = await begun(lp)
    await lp.wake(s.key, delegates)
    (child,) = await s.runs.children()
    with pytest.raises(limpet.errors.GuardFailed, match=child.id):
        await s.complete(actor=ADA)
    await lp.wake(child, looks)
    assert (await s.complete(actor=ADA)).phase == "completed"


async def test_a_tree_has_every_session_that_was_delegated(lp: limpet.Limpet) -> None:
    """From the root, with those that have ended and how; a deleted one is still an edge."""

    async def delegates(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await turn.delegate("research", "a", title="first")
            await turn.delegate("research", "b")

    async def reads(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message" and turn.inputs[0].data["text"] == "a":
            await turn.delegate("reading", "c")

    async def quiet(turn: limpet.Turn) -> None:
        await turn.say("invoice 4711")

    s = await begun(lp)
    await lp.wake(s.key, delegates)
    one, two = await s.runs.children()
    await lp.wake(one, reads)
    await lp.wake(two, quiet)
    (three,) = await lp.session(one).runs.children()
    tree = await s.runs.tree()
    assert tree.edges == ((s.key, one), (s.key, two), (one, three))
    assert ((await lp.get(three)).runs.parent, (await lp.get(one)).runs.parent) == (one, s.key)
    assert s.runs.parent is None
    first, second = tree.children
    assert (first.title, first.stop_reason, second.stop_reason) == ("first", None, "end_turn")
    assert (first.output, second.output, tree.at_work) == (None, "invoice 4711", (one,))
    await lp.delete(two)
    assert [child.gone for child in (await s.runs.tree()).children] == [False, True]
    assert (await lp.session(three).runs.tree()).edges == ()
