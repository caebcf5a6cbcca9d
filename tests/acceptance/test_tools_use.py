"""The use of tools, tied to what the session has bound: binding, version, authorization, lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import limpet
from limpet import Tool, ToolRegistry
from limpet.model.facts.running.setup import tools_bound
from limpet.runtime.managed_tools import BY_NAME
from limpet.session.life import tools as life_tools
from limpet.session.runs.setup import MANAGED_TOOLS

ADA = "user:ada"
Harness = Callable[[limpet.Turn], Any]


async def ran(lp: limpet.Limpet, s: limpet.Session[Any], harness: Any, **how: Any) -> limpet.Woken:
    await s.append("user.message", {"text": "go"}, actor=ADA)
    woken = await lp.wake(s.key, harness, **how)
    await s.refresh()
    return woken


async def used(lp: limpet.Limpet, s: limpet.Session[Any], *names: str) -> dict[str, str]:
    """What came of using each of these tools in one turn."""
    found: dict[str, str] = {}

    async def harness(turn: limpet.Turn) -> None:
        for name in names:
            try:
                found[name] = await turn.effect(name, lambda: "done")
            except limpet.LimpetError as error:
                found[name] = error.code
            found[name] += f" {turn.permission(name)}"

    assert (await ran(lp, s, harness)).error is None
    return found


def only_for(*users: str) -> ToolRegistry:
    """`refund` is optional, and for these users; `search` is for everybody."""

    def authorize(tool: Tool, session: limpet.Session[Any]) -> Any:
        return tool.name != "refund" or session.user in users or "not for you"

    return ToolRegistry([Tool("search"), Tool("refund", required=False)], authorize=authorize)


async def test_a_tool_that_was_refused_or_never_bound_is_not_used(lp: limpet.Limpet) -> None:
    """Neither as an effect nor by what the turn, the session and the model's tools say of it."""
    s = await lp.create("support", "bob", actor=ADA)
    await s.tools.bind(only_for("ada"))
    assert set(s.tools.bound) == {"search"}
    assert await used(lp, s, "search", "refund", "shell") == {
        "search": "done always_allow",
        "refund": "tool.denied deny",
        "shell": "tool.denied deny",
    }
    said = [await s.setup.check_permission(name) for name in ("search", "refund", "memory_write")]
    assert said == ["always_allow", "deny", "always_allow"]
    assert await s.setup.permissions() == {"search": "always_allow", "*": "deny"}
    assert "effect.intended" in [e.type for e in await s.read(types=["effect.*"])]
    names = {e.data["name"] for e in await s.read(types=["effect.*"])}
    assert names == {"search"}


async def test_a_session_whose_tools_were_all_refused_uses_none(lp: limpet.Limpet) -> None:
    """Bound to nothing is not the same as not bound; also by activation."""
    registry = only_for("ada")
    registry.remove("search")
    s = await lp.create("support", "bob", actor=ADA)
    await s.tools.bind(registry)
    assert s.tools.bound == {}
    assert await used(lp, s, "refund") == {"refund": "tool.denied deny"}
    lp.policies.lifecycle("support", tools=registry)
    other = await lp.create("support", "bob", phase="init", actor=ADA)
    await other.activate()
    assert await used(lp, other, "refund") == {"refund": "tool.denied deny"}


async def test_a_session_without_a_binding_uses_what_it_likes(lp: limpet.Limpet) -> None:
    """Nothing is said of its tools, so every effect is free."""
    s = await lp.create("support", "ada", actor=ADA)
    assert await used(lp, s, "refund") == {"refund": "done always_allow"}
    assert await s.setup.permissions() == {}


async def test_authorization_is_asked_at_every_use(lp: limpet.Limpet) -> None:
    """Of the app's registry in this process: one that was withdrawn holds at once; also where the
    tool was never bound."""
    bound = await lp.create("support", "bob", actor=ADA)
    await bound.tools.bind(only_for("ada", "bob"))
    assert await used(lp, bound, "refund") == {"refund": "done always_allow"}
    lp.policies.lifecycle("support", tools=only_for("ada"))
    assert await used(lp, bound, "refund", "search") == {
        "refund": "tool.denied always_allow",
        "search": "done always_allow",
    }
    free = await lp.create("support", "bob", actor=ADA)
    found = await used(lp, free, "refund", "shell")
    assert found == {"refund": "tool.denied always_allow", "shell": "done always_allow"}


