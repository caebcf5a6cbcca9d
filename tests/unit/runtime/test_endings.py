"""What the end of a session leaves to be done: compensations, children, the parent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.model.facts.running import endings
from limpet.model.limits import DELEGATION_DEPTH_MAX, EVENT_BYTES_MAX
from limpet.runtime import effects
from limpet.runtime.wake import Wake, harness_options
from tests.support.agents import APP, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


class Shop:
    """What was done, and what was undone, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.undone: list[str] = []
        self.keys: list[str] = []
        self.seen: list[Any] = []
        self.breaks: set[str] = set()

    async def buy(self, what: str) -> str:
        self.done.append(what)
        return f"receipt of {what}"

    async def give_back(self, session: limpet.Session[Any], effect: limpet.PastEffect) -> str:
        what = effect.args["what"]
        if what in self.breaks:
            raise ConnectionError(f"no {what} today")
        self.undone.append(what)
        self.keys.append(limpet.idempotency_key())
        self.seen.append((effect.name, effect.outcome, effect.result))
        return "given back"


def a_shop(world: World, **how: Any) -> Shop:
    shop = Shop()
    world.lp.policies.lifecycle(APP, compensations={"give_back": shop.give_back}, **how)
    return shop


def buys(shop: Shop, *things: str, on_unknown: Any = "ask", ends: bool = False) -> Any:
    async def harness(turn: limpet.Turn) -> None:
        for what in things:
            how: Any = {"on_unknown": on_unknown, "compensate": "give_back"}
            await turn.effect("buy", shop.buy, what=what, **how)
        if not ends:
            await turn.approve("enough", {})

    return harness


async def events(world: World, *types: str) -> list[limpet.Event]:
    return [event for event in await world.log() if event.type in types]


# --- compensations -------------------------------------------------------------------------------


async def test_a_termination_undoes_effects_the_newest_first(world: World) -> None:
    """Each once, with what it did, under a key of its own; then nothing is due."""
    shop = a_shop(world)
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", "milk", "eggs"))
    await session.terminate("no")
    (woken,) = await world.work(buys(shop))
    assert (woken.ran, woken.reason) == (False, "terminated")
    assert shop.undone == ["eggs", "milk", "bread"]
    assert len(set(shop.keys)) == 3
    assert shop.seen[0] == ("buy", "succeeded", "receipt of eggs")
    assert len(await events(world, "effect.compensated")) == 3
    assert not await world.lp.work.claim("w")
    assert session.status == "terminated"
    assert (await world.lp.maintenance.verify()).ok


async def test_a_completed_session_undoes_nothing(world: World) -> None:
    """Only a termination is a failure."""
    shop = a_shop(world)
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", ends=True))
    await session.complete()
    assert not await world.work(buys(shop))
    assert not shop.undone


@pytest.mark.parametrize("on_unknown", ["retry", "ask"])
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_worker_that_dies_while_undoing_is_followed_by_one_that_goes_on(
    world: World, on_unknown: Any, recorded: bool
) -> None:
    """Wherever it dies, each is undone once; or once more under its key; or held for a person."""
    for at in range(1, 12):
        shop = a_shop(world)
        session = await world.begin("hi")
        await world.work(buys(shop, "a", "b", "c", on_unknown=on_unknown))
        await session.terminate()
        died = await world.die(buys(shop), at, recorded=recorded)
        world.later()
        await world.work(buys(shop))
        unknown = await events(world, "effect.compensation_unknown")
        assert on_unknown == "ask" or not unknown
        if not unknown:
            assert list(dict.fromkeys(shop.undone)) == ["c", "b", "a"]
            by_thing = dict(zip(shop.undone, shop.keys, strict=True))
            assert len({(w, k) for w, k in zip(shop.undone, shop.keys, strict=True)}) == 3, by_thing
            assert len(shop.undone) <= 3 + (on_unknown == "retry" and died)
        else:
            assert len(shop.undone) == len(set(shop.undone))
            heads = (await world.lp.work.dead_letters(app=APP)).items
            assert session.key in [head.key for head in heads]
        assert not await world.lp.work.claim("w")
        if not died:
            return
    raise AssertionError("it dies at every commit")


