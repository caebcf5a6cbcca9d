"""Tools over the life of a session: an app's registry, substitutes, permissions and locks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet import Tool, ToolRegistry
from limpet.model.facts.running.setup import tools_bound
from limpet.store.memory import MemoryStore
from limpet.testing.clock import FakeClock

ADA = "user:ada"


async def suspended(lp: limpet.Limpet, *tools: Tool) -> limpet.Session:
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(ToolRegistry(tools))
    await s.suspend()
    return s


async def test_activating_binds_the_tools_of_the_app(lp: limpet.Limpet) -> None:
    """In one commit with the transition, which says so."""
    lp.policies.lifecycle(
        "support", tools=ToolRegistry([Tool("search"), Tool("paint", required=False)])
    )
    s = await lp.create("support", "ada", phase="init", actor=ADA)
    t = await s.activate()
    assert set(s.tools.bound) == {"search", "paint"}
    assert t.side_effects == ("bind_tools", "initialize_memory", "session.activated")
    types = [event.type for event in await s.read()]
    assert types == ["session.created", "session.activated", "session.tools_bound"]


async def test_a_session_that_lacks_a_tool_is_not_activated(lp: limpet.Limpet) -> None:
    """Tools bound is a part of the guard: what it had bound itself counts, not what there is."""
    s = await lp.create("support", "ada", phase="init", actor=ADA)
    await s.tools.bind(ToolRegistry([Tool("search")]))
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("find")]))
    with pytest.raises(limpet.errors.GuardFailed, match="search") as caught:
        await s.activate()
    assert (caught.value.phase, caught.value.event) == ("init", "activate")
    assert (await s.refresh()).phase == "init"
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("find"), Tool("search", "1.3.0")]))
    await s.activate()
    assert {name: kept["version"] for name, kept in s.tools.bound.items()} == {"search": "1.3.0"}


async def test_resuming_binds_the_tools_of_the_app_again(lp: limpet.Limpet) -> None:
    """By the short way and by the protocol; without a registry nothing is said of tools."""
    s = await suspended(lp, Tool("search"))
    t = await s.resume(activate=False)
    assert t.side_effects == ("session.resumed",)
    await s.activate()
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("search", "1.5.0")]))
    await s.suspend()
    t = await s.resume(activate=False)
    assert t.side_effects == ("bind_tools", "session.resumed")
    assert s.tools.bound["search"]["version"] == "1.5.0"
    await s.activate()
    await s.suspend()
    lp.policies.lifecycle("support", tools=ToolRegistry([]))
    with pytest.raises(limpet.errors.GuardFailed, match="search"):
        await s.resume()
    with pytest.raises(limpet.errors.RequiredToolUnavailable):
        await lp.resume(s.key)
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("search", "1.6.0")]))
    session, _ = await lp.resume(s.key)
    assert session.tools.bound["search"]["version"] == "1.6.0"


async def test_a_substitute_brings_its_own_permission_and_lock(lp: limpet.Limpet) -> None:
    """It must not be used under the rules of the tool that it stands in for."""
    s = await suspended(lp, Tool("print", substitutes=("plot",)))
    other = Tool("plot", "3.0.0", permission="always_ask", exclusive=True)
    s, _ = await lp.resume(s.key, tools=ToolRegistry([other]), actor=ADA)
    kept = s.tools.bound["print"]
    assert (kept["as"], kept["as_version"], kept["permission"]) == ("plot", "3.0.0", "always_ask")
    plotter = await lp.create("support", "bob", actor="user:bob")
    await plotter.tools.bind(ToolRegistry([other]))
    await s.tools.lock("print")
    with pytest.raises(limpet.errors.ToolLocked):
        await plotter.tools.lock("plot")
    await s.suspend()
    await plotter.tools.lock("plot")


async def test_the_tool_itself_is_taken_again_once_it_is_back(lp: limpet.Limpet) -> None:
    """A substitute stands in for as long as the tool is missing."""
    s = await suspended(lp, Tool("search", "1.2.0", substitutes=("find",)))
    s, _ = await lp.resume(s.key, tools=ToolRegistry([Tool("find", "3.0.0")]), actor=ADA)
    await s.suspend()
    s, report = await lp.resume(s.key, tools=ToolRegistry([Tool("search", "1.2.1")]), actor=ADA)
    assert report.substituted == {}
    assert s.tools.bound["search"]["version"] == "1.2.1"
    assert "as" not in s.tools.bound["search"]


async def test_the_first_substitute_that_may_be_used_is_taken(lp: limpet.Limpet) -> None:
    """One that the caller may not use is passed over."""
    s = await suspended(lp, Tool("search", substitutes=("find", "grep")))

    def authorize(tool: Tool, session: limpet.Session) -> Any:
        return tool.name != "find" or "not for you"

    registry = ToolRegistry([Tool("find"), Tool("grep")], authorize=authorize)
    _, report = await lp.resume(s.key, tools=registry)
    assert report.substituted == {"search": "grep"}


async def test_a_permission_that_became_stricter_holds_after_resuming(lp: limpet.Limpet) -> None:
    """And one that was strict when it was bound stays so."""
    s = await suspended(lp, Tool("refund"), Tool("mail", permission="always_ask"))
    now = ToolRegistry([Tool("refund", permission="always_ask"), Tool("mail")])
    s, _ = await lp.resume(s.key, tools=now)
    assert {kept["permission"] for kept in s.tools.bound.values()} == {"always_ask"}


async def test_a_permission_that_is_not_known_stays_denied(lp: limpet.Limpet) -> None:
    """A word that newer code recorded is taken for the strictest one when it is bound again."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.record(tools_bound({"mail": {"version": "1.0.0", "permission": "on_mondays"}}))
    await s.suspend()
    s, _ = await lp.resume(s.key, tools=ToolRegistry([Tool("mail")]))
    assert await s.setup.check_permission("mail") == "deny"


