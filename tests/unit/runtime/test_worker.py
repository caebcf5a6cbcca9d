"""The worker: many sessions at once, leases renewed together, a clean end."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import pytest

import limpet
from limpet.runtime import wake
from limpet.runtime.wake import DelayedCalls
from limpet.runtime.worker import Rates
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def many(world: World, number: int) -> list[limpet.Session[Any]]:
    return [await world.begin("hi") for _ in range(number)]


async def echo(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.say(message.data["text"])


async def test_a_worker_runs_everything_that_is_due_and_ends(world: World) -> None:
    """With idle_exit it returns when nothing is due; each input is answered once."""
    sessions = await many(world, 20)
    rates = await limpet.Worker(world.lp, echo, app="support", idle_exit=True).run()
    assert (rates.turns, rates.claimed) == (20, 20)
    for session in sessions:
        await session.refresh()
        assert session.status == "idle"
        assert not session.head.pending


async def test_a_worker_runs_as_many_at_once_as_it_may(world: World) -> None:
    """And no more; one slow session does not keep the others waiting."""
    running = most = 0
    gate = asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            asyncio.get_running_loop().call_soon(open_later, 20)
        await gate.wait()
        running -= 1

    def open_later(rounds: int) -> None:
        """A fifth would run by then."""
        if rounds:
            asyncio.get_running_loop().call_soon(open_later, rounds - 1)
        else:
            gate.set()

    await many(world, 9)
    await limpet.Worker(world.lp, harness, app="support", concurrency=4, idle_exit=True).run()
    assert most == 4


@pytest.mark.parametrize(("concurrency", "most"), [(64, 64), (80, 32)])
async def test_turns_that_wait_are_claimed_in_groups(
    world: World, monkeypatch: pytest.MonkeyPatch, concurrency: int, most: int
) -> None:
    """Above 64 at once; all of them run at once, however many claims that takes."""
    load, claims, began, all_began = world.store.load_many, list[int](), [0], asyncio.Event()

    async def loaded(keys: Any, **how: Any) -> Any:
        claims.append(len(keys))
        return await load(keys, **how)

    async def harness(turn: limpet.Turn) -> None:
        began[0] += 1
        if began[0] == concurrency:
            all_began.set()
        await all_began.wait()

    await many(world, concurrency)
    monkeypatch.setattr(world.store, "load_many", loaded)
    worker = limpet.Worker(
        world.lp, harness, app="support", concurrency=concurrency, idle_exit=True
    )
    rates = await asyncio.wait_for(worker.run(), 20)
    assert (rates.turns, max(claims)) == (concurrency, most)


async def test_a_worker_goes_on_while_ends_are_recorded(world: World) -> None:
    """What counts for `concurrency` is a harness that runs, not a last commit on its way."""
    began: list[str] = []
    both = asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        began.append(turn.session.id)
        if len(began) == 2:
            both.set()

    await many(world, 2)
    _hold_commits(world, both)
    worker = limpet.Worker(world.lp, harness, app="support", concurrency=1, idle_exit=True)
    async with asyncio.timeout(60):
        rates = await worker.run()
    assert (rates.turns, len(set(began))) == (2, 2)


async def test_a_worker_leases_no_more_than_it_can_record(world: World) -> None:
    """While the store takes its time, at most twice `concurrency` sessions are its own."""
    slow, full = asyncio.Event(), asyncio.Event()
    most = 0

    async def harness(turn: limpet.Turn) -> None:
        """Nothing to do."""

    def progress(rates: Rates) -> None:
        nonlocal most
        most = max(most, rates.running)
        if most == 4:
            full.set()

    await many(world, 9)
    _hold_commits(world, slow)
    how: Any = {"concurrency": 2, "idle_exit": True, "progress": progress}
    worker = limpet.Worker(world.lp, harness, app="support", poll_seconds=0.001, **how)
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(60):
        await full.wait()
        for _ in range(100):  # it has every reason to claim more
            worker._bell.set()
            await asyncio.sleep(0)
        assert most == 4
        slow.set()
        assert (await running).turns == 9
    assert most == 4


async def test_a_lease_that_is_given_back_is_not_renewed(world: World) -> None:
    """It would count as lost. Only if the last commit takes long is it renewed meanwhile."""
    began, ends, ended, slow = (asyncio.Event() for _ in range(4))

    async def harness(turn: limpet.Turn) -> None:
        began.set()
        await ends.wait()
        asyncio.get_running_loop().call_soon(ended.set)

    session = await world.begin("hi")
    _hold_commits(world, slow)
    worker = limpet.Worker(world.lp, harness, app="support", idle_exit=True)
    running = asyncio.ensure_future(worker.run())

    def renewed() -> list[limpet.Key]:
        return [each.lease.key for each in worker._to_renew()]

    async with asyncio.timeout(60):
        await began.wait()
        assert (renewed(), renewed()) == ([session.key], [session.key])
        ends.set()
        await ended.wait()
        await asyncio.sleep(0)
        assert (renewed(), renewed(), renewed()) == ([], [session.key], [session.key])
        slow.set()
        assert (await running).turns == 1
    assert renewed() == []


async def test_a_long_run_of_a_worker_hears_of_an_interrupt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it records nothing itself."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", 0.001)
    began, heard, notes = asyncio.Event(), asyncio.Event(), []

    async def harness(turn: limpet.Turn) -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except limpet.Interrupted as stop:
            notes.append(stop.note)
            heard.set()
            raise

    session = await world.begin("hi")
    worker = limpet.Worker(world.lp, harness, app="support")
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(60):
        await began.wait()
        await session.interrupt("enough")
        await heard.wait()
    worker.stop()
    assert (await running).turns == 1
    assert notes == ["enough"]


async def test_a_run_that_was_short_does_not_listen_afterwards(world: World) -> None:
    """There may be thousands a second."""
    await world.begin("hi")
    (lease,) = await world.lp.work.claim("w", app="support")
    later = DelayedCalls(3_600)
    await wake.Wake(world.lp, lease, wake.harness_options(echo), listeners=later).run()
    assert not later._calls
    later.close()


def _hold_commits(world: World, until: asyncio.Event) -> None:
    """Let the store record nothing before then."""
    commit = world.store.commit

    async def held(commits: Any) -> Any:
        await until.wait()
        return await commit(commits)

    world.store.commit = held  # type: ignore[method-assign]


async def test_a_worker_stops_after_so_many_turns(world: World) -> None:
    """max_turns bounds what it claims."""
    await many(world, 5)
    rates = await limpet.Worker(world.lp, echo, app="support", max_turns=3).run()
    assert rates.turns == 3
    assert len(await world.lp.work.claim("w", limit=10)) == 2


async def test_new_urgent_work_goes_first(world: World) -> None:
    """What is due is asked for again after every run, so that a late urgent session passes by."""
    order: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        order.append(turn.session.id)
        if len(order) == 1:
            urgent = await world.begin("now!")
            await urgent.lifecycle.set_priority(9)
            order.append("urgent is " + urgent.id)

    await many(world, 3)
    await limpet.Worker(world.lp, harness, app="support", concurrency=1, idle_exit=True).run()
    assert order[1] == f"urgent is {order[2]}"


async def test_work_is_picked_up_as_it_comes(world: World) -> None:
    """A worker that waits hears of new input at once."""
    answered = asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("ok")
        answered.set()

    worker = limpet.Worker(world.lp, harness, app="support", poll_seconds=300)
    running = asyncio.ensure_future(worker.run())
    await asyncio.sleep(0)
    await world.begin("hi")
    async with asyncio.timeout(60):
        await answered.wait()
    worker.stop()
    assert (await running).turns == 1


async def test_a_stopped_worker_gives_back_what_does_not_end(world: World) -> None:
    """The turn is not counted as failed, and another worker goes on with it at once."""
    began, attempts = asyncio.Event(), []

    async def harness(turn: limpet.Turn) -> None:
        attempts.append(turn.attempt)
        await turn.step("first", lambda: 1)
        if turn.attempt == 1:
            began.set()
            await asyncio.get_running_loop().create_future()

    session = await world.begin("hi")
    worker = limpet.Worker(world.lp, harness, app="support", grace_seconds=0)
    running = asyncio.ensure_future(worker.run())
    await began.wait()
    worker.stop()
    await running
    await session.refresh()
    assert (session.status, session.head.worker) == ("rescheduling", None)
    await world.work(harness, retries=0)
    assert session.stop_reason == "end_turn"
    assert attempts == [1, 2]
    assert (await world.types()).count("step.recorded") == 1


async def test_what_a_stopped_run_left_open_has_an_outcome_at_once(world: World) -> None:
    """Its effect is unknown, its span closed and its reservation used; a person is asked."""
    began = asyncio.Event()

    async def pay() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", pay, max_cost=0.25)

    session = await world.begin("hi")
    await session.runs.grant(1.0, actor="user:ada")
    worker = limpet.Worker(world.lp, harness, app="support", grace_seconds=0)
    running = asyncio.ensure_future(worker.run())
    await began.wait()
    worker.stop()
    await running
    await session.refresh()
    types = await world.types()
    assert types.count("effect.unknown") == 1
    assert types.count("span.started") == types.count("span.completed")
    assert session.runs.budget is not None
    assert (session.runs.budget.spent.cost, session.runs.budget.reserved.cost) == (0.25, 0.0)
    await world.work(harness)
    await session.resolve(session.blocked_on[0].id, happened="paid", actor="user:ada")
    await world.work(harness)
    types = await world.types()
    assert session.stop_reason == "end_turn"
    assert types.count("span.started") == types.count("span.completed")


async def test_sigterm_lets_turns_finish(world: World) -> None:
    """A signal ends the claiming, not the work."""

    async def harness(turn: limpet.Turn) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        await turn.say("finished")

    await world.begin("hi")
    async with asyncio.timeout(60):
        rates = await limpet.Worker(world.lp, harness, app="support").run()
    assert rates.turns == 1
    assert await world.said() == ["finished"]


async def test_a_lost_lease_stops_the_work(world: World) -> None:
    """The harness is cancelled, nothing more of it is written; the new holder is undisturbed."""
    began, stopped = asyncio.Event(), asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    session = await world.begin("hi")
    worker = limpet.Worker(world.lp, harness, app="support", lease_seconds=0.03)
    running = asyncio.ensure_future(worker.run())
    await began.wait()
    assert (await world.lp.get(session.key)).status == "running"
    world.later(1)
    (lease,) = await world.lp.work.claim("other", lease_seconds=600)
    async with asyncio.timeout(60):
        await stopped.wait()
    worker.stop()
    assert (await running).lost == 1
    assert (await world.lp.get(session.key)).head.worker == "other"
    assert lease.fence == 2


async def test_where_many_cannot_be_read_together_each_is_read_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session that cannot be read must not keep its neighbours from their turns."""

    async def refuses(*_: Any, **how: Any) -> Any:
        raise limpet.errors.SessionCorrupt("one of them", "it cannot be read")

    monkeypatch.setattr(world.store, "load_many", refuses)
    for _ in range(3):
        await world.begin("hi")
    rates = await limpet.Worker(world.lp, echo, app="support", idle_exit=True).run()
    assert rates.turns == 3