async def test_a_failing_compensation_keeps_none_of_the_others(world: World) -> None:
    """It is recorded, tried again later, then held as a dead letter until somebody requeues it."""
    shop = a_shop(world)
    shop.breaks.add("milk")
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", "milk", "eggs"))
    await session.terminate()
    await world.work(buys(shop), retries=1)
    assert shop.undone == ["eggs", "bread"]
    (failed,) = await events(world, "effect.compensation_failed")
    assert "no milk today" in failed.data["error"]
    assert not await world.lp.work.claim("w"), "it is tried again later"
    world.later(60)
    await world.work(buys(shop), retries=1)
    assert [h.key for h in (await world.lp.work.dead_letters(app=APP)).items] == [session.key]
    world.later(3_600)
    assert not await world.lp.work.claim("w"), "it is held"
    shop.breaks.clear()
    await world.lp.work.requeue(session.key)
    await world.work(buys(shop))
    assert shop.undone == ["eggs", "bread", "milk"]
    assert not (await world.lp.work.dead_letters(app=APP)).items


async def test_an_effect_of_which_nobody_knows_is_undone_as_such(world: World) -> None:
    """Its compensation is given the outcome and the key under which it was performed."""
    shop = a_shop(world)
    session = await world.begin("hi")
    assert await world.die(buys(shop, "bread"), 2, recorded=False)
    world.later()
    await session.terminate()
    await world.work(buys(shop))
    assert shop.seen == [("buy", "unknown", None)]