@pytest.mark.parametrize(
    ("bound", "there", "found"),
    [
        ("1.2.0", "1.2.0", "done"),
        ("1.2.0", "1.3.0", "done"),
        ("1.2.0", "1.1.9", "tool.unavailable"),
        ("1.2.0", "2.0.0", "tool.unavailable"),
    ],
)
async def test_a_version_that_does_not_fit_the_binding_is_not_used(
    lp: limpet.Limpet, bound: str, there: str, found: str
) -> None:
    """A process that has only an older one, or another MAJOR, is not the one to run it."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(ToolRegistry([Tool("search", bound)]))
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("search", there)]))
    assert await used(lp, s, "search") == {"search": f"{found} always_allow"}


async def test_a_substitute_is_used_under_the_name_of_the_tool(lp: limpet.Limpet) -> None:
    """That is how it is bound, and in the version that stands in; its own name is not bound."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(ToolRegistry([Tool("search", "1.2.0", substitutes=("find",))]))
    await s.suspend()
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("find", "3.0.0")]))
    s, _ = await lp.resume(s.key, actor=ADA)
    found = await used(lp, s, "search", "find")
    assert found == {"search": "done always_allow", "find": "tool.denied deny"}
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("find", "2.9.0")]))
    assert await used(lp, s, "search") == {"search": "tool.unavailable always_allow"}


async def test_nobody_is_asked_about_a_tool_that_cannot_be_used(lp: limpet.Limpet) -> None:
    """always_ask for every tool, and one that is not bound: denied without a question."""
    s = await lp.create("support", "bob", actor=ADA)
    await s.tools.bind(only_for("ada"))
    denied: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        try:
            await turn.effect("refund", lambda: "done")
        except limpet.ToolDenied as error:
            denied.append(error.name)
        await turn.effect("search", lambda: "done")

    woken = await ran(lp, s, harness, permissions={"*": "always_ask"})
    assert (woken.reason, denied) == ("requires_action", ["refund"])
    assert [request.name for request in s.blocked_on] == ["search"]


async def test_what_was_done_before_a_tool_was_taken_away_keeps_its_result(
    lp: limpet.Limpet,
) -> None:
    """A turn that goes on returns what it recorded; only the next use is denied."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(only_for("ada"))
    found: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        found.append(await turn.effect("refund", lambda: "paid"))
        await turn.ask("go on?", {})
        with suppress(limpet.ToolDenied):
            found.append(await turn.effect("refund", lambda: "paid again"))

    for permissions in ({}, {"refund": "always_ask"}):
        found.clear()
        await s.tools.bind(only_for("ada"))
        woken = await ran(lp, s, harness, permissions=permissions)
        while s.blocked_on:
            if s.blocked_on[0].kind == "approval":
                await s.confirm(s.blocked_on[0].id, allow=True)
            else:
                await s.tools.bind(only_for())
                await s.answer(s.blocked_on[0].id, "yes")
            woken = await lp.wake(s.key, harness, permissions=permissions)
            await s.refresh()
        assert (woken.reason, set(found)) == ("end_turn", {"paid"})


async def test_a_tool_that_is_taken_away_while_its_intent_is_recorded_is_not_used(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the intent finds the binding as it is: what was looked at before is old."""
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(ToolRegistry([Tool("refund"), Tool("search")]))
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        write = turn.run.log.write

        async def late(*drafts: Any, **how: Any) -> Any:
            if "effect.intended" in [draft.type for draft in drafts]:
                other = lp.session(s.key, actor=ADA)
                await other.tools.bind(ToolRegistry([Tool("search")]))
            return await write(*drafts, **how)

        monkeypatch.setattr(turn.run.log, "write", late)
        with pytest.raises(limpet.EffectFailed, match="ToolDenied"):
            await turn.effect("refund", lambda: done.append("refund"))

    assert (await ran(lp, s, harness)).reason == "end_turn"
    assert done == []
    types = [event.type for event in await s.read(types=["effect.*"])]
    assert types == ["effect.intended", "effect.failed"]