async def test_a_worker_that_is_cancelled_while_it_reads_runs_what_it_has_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their leases would otherwise keep the sessions from every other worker until they expire."""
    running: asyncio.Task[limpet.Rates]

    async def cancels(*_: Any, **how: Any) -> Any:
        running.cancel()
        await asyncio.sleep(0)

    monkeypatch.setattr(world.store, "load_many", cancels)
    for _ in range(2):
        await world.begin("hi")
    worker = limpet.Worker(world.lp, echo, app="support", idle_exit=True)
    running = asyncio.ensure_future(worker.run())
    await asyncio.wait([running])
    assert (running.cancelled(), worker.rates.turns) == (True, 2)


async def test_an_expired_holder_cannot_commit(world: World) -> None:
    """The fence refuses its writes, whatever it believes."""

    async def harness(turn: limpet.Turn) -> None:
        world.later()
        await world.lp.work.claim("other")
        await turn.say("too late")

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.reason == "lease_lost"
    assert not await world.said()


async def test_one_broken_session_does_not_stop_the_others(world: World) -> None:
    """A harness that raises is tried again later; the rest is done."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.session.id == broken.id:
            raise ValueError("no")
        await turn.say("ok")

    sessions = await many(world, 5)
    broken = sessions[0]
    rates = await limpet.Worker(world.lp, harness, app="support", idle_exit=True).run()
    assert (rates.turns, rates.failed) == (4, 1)