async def test_an_effect_that_failed_is_not_undone(world: World) -> None:
    """It was not performed."""
    shop = a_shop(world)

    async def refuse(what: str) -> None:
        raise ValueError("no")

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.EffectFailed):
            await turn.effect("buy", refuse, what="x", compensate="give_back")
        await turn.approve("enough", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.terminate()
    await world.work(harness)
    assert not shop.undone
    assert not await world.lp.work.claim("w")


@pytest.mark.parametrize("not_done", [False, True])
async def test_an_effect_that_may_have_been_performed_is_undone_although_its_next_try_raises(
    world: World, not_done: bool
) -> None:
    """The worker died after it paid: a later try that raises does not change that; only NotDone
    does, which speaks for every try."""
    shop = a_shop(world)

    async def refuse(what: str) -> None:
        raise limpet.NotDone("closed") if not_done else ValueError("closed")

    def harness(fn: Any) -> Any:
        async def run(turn: limpet.Turn) -> None:
            how: Any = {"on_unknown": "retry", "compensate": "give_back"}
            with suppress(limpet.EffectFailed):
                await turn.effect("buy", fn, what="bread", **how)
            await turn.approve("enough", {})

        return run

    session = await world.begin("hi")
    assert await world.die(harness(shop.buy), 2, recorded=False)
    world.later()
    await world.work(harness(refuse))
    assert len(await events(world, "effect.failed")) == not_done
    await session.terminate()
    await world.work(harness(refuse))
    assert shop.done == ["bread"]
    assert shop.seen == ([] if not_done else [("buy", "unknown", None)])


async def test_an_effect_that_raises_after_a_timeout_is_unknown_and_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one call too: what the last try raises says nothing of the first."""
    monkeypatch.setattr(effects, "BACKOFF_SECONDS", 0)
    shop, tries = a_shop(world), []

    async def pay(what: str) -> None:
        tries.append(what)
        if len(tries) == 1:
            raise TimeoutError
        raise ValueError("closed")

    async def harness(turn: limpet.Turn) -> None:
        how: Any = {"on_unknown": "retry", "retries": 1, "compensate": "give_back"}
        with pytest.raises(limpet.EffectUnknown, match="leave it"):
            await turn.effect("buy", pay, what="bread", **how)
        await turn.approve("enough", {})

    session = await world.begin("hi")
    await world.work(harness)
    world.later(60)
    await world.work(harness)
    (request,) = session.blocked_on
    assert request.input["why"].endswith("ValueError: closed")
    await session.resolve(request.id, give_up=True, note="leave it")
    await world.work(harness)
    types = {e.type for e in await events(world, "effect.failed", "effect.unknown")}
    assert types == {"effect.unknown"}
    await session.terminate()
    await world.work(harness)
    assert tries == ["bread"] * 3
    assert shop.seen == [("buy", "unknown", None)]


def too_large() -> str:
    return "x" * EVENT_BYTES_MAX


def too_deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(2_000):
        found = [found]
    return found


@pytest.mark.parametrize("returns", [too_large, too_deep])
async def test_a_compensation_whose_result_cannot_be_recorded_is_done_once(
    world: World, returns: Any
) -> None:
    """It is recorded without its result, and says so."""
    shop, undone = a_shop(world), []

    async def give_back(session: limpet.Session[Any], effect: limpet.PastEffect) -> Any:
        undone.append(effect.args["what"])
        return returns()

    world.lp.policies.lifecycle(APP, compensations={"give_back": give_back})
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", "milk", on_unknown="retry"))
    await session.terminate()
    for _ in range(3):
        await world.work(buys(shop))
        world.later(3_600)
    assert undone == ["milk", "bread"]
    done = await events(world, "effect.compensated")
    assert len(done) == 2
    for event in done:
        assert event.data["result"] is None
        assert "its result is not recorded" in event.data["note"]
    assert not await world.lp.work.claim("w")


async def test_a_compensation_that_cancels_itself_is_unknown(world: World) -> None:
    """Nobody knows how far it came. It keeps none of the others, and under "retry" it is tried as
    often as any that fails."""
    shop, tried = a_shop(world), []

    async def give_back(session: limpet.Session[Any], effect: limpet.PastEffect) -> None:
        tried.append(effect.args["what"])
        if effect.args["what"] == "milk":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    world.lp.policies.lifecycle(APP, compensations={"give_back": give_back})
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", "milk", on_unknown="retry"))
    await session.terminate()
    for _ in range(5):
        await world.work(buys(shop), retries=1)
        world.later(3_600)
    assert tried == ["milk", "bread", "milk"]
    unknown = await events(world, "effect.compensation_unknown")
    assert {event.data["error"][:19] for event in unknown} == {"it cancelled itself"}
    assert [h.key for h in (await world.lp.work.dead_letters(app=APP)).items] == [session.key]


async def test_an_error_between_compensations_counts_as_a_failed_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again later, and comes to an end as a dead letter."""
    shop = a_shop(world)
    session = await world.begin("hi")
    await world.work(buys(shop, "bread", on_unknown="retry"))
    await session.terminate()

    def broken(*of: Any) -> Any:
        raise KeyError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(endings, "compensated", broken)
        for _ in range(5):
            await world.work(buys(shop), retries=1)
            assert not await world.lp.work.claim("w"), "it is tried again later"
            world.later(3_600)
    assert shop.undone == ["bread", "bread"]
    assert len(set(shop.keys)) == 1
    assert [h.key for h in (await world.lp.work.dead_letters(app=APP)).items] == [session.key]
    ends = [e.data for e in await events(world, "span.completed") if e.data["kind"] == "wake"]
    assert [end.get("error") for end in ends[1:]] == ["KeyError: 'a defect'"] * 2
    await world.lp.work.requeue(session.key)
    await world.work(buys(shop))
    assert len(await events(world, "effect.compensated")) == 1
    assert not (await world.lp.work.dead_letters(app=APP)).items


async def test_a_compensation_is_declared_before_it_is_registered(world: World) -> None:
    """A name that no function has is refused before the effect, not found out after it."""
    shop = Shop()
    await world.begin("hi")
    (woken,) = await world.work(buys(shop, "bread"))
    assert isinstance(woken.error, limpet.errors.TurnMisused)
    assert not shop.done


async def test_a_compensation_that_no_process_declares_is_held(world: World) -> None:
    """It fails like any other, and the error says what to declare."""
    shop = a_shop(world)
    session = await world.begin("hi")
    await world.work(buys(shop, "bread"))
    world.lp.policies.lifecycle(APP)
    await session.terminate()
    await world.work(buys(shop), retries=0)
    (failed,) = await events(world, "effect.compensation_failed")
    assert "lp.policies.lifecycle(app, compensations=" in failed.data["error"]
    assert len((await world.lp.work.dead_letters(app=APP)).items) == 1


async def test_a_session_is_archived_and_expires_only_after_it_was_undone(world: World) -> None:
    """What is to be undone is in its log."""
    shop = a_shop(world)
    session = await world.begin("hi")
    await session.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(minutes=1)))
    await world.work(buys(shop, "bread"))
    await session.terminate()
    with pytest.raises(limpet.errors.GuardFailed):
        await session.archive()
    world.later(600)
    assert (await world.lp.work.sweep()).deleted == 0
    await world.work(buys(shop))
    await session.archive()
    assert (await world.lp.work.sweep()).deleted == 1


