"""Changed code under a paused turn: nothing is done twice, and the way to change it safely."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import limpet
from limpet.runtime.wake import Wake, harness_options
from tests.support.agents import Bank, World, a_world

NEVER = math.inf  # the quiet time: what is decided, is decided at once
Harness = Callable[[limpet.Turn], Awaitable[None]]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def paused(world: World, harness: Harness, **how: Any) -> limpet.Session[Any]:
    """A turn of this harness that has been paused, and has its answer."""
    session = await world.begin("hi")
    (woken,) = await world.work(harness, **how)
    assert woken.reason == "requires_action"
    (request,) = session.blocked_on
    await session.confirm(request.id, allow=True)
    return session


# --- nothing twice --------------------------------------------------------------------------------


async def test_a_renamed_effect_does_not_run_under_a_paused_turn(world: World) -> None:
    """It may be the same action under another name: the mismatch is found before, and at once."""
    bank = Bank()

    async def before(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=7)
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        await turn.effect("pay_back", bank.refund, order=7)
        await turn.approve("go on", {})

    session = await paused(world, before)
    (woken,) = await world.work(after, quiet_seconds=NEVER)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    assert (woken.error.name, "'pay_back'" in woken.error.why) == ("refund", True)
    assert (len(bank.done), (await world.types()).count("effect.intended")) == (1, 1)
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("mismatch", "refund")
    assert (request.input["recorded"], request.input["now"]) == ({"order": 7}, {"order": 7})
    await session.resolve(request.id, run_again=True)
    (woken,) = await world.work(before)
    assert (woken.reason, len(bank.done)) == ("end_turn", 1)


async def test_a_harness_that_swallows_the_mismatch_still_does_nothing(world: World) -> None:
    """Every effect of the run is refused, and the turn does not end well."""
    bank = Bank()

    async def before(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=7)
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        for name in ("pay_back", "thank"):
            try:
                await turn.effect(name, bank.refund, order=7)
            except Exception:
                continue

    session = await paused(world, before)
    (woken,) = await world.work(after, quiet_seconds=NEVER)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    assert (len(bank.done), session.blocked_on[0].kind) == (1, "mismatch")


async def test_an_effect_before_a_recorded_one_waits_for_the_other_branch(world: World) -> None:
    """Branches may come back in any order: one that is at its new effect waits for the others."""
    done: list[str] = []
    slow = asyncio.Event()

    async def branch(turn: limpet.Turn, name: str) -> None:
        if name == "b" and turn.attempt > 1:
            await slow.wait()
        await turn.effect(f"first {name}", lambda: done.append(f"first {name}"))
        await turn.approve(f"go on {name}", {})
        await turn.effect(f"second {name}", lambda: done.append(f"second {name}"))

    async def harness(turn: limpet.Turn) -> None:
        async def let_go() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            assert "second a" not in done
            slow.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(branch(turn, "a"))
            group.create_task(branch(turn, "b"))
            group.create_task(let_go())

    session = await world.begin("hi")
    await world.work(harness)
    for request in session.blocked_on:
        await session.confirm(request.id, allow=True)
    (woken,) = await world.work(harness, quiet_seconds=NEVER)
    assert (woken.reason, woken.error) == ("end_turn", None)
    assert (done[:2], sorted(done[2:])) == (["first a", "first b"], ["second a", "second b"])


@pytest.mark.parametrize("grouped", [False, True])
async def test_with_several_tasks_it_is_a_mismatch_when_no_call_is_made(
    world: World, grouped: bool
) -> None:
    """Both branches wait for what nobody reaches any more; then nothing was done."""
    done: list[str] = []

    async def branch(turn: limpet.Turn, name: str, word: str) -> None:
        await turn.effect(f"{word} {name}", lambda: done.append(f"{word} {name}"))
        await turn.approve(f"go on {name}", {})

    def branches(word: str) -> Harness:
        async def harness(turn: limpet.Turn) -> None:
            if not grouped:
                await asyncio.gather(branch(turn, "a", word), branch(turn, "b", word))
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(branch(turn, "a", word))
                group.create_task(branch(turn, "b", word))

        return harness

    session = await world.begin("hi")
    await world.work(branches("old"))
    for request in session.blocked_on:
        await session.confirm(request.id, allow=True)
    (woken,) = await world.work(branches("new"), quiet_seconds=0)
    assert done == ["old a", "old b"]
    assert woken.reason == "requires_action"
    assert [request.kind for request in session.blocked_on] == ["mismatch"]


async def test_the_quiet_time_does_not_run_while_a_call_is_at_work(world: World) -> None:
    """A step that takes long is a call under way: its branch may reach the effect afterwards."""
    done: list[str] = []
    let_go = asyncio.Event()
    ran = 0

    async def look() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise RuntimeError("not yet")  # so that the step has no record
        for _ in range(20):
            await asyncio.sleep(0)
        let_go.set()

    async def slow(turn: limpet.Turn) -> None:
        with suppress(RuntimeError):
            await turn.step("look", look)
        await turn.effect("old", lambda: done.append("old"))
        await turn.approve("go on", {})

    async def fast(turn: limpet.Turn) -> None:
        if turn.attempt > 1:
            await turn.effect("new", lambda: done.append("new" if let_go.is_set() else "too early"))

    async def harness(turn: limpet.Turn) -> None:
        await asyncio.gather(slow(turn), fast(turn))

    await paused(world, harness)
    (woken,) = await world.work(harness, quiet_seconds=0)
    assert (woken.reason, done) == ("end_turn", ["old", "new"])


async def test_a_tool_of_a_model_does_not_run_while_a_recorded_effect_is_not_reached(
    world: World,
) -> None:
    """turn.tool is an effect like any other; a mismatch is not a result for the model."""
    bank = Bank()

    def model(request: limpet.ModelRequest) -> limpet.Reply:
        return limpet.Reply("", (limpet.ToolCall("x", "refund", {"order": 7}),))

    async def before(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=7)
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        reply = await turn.model("decide", model)
        for call in reply.tool_calls:
            await turn.tool(call, bank.refund)

    session = await paused(world, before)
    (woken,) = await world.work(after, quiet_seconds=NEVER)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    assert (len(bank.done), session.blocked_on[0].kind) == (1, "mismatch")


async def test_an_accepted_mismatch_lets_the_new_effect_run(world: World) -> None:
    """on_mismatch="accept" was chosen for just that."""
    done: list[str] = []

    def harness_with(name: str) -> Harness:
        async def harness(turn: limpet.Turn) -> None:
            await turn.effect(name, lambda: done.append(name))
            await turn.approve("go on", {})

        return harness

    await paused(world, harness_with("old"))
    (woken,) = await world.work(harness_with("new"), on_mismatch="accept")
    assert (woken.reason, done) == ("end_turn", ["old", "new"])


async def test_skipped_steps_and_model_calls_are_reported_once(world: World) -> None:
    """The turn ends well, with a session.error that names them; effects would have stopped it."""

    async def before(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.step("plan", lambda: 2)
        await turn.stream("tell", ["a", "b"])
        await turn.model("decide", lambda request: "yes")
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.approve("go on", {})

    session = await paused(world, before)
    (woken,) = await world.work(after)
    assert (woken.reason, woken.error) == ("end_turn", None)
    (error,) = await session.read(types=["session.error"])
    assert (error.data["code"], error.data["counts"]) == ("turn.skipped", False)
    for name in ("step 'plan' (1)", "stream 'tell' (1)", "model call 'decide' (1)"):
        assert name in error.data["message"]
    assert "look" not in error.data["message"]
    assert (session.runs.failure, session.head.pending) == (None, 0)
    await world.send("again")
    await world.work(lambda turn: turn.say("hi"))
    assert (await world.types()).count("session.error") == 1


async def test_nothing_is_reported_of_a_turn_that_takes_its_way_again(world: World) -> None:
    """Every kind of call is reached by a run that makes it."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.stream("tell", ["a"])
        await turn.stream("think", ["a"], say=False)
        await turn.model("decide", lambda request: "yes")
        await turn.say("so it is")
        turn.changed("nothing")
        await turn.effect("pay", lambda: 1)
        await turn.approve("go on", {})

    session = await paused(world, harness)
    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert not await session.read(types=["session.error"])