async def test_an_exclusive_tool_is_held_while_it_is_used(lp: limpet.Limpet) -> None:
    """By one session at a time, and by one call at a time; afterwards it is free."""
    registry = ToolRegistry([Tool("printer", exclusive=True)])
    one, other = [await lp.create("support", user, actor=ADA) for user in ("ada", "bob")]
    for s in (one, other):
        await s.tools.bind(registry)
    found: list[str] = []
    at_work: list[int] = []

    async def prints() -> str:
        assert not at_work
        at_work.append(1)
        found.append((await used(lp, other, "printer"))["printer"])
        at_work.clear()
        return "printed"

    async def harness(turn: limpet.Turn) -> None:
        await asyncio.gather(*[turn.effect("printer", prints) for _ in range(2)])

    assert (await ran(lp, one, harness)).error is None
    assert found == ["tool.locked always_allow"] * 2
    assert await used(lp, other, "printer") == {"printer": "done always_allow"}
    await one.tools.lock("printer")


async def test_a_tool_that_was_lost_meanwhile_is_not_used(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stood still for longer than its lock lasts, and another session has the tool."""
    registry = ToolRegistry([Tool("printer", exclusive=True)])
    one, other = [await lp.create("support", user, actor=ADA) for user in ("ada", "bob")]
    for s in (one, other):
        await s.tools.bind(registry)
    done: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        write = turn.run.log.write

        async def late(*drafts: Any, **how: Any) -> Any:
            events = await write(*drafts, **how)
            if "effect.intended" in [draft.type for draft in drafts]:
                await one.tools.lock("printer", seconds=0.001)  # over at once
                lock = await taken(other)
                clock = life_tools.steady_ns
                monkeypatch.setattr(life_tools, "steady_ns", lambda: clock() + 60_000_000_000)
                found.append(lock)
            return events

        found: list[limpet.Lease] = []
        monkeypatch.setattr(turn.run.log, "write", late)
        with pytest.raises(limpet.EffectFailed, match="ToolLocked"):
            await turn.effect("printer", lambda: done.append("printed"))
        monkeypatch.undo()
        assert await lp.work.release(found[0])
        await turn.effect("printer", lambda: done.append("again"))

    assert (await ran(lp, one, harness)).error is None
    assert done == ["again"]


async def taken(s: limpet.Session[Any]) -> limpet.Lease:
    """The lock on the printer, as soon as nobody has it."""
    while True:
        with suppress(limpet.errors.ToolLocked):
            return await s.tools.lock("printer")


async def test_a_lock_that_the_session_has_taken_stays_after_a_use(lp: limpet.Limpet) -> None:
    """The lease that was handed out is still the one that counts."""
    registry = ToolRegistry([Tool("printer", exclusive=True)])
    one, other = [await lp.create("support", user, actor=ADA) for user in ("ada", "bob")]
    for s in (one, other):
        await s.tools.bind(registry)
    lease = await one.tools.lock("printer", seconds=3600)
    assert await used(lp, one, "printer") == {"printer": "done always_allow"}
    assert await used(lp, other, "printer") == {"printer": "tool.locked always_allow"}
    renewed = await lp.work.renew(lease)
    assert renewed.until >= lease.until
    assert await lp.work.release(lease)
    assert await used(lp, other, "printer") == {"printer": "done always_allow"}


async def test_a_degraded_tool_is_bound_again_when_it_returns(lp: limpet.Limpet) -> None:
    """By resuming, the long way and the short one, by the next turn, and in its version."""
    both = ToolRegistry([Tool("search"), Tool("paint", "1.2.0", required=False)])
    less = ToolRegistry([Tool("search")])
    s = await lp.create("support", "ada", actor=ADA)
    await s.tools.bind(both)
    for way in ("protocol", "short", "turn"):
        lp.policies.lifecycle("support", tools=less)
        await s.suspend()
        s, report = await lp.resume(s.key, actor=ADA)
        assert (set(s.tools.bound), report.degraded) == ({"search"}, ("paint",))
        older = ToolRegistry([Tool("search"), Tool("paint", "1.1.0", required=False)])
        lp.policies.lifecycle("support", tools=older)
        assert await used(lp, s, "paint") == {"paint": "tool.denied deny"}
        lp.policies.lifecycle("support", tools=both)
        if way == "turn":
            assert await used(lp, s, "paint") == {"paint": "done always_allow"}
        else:
            await s.suspend()
        if way == "protocol":
            s, report = await lp.resume(s.key, actor=ADA)
            assert report.degraded == ()
        elif way == "short":
            await s.resume()
        assert {name: kept["version"] for name, kept in s.tools.bound.items()} == {
            "search": "1.0.0",
            "paint": "1.2.0",
        }
    bindings = len(await s.read(types=["session.tools_bound"]))
    assert await used(lp, s, "paint") == {"paint": "done always_allow"}
    assert len(await s.read(types=["session.tools_bound"])) == bindings
    assert (await lp.maintenance.verify()).ok


async def test_a_refused_tool_is_bound_when_it_is_authorized(lp: limpet.Limpet) -> None:
    """The next turn has it; a function that fails to authorize leaves the session as it was."""
    s = await lp.create("support", "bob", actor=ADA)
    await s.tools.bind(only_for("ada"))

    def fails(tool: Tool, session: limpet.Session[Any]) -> Any:
        raise ConnectionError("the directory is away")

    tools = [Tool("search"), Tool("refund", required=False)]
    lp.policies.lifecycle("support", tools=ToolRegistry(tools, authorize=fails))
    woken = await ran(lp, s, lambda turn: turn.say("fine"))
    assert (woken.reason, set(s.tools.bound)) == ("end_turn", {"search"})
    lp.policies.lifecycle("support", tools=only_for("ada", "bob"))
    assert await used(lp, s, "refund") == {"refund": "done always_allow"}
    assert set(s.tools.bound) == {"search", "refund"}


async def test_a_binding_that_was_made_meanwhile_is_not_overwritten(lp: limpet.Limpet) -> None:
    """A turn that binds what has returned decides on the binding that it has looked at."""
    s = await lp.create("support", "bob", actor=ADA)
    await s.tools.bind(only_for("ada"))
    bound: list[str] = []

    async def authorize(tool: Tool, session: limpet.Session[Any]) -> Any:
        if not bound:
            bound.append(tool.name)
            await lp.session(s.key, actor=ADA).tools.bind(ToolRegistry([Tool("mail")]))
        return True

    tools = [Tool("refund", required=False), Tool("mail")]
    lp.policies.lifecycle("support", tools=ToolRegistry(tools, authorize=authorize))
    found = await used(lp, s, "mail", "refund")
    assert found == {"mail": "done always_allow", "refund": "tool.denied deny"}
    assert (set(s.tools.bound), bound) == ({"mail"}, ["refund"])


async def test_a_binding_of_an_earlier_release_is_completed_too(lp: limpet.Limpet) -> None:
    """It recorded only the names of what was left out."""
    s = await lp.create("support", "ada", actor=ADA)
    fact = tools_bound({"search": {"version": "1.0.0"}}, degraded={"paint": {}})
    data = {name: value for name, value in fact.data.items() if name != "wanted"}
    await s.record(limpet.model.Fact(type=fact.type, data=data), actor=ADA)
    await s.suspend()
    s, report = await lp.resume(s.key, tools=ToolRegistry([Tool("search")]), actor=ADA)
    assert report.degraded == ("paint",)
    lp.policies.lifecycle("support", tools=ToolRegistry([Tool("search"), Tool("paint", "2.0.0")]))
    assert await used(lp, s, "paint") == {"paint": "done always_allow"}
    assert s.tools.bound["paint"]["required"] is False


@pytest.mark.parametrize(("bound", "left_out"), [(128, 0), (0, 128), (100, 28)])
def test_so_many_tools_fit_a_binding_and_no_more(bound: int, left_out: int) -> None:
    """What is left out is kept in the head too, and counts."""
    tools: dict[str, dict[str, Any]] = {f"t{n}": {} for n in range(bound)}
    degraded: dict[str, dict[str, Any]] = {f"d{n}": {} for n in range(left_out)}
    assert len(tools_bound(tools, degraded=degraded).data["tools"]) == bound
    with pytest.raises(limpet.errors.InvalidEvent, match="129 tools"):
        tools_bound({**tools, "one more": {}}, degraded=degraded)


def test_the_managed_tools_are_those_that_a_binding_says_nothing_of() -> None:
    """One list, in the room that decides about permissions."""
    assert frozenset(BY_NAME) == MANAGED_TOOLS