async def test_nothing_but_its_settlement_is_written_to_a_session_that_ended(world: World) -> None:
    """No input, no message, no step and no new effect."""
    session = await world.begin("hi")
    await session.terminate()
    for type in ("user.message", "agent.message", "note.taken"):
        with pytest.raises(limpet.SessionEnded):
            await session.append(type, {"text": "x"}, actor="user:ada")
    with pytest.raises(limpet.SessionEnded):
        await session.interrupt()


# --- a run that is under way ---------------------------------------------------------------------


async def test_a_termination_stops_a_running_harness_and_closes_its_span(world: World) -> None:
    """No span stays open, no reservation, no effect without an outcome; and then it is undone."""
    shop, began = a_shop(world), asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("buy", shop.buy, what="bread", compensate="give_back")
        began.set()
        await asyncio.get_running_loop().create_future()

    session = await world.begin("hi")
    (lease,) = await world.lp.work.claim("w", app=APP)
    waking = asyncio.ensure_future(Wake(world.lp, lease, harness_options(harness)).run())
    await began.wait()
    await session.terminate()
    async with asyncio.timeout(60):
        woken = await waking
    assert (woken.ran, woken.reason) == (True, "terminated")
    log = await world.log()
    spans = [e.type for e in log if e.type.startswith("span.")]
    assert spans.count("span.started") == spans.count("span.completed")
    assert shop.undone == ["bread"]
    assert not await world.lp.work.claim("w")
    assert (await session.runs.trace(str(woken.wake_id))).span.result == "blocked"