# --- the version of a turn ------------------------------------------------------------------------


async def test_a_turn_keeps_the_version_that_it_began_with(world: World) -> None:
    """Each wake records the version of its worker; the next turn has the new one."""
    seen: list[str | None] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.version)
        await turn.approve("go on", {})

    session = await paused(world, harness, version="7")
    await world.work(harness, version="8")
    await world.send("again")
    await world.work(harness, version="8")
    assert seen == ["7", "7", "8"]
    wakes = [event.data.get("version") for event in reversed(await session.runs.wakes())]
    assert wakes == ["7", "8", "8"]


async def test_a_turn_without_a_version_has_none(world: World) -> None:
    """Also if a later worker has one."""
    seen: list[str | None] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.version)
        await turn.approve("go on", {})

    session = await paused(world, harness)
    await world.work(harness, version="8")
    assert seen == [None, None]
    with pytest.raises(limpet.InvalidInput, match="the version of a worker"):
        limpet.Worker(world.lp, harness, app="support", version="")
    with pytest.raises(limpet.InvalidInput, match="the version of a worker"):
        await world.lp.wake(session.key, harness, version=7)  # type: ignore[arg-type]


# --- turn.changed ---------------------------------------------------------------------------------


def changing(bank: Bank, seen: list[bool]) -> Harness:
    """A harness whose effect was renamed, with the old way kept for turns that took it."""

    async def harness(turn: limpet.Turn) -> None:
        seen.append(turn.changed("pay_back"))
        name = "pay_back" if seen[-1] else "refund"
        await turn.effect(name, bank.refund, order=7)
        await turn.approve("go on", {})

    return harness