async def test_a_lock_ends_by_itself() -> None:
    """A session that died with it keeps an exclusive tool for as long as its lease, no longer."""
    clock = FakeClock()
    store = MemoryStore(clock.clock())
    async with limpet.Limpet("memory://", store=store) as lp:
        one, other = [await lp.create("support", user, actor=ADA) for user in ("ada", "bob")]
        for s in (one, other):
            await s.tools.bind(ToolRegistry([Tool("printer", exclusive=True)]))
        await one.tools.lock("printer", seconds=30)
        clock.advance(timedelta(seconds=29))
        with pytest.raises(limpet.errors.ToolLocked):
            await other.tools.lock("printer")
        clock.advance(timedelta(seconds=2))
        await other.tools.lock("printer")


async def test_tools_of_apps_are_kept_apart(lp: limpet.Limpet) -> None:
    """Names with a slash do not run into each other."""
    for app, tool in (("shop", "eu/print"), ("shop/eu", "print")):
        s = await lp.create(app, "ada", actor=ADA)
        await s.tools.bind(ToolRegistry([Tool(tool, exclusive=True)]))
        await s.tools.lock(tool)


async def test_each_use_of_a_tool_is_charged_to_the_session(lp: limpet.Limpet) -> None:
    """By the cost it is bound with, within the budget; an effect that names its cost keeps that."""

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("search", lambda: "found")
        await turn.effect("search", lambda: "again", max_cost=0.5)
        await turn.say("done", usage={"input": 3, "output": 4}, cost=0.1)

    s = await lp.create("support", "ada", actor=ADA, budget=1.0)
    await s.tools.bind(ToolRegistry([Tool("search", cost=0.25)]))
    await s.append("user.message", {"text": "hi"})
    assert (await lp.wake(s.key, acts)).error is None
    await s.refresh()
    assert (s.runs.usage.cost, s.runs.usage.tokens, s.runs.usage.turns) == (
        pytest.approx(0.85),
        7,
        1,
    )
    (activation,) = await s.runs.activations()  # how long it computed
    assert activation.ended_us is not None
    assert activation.ended_us >= activation.started_us
    assert s.runs.budget is not None
    assert s.runs.budget.remaining.cost == pytest.approx(0.15)


@pytest.mark.arguments
@pytest.mark.parametrize("wrong", [-1, "1", float("nan"), float("inf"), True])
def test_a_cost_is_a_number_from_0(wrong: Any) -> None:
    """What cannot be charged is refused when the tool is declared."""
    with pytest.raises(limpet.InvalidInput, match="cost"):
        Tool("search", cost=wrong)


@pytest.mark.arguments
async def test_the_tools_of_an_app_are_a_registry(lp: limpet.Limpet) -> None:
    """A list of tools is refused when it is declared, not at the first activation."""
    wrong: Any = [Tool("search")]
    with pytest.raises(limpet.InvalidInput):
        lp.policies.lifecycle("support", tools=wrong)