async def test_a_harness_may_complete_its_own_session(world: World) -> None:
    """Its run is closed all the same."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("done")
        await turn.session.complete({"grade": "A"})

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.ran, woken.reason, woken.error) == (True, "completed", None)
    assert session.phase == "completed"
    spans = [e.type for e in await world.log() if e.type.startswith("span.")]
    assert spans.count("span.started") == spans.count("span.completed")
    assert not await world.lp.work.claim("w")


async def test_a_harness_that_writes_to_another_ended_session_fails_like_any_other(
    world: World,
) -> None:
    """Its own run is closed with the error and tried again; its session goes on."""
    other = await world.lp.create("elsewhere", "ada", actor="user:ada")
    await other.terminate()

    async def harness(turn: limpet.Turn) -> None:
        await other.append("note.taken", {"text": "x"}, actor="agent:a")

    await failing_alone(world, harness, "session.ended")


async def test_a_harness_that_is_fenced_at_another_session_fails_like_any_other(
    world: World,
) -> None:
    """Its own lease holds: it is given back with the error, not left to run out."""
    other = await world.lp.create("elsewhere", "ada", actor="user:ada")
    old = await world.lp.work.lock(other.key, worker="old", lease_seconds=1)
    world.later(2)
    await world.lp.work.lock(other.key, worker="new", lease_seconds=600)
    late = world.lp.session(other.key, actor="agent:a", lease=old)

    async def harness(turn: limpet.Turn) -> None:
        await late.append("note.taken", {"text": "x"})

    await failing_alone(world, harness, "session.fenced")


async def failing_alone(world: World, harness: Any, code: str) -> None:
    """The run of this harness is recorded as failed with this code, and is tried again later."""
    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.ran, woken.reason) == (True, "rescheduling")
    assert (session.phase, session.stop_reason) == ("active", "rescheduling")
    assert [e.data["code"] for e in await events(world, "session.error")] == [code]
    types = await world.types()
    assert types.count("span.started") == types.count("span.completed")
    world.later(5)
    (lease,) = await world.lp.work.claim("w", app=APP)
    assert lease.key == session.key


# --- children ------------------------------------------------------------------------------------


def delegates(**how: Any) -> Any:
    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "session.child_ended":
            await turn.say(f"late: {turn.inputs[0].data['stop_reason']}")
            return
        child = await turn.delegate("research", "find it", **how)
        result = await child.result()
        await turn.say(f"{result['stop_reason']}: {result.get('output')}")

    return harness


async def waits(turn: limpet.Turn) -> None:
    await turn.say("so far", cost=0.05)
    await turn.approve("go on", {})


async def work(world: World, app: str, harness: Any) -> list[limpet.Woken]:
    done = []
    while leases := await world.lp.work.claim("x", app=app, lease_seconds=30):
        done += [await Wake(world.lp, lease, harness_options(harness)).run() for lease in leases]
    await world.session.refresh()
    return done


async def begun_with_child(world: World, **how: Any) -> limpet.Session[Any]:
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    await world.work(delegates(**how))
    (key,) = await session.runs.children()
    await work(world, "research", waits)
    return await world.lp.get(key)


async def test_a_child_that_is_terminated_wakes_its_parent(world: World) -> None:
    """Whoever ended it; what is left of its budget comes back with the news."""
    child = await begun_with_child(world, budget=0.2)
    await child.terminate("enough")
    await work(world, "research", waits)
    await world.work(delegates(budget=0.2))
    assert await world.said() == ["terminated: so far"]
    assert world.session.runs.budget.remaining.cost == 0.95
    assert not await world.session.runs.children()


async def test_a_child_that_is_completed_wakes_its_parent_with_its_output(world: World) -> None:
    """The output of the completion, not the last message."""
    child = await begun_with_child(world)
    await child.complete("invoice 4711")
    await work(world, "research", waits)
    await world.work(delegates())
    assert await world.said() == ["end_turn: invoice 4711"]


async def test_a_child_is_archived_and_expires_only_after_its_parent_knows(world: World) -> None:
    """Otherwise the parent would wait for a log that is gone."""
    child = await begun_with_child(world)
    await child.lifecycle.set_timeouts(limpet.Timeouts(expiry=timedelta(minutes=1)))
    await child.complete("found")
    with pytest.raises(limpet.errors.GuardFailed, match="tell its parent"):
        await child.archive()
    world.later(600)
    assert (await world.lp.work.sweep()).deleted == 0
    await work(world, "research", waits)
    assert (await world.lp.work.sweep()).deleted == 1
    await world.work(delegates())
    assert await world.said() == ["end_turn: found"]


async def test_a_termination_reaches_children_and_their_children(world: World) -> None:
    """Level by level; every budget comes back, and nothing is left due."""
    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")

    async def middle(turn: limpet.Turn) -> None:
        await (await turn.delegate("leaf", "deeper", budget=0.1)).result()

    await world.work(delegates(budget=0.2))
    await work(world, "research", middle)
    await work(world, "leaf", waits)
    await session.terminate()
    await world.work(delegates())
    for _ in range(2):
        await work(world, "research", middle)
        await work(world, "leaf", waits)
    for app in ("research", "leaf"):
        (head,) = (await world.lp.list(app=app)).items
        assert head.phase == "terminated"
    assert not await world.session.runs.children()
    assert world.session.runs.budget.remaining.cost == 0.95
    assert not await world.lp.work.claim("w")
    assert (await world.lp.maintenance.verify()).ok


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_cascade_that_dies_is_finished_by_the_next_worker(
    world: World, at: int, recorded: bool
) -> None:
    """At whichever commit: the child is terminated, and its parent knows."""
    child = await begun_with_child(world, budget=0.2)
    await world.session.terminate()
    await world.die(delegates(), at, recorded=recorded)
    world.later()
    await world.work(delegates())
    await work(world, "research", waits)
    await child.refresh()
    assert child.phase == "terminated"
    assert not await world.session.runs.children()
    assert world.session.runs.budget.remaining.cost == 0.95
    assert not await world.lp.work.claim("w")


async def test_a_child_without_cascade_outlives_its_parent(world: World) -> None:
    """A termination lets go of it, and its end then wakes nobody; its budget comes back."""
    child = await begun_with_child(world, cascade=False, budget=0.2)
    await world.session.terminate()
    await world.work(delegates())
    await child.refresh()
    assert (child.phase, len(child.blocked_on)) == ("active", 1)
    await child.confirm(child.blocked_on[0].id, allow=True, actor="user:ada")
    await work(world, "research", waits)
    assert world.session.runs.budget.remaining.cost == 0.95
    assert not await world.lp.work.claim("w")


async def test_an_interrupt_leaves_a_child_without_cascade_alone(world: World) -> None:
    """Its end is an input of the parent's next turn."""
    child = await begun_with_child(world, cascade=False)
    await world.session.interrupt()
    await world.work(delegates())
    await child.refresh()
    await child.confirm(child.blocked_on[0].id, allow=True, actor="user:ada")
    await work(world, "research", waits)
    await world.work(delegates())
    assert await world.said() == ["late: end_turn"]