async def test_a_turn_that_came_past_the_change_takes_the_old_way(world: World) -> None:
    """And every later run of it does; the next turn takes the new one, in all its runs."""
    bank, seen = Bank(), list[bool]()

    async def before(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=7)
        await turn.approve("go on", {})

    await paused(world, before)
    (woken,) = await world.work(changing(bank, seen))
    assert (woken.reason, len(bank.done)) == ("end_turn", 1)
    await world.send("again")
    await world.work(changing(bank, seen))
    await world.session.confirm(world.session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(changing(bank, seen))
    assert (woken.reason, seen, len(bank.done)) == ("end_turn", [False, True, True], 2)
    effects = await world.session.read(types=["effect.intended"])
    assert [event.data["name"] for event in effects] == ["refund", "pay_back"]


async def test_a_turn_that_has_not_come_to_the_change_takes_the_new_way(world: World) -> None:
    """What it recorded before lies behind it."""
    seen: list[bool] = []

    async def before(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.say("one moment")
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.say("one moment")
        await turn.approve("go on", {})
        seen.append(turn.changed("more"))
        await turn.approve("go further", {})
        seen.append(turn.changed("more"))

    session = await paused(world, before)
    await world.work(after)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(after)
    assert seen == [True, True, True]


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_change_is_stable_wherever_the_worker_dies(world: World, recorded: bool) -> None:
    """Whatever has been recorded, no turn takes both ways."""
    for at in range(1, 12):
        bank, seen = Bank(), list[bool]()
        await world.begin("hi")
        died = await world.die(changing(bank, seen), at, recorded=recorded)
        world.later()
        await world.work(changing(bank, seen))
        assert set(seen) == {True}
        names = {e.data["name"] for e in await world.session.read(types=["effect.*"])}
        assert names == {"pay_back"}
        if not died:
            return
    raise AssertionError("there are fewer commits")


async def test_a_change_that_was_removed_is_not_missed(world: World) -> None:
    """When no old turn is left, the call may go."""

    async def before(turn: limpet.Turn) -> None:
        if turn.changed("look"):
            await turn.step("look", lambda: 1)
        await turn.approve("go on", {})

    async def after(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.approve("go on", {})

    session = await paused(world, before)
    (woken,) = await world.work(after)
    assert woken.reason == "end_turn"
    assert not await session.read(types=["session.error"])


async def test_a_change_has_a_name_and_is_asked_in_the_harness(world: World) -> None:
    """Inside a step its answer would not be recorded with the step."""

    async def harness(turn: limpet.Turn) -> None:
        for name in ("", 5, "x" * 300):
            with pytest.raises(limpet.InvalidInput, match=r"turn\.changed takes a name"):
                turn.changed(name)  # type: ignore[arg-type]
        with pytest.raises(limpet.errors.TurnMisused, match="inside the step"):
            await turn.step("look", lambda: turn.changed("x"))

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.error is None


async def test_a_change_alone_takes_no_commit_of_its_own(world: World) -> None:
    """It is recorded with what comes next."""

    async def plain(turn: limpet.Turn) -> None:
        await turn.say("hi")

    async def changed(turn: limpet.Turn) -> None:
        turn.changed("x")
        await turn.say("hi")

    commits = []
    for harness in (plain, changed):
        await world.begin("hi")
        (lease,) = await world.lp.work.claim("w", app="support")
        world.store.commits = 0
        await Wake(world.lp, lease, harness_options(harness)).run()
        commits.append(world.store.commits)
    assert commits[0] == commits[1]