@pytest.mark.parametrize(
    "how",
    [{"concurrency": 0}, {"retries": -1}, {"on_mismatch": "no"}, {"lease_seconds": 0}],
    ids=str,
)
async def test_a_worker_refuses_what_makes_no_sense(world: World, how: dict[str, Any]) -> None:
    """Before anything runs."""
    with pytest.raises(limpet.InvalidInput):
        limpet.Worker(world.lp, echo, app="support", **how)


async def test_a_harness_is_an_async_function_or_an_object_with_run(world: World) -> None:
    """Both work; what returns nothing to await fails its turn, and anything else is refused."""

    class Agent:
        async def run(self, turn: limpet.Turn) -> None:
            await turn.say("object")

    await world.begin("hi")
    await world.work(Agent())
    assert await world.said() == ["object"]
    await world.send("again")
    (woken,) = await world.work(lambda turn: turn.id)
    assert isinstance(woken.error, limpet.errors.TurnMisused)
    with pytest.raises(limpet.InvalidInput):
        limpet.Worker(world.lp, 5, app="support")


class Plain:
    def run(self, turn: limpet.Turn) -> None: ...


class PlainCall:
    def __call__(self, turn: limpet.Turn) -> None: ...


class AsyncCall:
    async def __call__(self, turn: limpet.Turn) -> None:
        await echo(turn)