async def test_agents_that_delegate_to_each_other_come_to_an_end(world: World) -> None:
    """A cycle of apps is bounded by its depth, and the error goes all the way up."""

    def to(app: str) -> Any:
        async def harness(turn: limpet.Turn) -> None:
            if turn.inputs[0].type != "user.message":
                return
            try:
                result = await (await turn.delegate(app, "you do it")).result()
            except limpet.errors.InvalidEvent:
                await turn.say("too deep")
            else:
                await turn.say(result["output"])

        return harness

    await world.begin("hi")
    for _ in range(2 * DELEGATION_DEPTH_MAX):
        await world.work(to("other"))
        await work(world, "other", to(APP))
    assert await world.said() == ["too deep"]
    made = [*(await world.lp.list(app=APP)).items, *(await world.lp.list(app="other")).items]
    assert len(made) == DELEGATION_DEPTH_MAX + 1


async def test_a_guard_that_keeps_a_child_alive_does_not_keep_its_parent(world: World) -> None:
    """The parent lets go of it."""
    child = await begun_with_child(world)
    world.lp.policies.lifecycle(
        "research", guards={("active", "terminate"): lambda session: "not yet"}
    )
    await world.session.terminate()
    await world.work(delegates())
    await child.refresh()
    assert child.phase == "active"
    assert not await world.session.runs.children()
    assert not await world.lp.work.claim("w", app=APP)


async def test_a_worker_whose_lease_is_lost_undoes_nothing_that_another_has_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still just before it records its second intent; when it goes on, it is refused."""
    undone: list[str] = []

    async def undo(session: limpet.Session[Any], effect: limpet.PastEffect) -> None:
        undone.append(effect.key)

    async def pays(turn: limpet.Turn) -> None:
        for _ in range(2):
            await turn.effect("pay", lambda: 1, compensate="undo")

    world.lp.policies.lifecycle("support", compensations={"undo": undo})
    session = await world.begin("hi")
    await world.work(pays)
    await session.terminate("enough", actor="user:ada")
    stands, goes_on, commit = asyncio.Event(), asyncio.Event(), world.store.commit

    async def slow(commits: Any) -> Any:
        types = [draft.type for each in commits for draft in each.drafts]
        if types == ["effect.compensating"] and not stands.is_set():
            stands.set()
            await goes_on.wait()
        return await commit(commits)

    monkeypatch.setattr(world.store, "commit", slow)
    (lease,) = await world.lp.work.claim("slow", lease_seconds=30, app="support")
    first = asyncio.ensure_future(Wake(world.lp, lease, harness_options(pays)).run())
    async with asyncio.timeout(60):
        await stands.wait()
        world.later()
        await world.work(pays)
        goes_on.set()
        assert (await first).reason == "lease_lost"
    assert len(undone) == len(set(undone)) == 2