def plain(turn: limpet.Turn, word: str = "") -> str | None:
    if word:
        return "done"
    with suppress(KeyError):
        turn.inputs[0].data["text"]
    return None


def pieces(turn: limpet.Turn) -> Generator[str, str, str]:
    return (yield "a")


async def async_pieces(turn: limpet.Turn) -> AsyncIterator[str]:
    yield "a"


def fails(turn: limpet.Turn) -> None:
    raise ValueError


@pytest.mark.parametrize(
    "harness",
    [plain, partial(plain, word="hi"), Plain(), PlainCall(), pieces, async_pieces, fails],
    ids=["def", "partial", "run", "call", "generator", "async generator", "raises"],
)
async def test_a_harness_that_cannot_be_awaited_is_refused(world: World, harness: Any) -> None:
    """When the worker is made, or the session is woken: not as a failed turn of every session."""
    session = await world.begin("hi")
    with pytest.raises(limpet.InvalidInput, match="Define it with `async def`"):
        limpet.Worker(world.lp, harness, app="support")
    with pytest.raises(limpet.InvalidInput, match="is not async"):
        await world.lp.wake(session.key, harness)
    assert await world.lp.work.claim(
        "w", lease_seconds=1, app="support"
    )  # nothing was leased or failed


def decorated(fn: Any) -> Any:
    def wrapper(turn: limpet.Turn) -> Any:
        return fn(turn)

    return wrapper


@pytest.mark.parametrize(
    "harness",
    [
        AsyncCall(),
        partial(partial(echo)),
        decorated(echo),
        wraps(plain)(decorated(echo)),
        lambda turn: echo(turn) or None,
        lambda turn: asyncio.gather(echo(turn)),
    ],
    ids=["call", "partial", "decorated", "wrapped", "or none", "future"],
)
async def test_a_harness_that_may_give_something_to_await_is_taken(
    world: World, harness: Any
) -> None:
    """Only what is surely not async is refused: what a decorator returns is seen when it runs."""
    await world.begin("hi")
    await limpet.Worker(world.lp, harness, app="support", idle_exit=True).run()
    assert await world.said() == ["hi"]


async def test_a_harness_that_cannot_be_called_is_a_dead_letter_at_once(world: World) -> None:
    """No retry could cure it, however many are left; the worker says why."""
    told: list[tuple[str, str]] = []

    async def takes_no_turn() -> None: ...

    await world.begin("hi")
    worker = limpet.Worker(
        world.lp,
        takes_no_turn,
        app="support",
        idle_exit=True,
        failure=lambda key, error: told.append((key.app, type(error).__name__)),
    )
    rates = await worker.run()
    assert (rates.dead, rates.failed, told) == (1, 0, [("support", "TypeError")])
    (head,) = (await world.lp.work.dead_letters(app="support")).items
    failure = (await world.lp.get(head.key)).runs.failure
    assert failure is not None
    assert "takes 0 positional arguments" in failure.message
    assert head.worker is None


async def nothing(turn: limpet.Turn) -> None: ...


async def two(turn: limpet.Turn, more: int) -> None: ...


def sometimes(turn: limpet.Turn) -> Any:
    return [None][0]


def raises_type_error(turn: limpet.Turn) -> Any:
    if turn.attempt:
        raise TypeError("of its own")
    return nothing(turn)


MISFITS: dict[str, tuple[Any, str]] = {
    "takes too much": (two, "missing 1 required positional argument"),
    "is not async": (sometimes, "Define it with `async def`"),
    "its model returns None": (limpet.Agent(lambda request: None), "not None"),
    "its model returns a number": (limpet.Agent(lambda request: 5), "not int 5"),
    "its model yields numbers": (limpet.Agent(lambda request: iter([5])), "not int 5"),
    "its model takes nothing": (limpet.Agent(lambda: "hi"), "a limpet.ModelRequest"),
}


@pytest.mark.parametrize("name", list(MISFITS))
async def test_what_no_retry_can_cure_is_a_dead_letter_at_once(world: World, name: str) -> None:
    """With its reason; the message stays pending, and is answered once the code is repaired."""
    harness, why = MISFITS[name]
    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, session.head.pending) == ("retries_exhausted", 1)
    assert why in session.runs.failure.message
    await world.lp.work.requeue(session.key)
    (woken,) = await world.work(nothing)
    assert woken.reason == "end_turn"


async def test_a_type_error_of_the_harness_itself_is_tried_again(world: World) -> None:
    """Its signature is right: another run may do better."""

    def typed(request: limpet.ModelRequest) -> str:
        raise TypeError("of its own")

    for harness in (raises_type_error, limpet.Agent(typed)):
        await world.begin("hi")
        (woken,) = await world.work(harness)
        assert woken.reason == "rescheduling"


async def test_a_worker_is_given_an_open_limpet(world: World) -> None:
    """The sync one has no `await` to work with, and a URL is not open."""
    for lp in ("memory://", None, limpet.SyncLimpet):
        with pytest.raises(limpet.InvalidInput, match=r"limpet\.open\(url\)"):
            limpet.Worker(cast("Any", lp), echo, app=None)


async def test_migrations_without_a_state_type_are_refused_at_once(world: World) -> None:
    """When the worker is made, and not with the first session that it claims."""
    with pytest.raises(limpet.InvalidInput, match="state_type"):
        limpet.Worker(world.lp, echo, app="support", migrations=limpet.MigrationRegistry("s"))


OPTIONS = [
    each.name
    for each in inspect.signature(limpet.Worker).parameters.values()
    if each.kind is each.KEYWORD_ONLY and each.name != "app"
]


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_of_a_worker_is_described(option: str) -> None:
    """In `help(limpet.Worker)`, and in the table of docs/runtime.md."""
    assert f"- `{option}`: " in (inspect.getdoc(limpet.Worker) or "")
    assert f"\n| `{option}` | " in (Path(__file__).parents[3] / "docs" / "runtime.md").read_text()


def test_no_option_of_a_worker_is_described_that_it_lacks() -> None:
    """The list in its docstring names its parameters, in their order."""
    doc = inspect.getdoc(limpet.Worker) or ""
    assert re.findall(r"^- `(\w+)`:", doc, re.MULTILINE) == OPTIONS
