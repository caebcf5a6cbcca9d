"""Defects that were seen in another runtime of this kind, each as the law that ours keeps.

The numbers are those of the list; the table names the test of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

import limpet
from limpet.runtime import wake
from tests.support.agents import World, a_world

HERE = "tests.unit.runtime.test_defects"
WORKERS, AGENTS = "tests.unit.runtime.test_worker", "tests.unit.runtime.test_agents"
CUTS, LOCKS = "tests.fault.test_power_cut", "tests.fault.test_file_locks"
# Each defect, and the test that ours passes. The list has no number 23.
DEFECTS = {
    1: ("a torn tail, then an append", CUTS, "test_cuts_in_series_take_nothing_acknowledged"),
    2: ("kill -9 leaves it running", HERE, "test_2_a_kill_leaves_no_running_no_open_span"),
    3: ("a leftover lock blocks", LOCKS, "test_a_log_left_by_a_killed_process_keeps_nobody_out"),
    4: ("inputs processed too early", HERE, "test_4_inputs_are_processed_in_the_commit"),
    5: ("one broken session breaks listing", HERE, "test_5_one_broken_session_breaks_no_listing"),
    6: ("no fsync", CUTS, "test_a_store_that_does_not_sync_is_caught"),
    7: ("no dead letter", HERE, "test_7_8_a_poison_input_backs_off_ever_longer"),
    8: ("back-off never grows", HERE, "test_7_8_a_poison_input_backs_off_ever_longer"),
    9: ("a failed revisit is lost", HERE, "test_9_a_revisit_whose_run_fails_comes_again"),
    10: ("no fencing", WORKERS, "test_an_expired_holder_cannot_commit"),
    11: ("owner names not unique", HERE, "test_11_worker_names_are_unique"),
    12: ("leftovers kill the worker", HERE, "test_12_what_a_dead_worker_left_stops_no_other"),
    13: ("sorted by time", HERE, "test_13_events_are_in_the_order_of_their_seq"),
    14: ("one of several revisits", HERE, "test_14_all_due_revisits_are_delivered_at_once"),
    15: ("cancelled revisits shown", HERE, "test_15_an_interrupt_shows_no_cancelled_revisit"),
    16: ("idle with a pending input", HERE, "test_16_a_message_in_mid_run_does_not_end_as_idle"),
    17: ("a re-sent id sticks", HERE, "test_17_a_processed_id_that_is_sent_again"),
    18: ("a message drops a request", HERE, "test_18_an_unrelated_message_leaves_the_tool_request"),
    19: ("one approval for every call", HERE, "test_19_an_approval_is_for_one_call"),
    20: ("forward paging skips", "tests.acceptance.test_session_api", "test_read_pages_both_ways"),
    21: ("a write is overwritten", HERE, "test_21_what_a_turn_wrote_to_state_is_there_after_it"),
    22: (
        "criteria match themselves",
        "tests.unit.runtime.test_agents",
        "test_22_criteria_are_never",
    ),
    24: ("no history within a small budget", HERE, "test_24_a_budget_too_small_for_any_history"),
    25: ("a nested path skips confirmation", HERE, "test_25_no_path_to_a_tool_skips_its"),
    26: ("mounts leak", "tests.unit.runtime.test_children", "test_a_child_has_nothing_but_what"),
    27: ("an agent writes its checkpoint", HERE, "test_27_an_agent_cannot_write_what_the_runtime"),
    28: ("lineage ignored", HERE, "test_28_children_are_listed_by_their_parent"),
    29: ("appends re-read the journal", HERE, "test_29_30_a_turn_reads_what_it_needs"),
    30: ("wakes read all sessions", HERE, "test_29_30_a_turn_reads_what_it_needs"),
    31: ("one serial worker", WORKERS, "test_a_worker_runs_as_many_at_once_as_it_may"),
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def echo(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.say(message.data["text"])


@pytest.mark.parametrize("number", DEFECTS)
def test_every_defect_has_its_test(number: int) -> None:
    """The table names tests that are there, by their beginning."""
    _, module, name = DEFECTS[number]
    assert any([each.startswith(name) for each in vars(import_module(module))])


def test_no_defect_is_left_out() -> None:
    """All numbers of the list."""
    assert sorted(DEFECTS) == [n for n in range(1, 32) if n != 23]


async def test_2_a_kill_leaves_no_running_no_open_span_and_no_lost_revisit(world: World) -> None:
    """The lease of the dead ends by itself, within what it was granted for."""
    delivered = []

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs:
            turn.revisit(timedelta(seconds=1), "back", "k")
            return
        delivered.append(turn.revisits[0].reason)
        await turn.step("work", lambda: 1)

    session = await world.begin("hi")
    await world.work(harness)
    world.later(2)
    assert await world.die(harness, 2, recorded=False)
    world.later(30)
    assert (await session.refresh()).status == "idle"
    await world.work(harness)
    assert delivered == ["back", "back"]
    types = await world.types()
    assert types.count("span.started") == types.count("span.completed")


async def test_4_inputs_are_processed_in_the_commit_of_the_reply_or_later(world: World) -> None:
    """Whatever the worker dies at, an input that counts as processed has its answer."""
    for at in (1, 2):
        for recorded in (True, False):
            session = await world.begin("hi")
            await world.die(echo, at, recorded=recorded)
            await session.refresh()
            assert session.head.pending or await world.said() == ["hi"]
            world.later()
            await world.work(echo)
            assert await world.said() == ["hi"]


async def test_5_one_broken_session_breaks_no_listing(world: World) -> None:
    """A dead letter is listed like any other, and the others run."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.session.id == broken.id:
            raise ValueError("no")

    broken, fine = await world.begin("a"), await world.begin("b")
    await world.work(harness, retries=0)
    keys = {head.key for head in (await world.lp.list(app="support")).items}
    assert keys == {broken.key, fine.key}
    assert (await world.lp.get(fine.key)).stop_reason == "end_turn"


async def test_7_8_a_poison_input_backs_off_ever_longer_and_ends_as_a_dead_letter(
    world: World,
) -> None:
    """It does not keep a worker busy."""

    async def harness(turn: limpet.Turn) -> None:
        raise ValueError

    await world.begin("hi")
    for _ in range(3):
        assert len(await world.work(harness, retries=3)) == 1
        world.later(400)
    await world.work(harness, retries=3)
    errors = [e for e in await world.log() if e.type == "session.error"]
    waits = [e.data["retry_us"] - e.at_us for e in errors[:-1]]
    assert waits == sorted(waits)
    assert world.session.stop_reason == "retries_exhausted"


async def test_9_a_revisit_whose_run_fails_comes_again(world: World) -> None:
    """It is taken off by the commit that closes its turn, and by no other."""
    runs = []

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs:
            turn.revisit(timedelta(seconds=1), "back", "k")
            return
        runs.append(turn.revisits[0].key)
        if len(runs) == 1:
            raise ValueError

    await world.begin("hi")
    for _ in range(3):
        await world.work(harness)
        world.later(60)
    assert runs == ["k", "k"]


def test_11_worker_names_are_unique() -> None:
    """Two workers never take each other's lease for their own."""
    from limpet.runtime.wake import worker_name

    assert len({worker_name("w") for _ in range(1_000)}) == 1_000


async def test_12_what_a_dead_worker_left_stops_no_other(world: World) -> None:
    """Its leases are passed over until they end; nothing else is left of it to stumble over."""
    session = await world.begin("hi")
    (lease,) = await world.lp.work.claim("dead", lease_seconds=30, app="support")
    other = await world.lp.create("support", "ada", actor="user:ada")
    await other.append("user.message", {"text": "me too"})
    assert [woken.reason for woken in await world.work(echo)] == ["end_turn"]
    assert session.head.worker == "dead"
    world.later()
    assert [woken.reason for woken in await world.work(echo)] == ["end_turn"]
    assert not await world.lp.work.release(lease)


async def test_13_events_are_in_the_order_of_their_seq(world: World) -> None:
    """Also if the clock was set back in between."""
    session = await world.begin("first")
    world.clock.leap(timedelta(hours=-1))
    await world.send("second")
    seen: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.extend(m.data["text"] for m in turn.inputs)

    await world.work(harness)
    assert seen == ["first", "second"]
    assert [e.seq for e in await session.read()] == [*range(1, session.version + 1)]


async def test_14_all_due_revisits_are_delivered_at_once(world: World) -> None:
    """Not the first of them only."""
    seen: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(len(turn.revisits))
        for number in range(5 if turn.inputs else 0):
            turn.revisit(timedelta(seconds=1), "x", f"{number}")

    await world.begin("hi")
    await world.work(harness)
    world.later(5)
    await world.work(harness)
    assert seen == [0, 5]


async def test_15_an_interrupt_shows_no_cancelled_revisit(world: World) -> None:
    """It is gone from the head at once, and never delivered."""
    seen: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append(len(turn.revisits))
        turn.revisit(timedelta(seconds=1), "x")

    session = await world.begin("hi")
    await world.work(harness)
    await session.interrupt()
    assert not session.head.timers
    world.later(5)
    await world.work(harness)
    assert seen == [0]


async def test_16_a_message_in_mid_run_does_not_end_as_idle_and_pending(world: World) -> None:
    """The session is due again the moment its turn closes."""
    more = ["second", "third"]

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(turn.inputs[0].data["text"])
        if more:
            await world.send(more.pop(0))

    await world.begin("first")
    await world.work(harness)
    assert await world.said() == ["first", "second", "third"]
    assert world.session.head.pending == 0


async def test_17_a_processed_id_that_is_sent_again_changes_nothing(world: World) -> None:
    """Not the status either."""
    session = await world.begin()
    await session.append("user.message", {"text": "hi"}, id="m", actor="user:ada")
    await world.work(echo)
    again = await session.append("user.message", {"text": "hi"}, id="m", actor="user:ada")
    assert again.repeated
    assert not await world.work(echo)
    assert (session.status, session.stop_reason) == ("idle", "end_turn")


async def test_18_an_unrelated_message_leaves_the_tool_request_alone(world: World) -> None:
    """It can still be answered."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say(str(await turn.ask("tool", {})))

    session = await world.begin("hi")
    await world.work(harness)
    (request,) = session.blocked_on
    await world.send("hello?")
    await world.work(harness)
    await session.answer(request.id, 5)
    await world.work(harness)
    assert await world.said() == ["5"]


async def test_19_an_approval_is_for_one_call(world: World) -> None:
    """The next call of the same tool is asked for again."""
    ran: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        for number in range(2):
            if await turn.approve("pay", {"n": number}):
                ran.append(number)

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    assert len(session.blocked_on) == 1
    assert session.blocked_on[0].input == {"n": 1}


async def test_21_what_a_turn_wrote_to_state_is_there_after_it(world: World) -> None:
    """Closing a turn writes no state of its own over it."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.append("memory.written", {}, set={"session_state": "mine"})

    session = await world.begin("hi")
    await world.work(harness)
    assert session.state["session_state"] == "mine"


async def test_24_a_budget_too_small_for_any_history_is_an_error(world: World) -> None:
    """The model never gets an empty conversation in silence; what fits is the newest."""
    kept = []

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.errors.InsufficientTokenBudget):
            await turn.context(tokens=1)
        kept.append(len((await turn.context(tokens=40)).messages))

    await world.begin("an old message of some length " * 8, "the newest message of all")
    await world.work(harness)
    assert kept == [1]


async def test_25_no_path_to_a_tool_skips_its_confirmation(world: World) -> None:
    """It is asked for inside the effect, from wherever that is called."""
    ran: list[str] = []

    async def wipe(path: str) -> None:
        ran.append(path)

    async def nested(turn: limpet.Turn) -> None:
        await asyncio.gather(turn.effect("wipe", wipe, path="/"))

    session = await world.begin("hi")
    await world.work(nested, permissions={"wipe": "always_ask"})
    assert not ran
    assert [r.name for r in session.blocked_on] == ["wipe"]


async def test_27_an_agent_cannot_write_what_the_runtime_relies_on(world: World) -> None:
    """Reserved events are refused, from a turn too."""
    refused: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        for type in ("session.status_idle", "span.completed", "effect.succeeded", "step.recorded"):
            try:
                await turn.append(type, {"stop_reason": "end_turn"})
            except limpet.errors.ReservedType as error:
                refused.append(error.code)

    await world.begin("hi")
    await world.work(harness)
    assert refused == ["event.reserved"] * 4


async def test_28_children_are_listed_by_their_parent(world: World) -> None:
    """And by nobody else."""

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "delegate":
            await turn.delegate("other", "x")

    parent, other = await world.begin("delegate"), await world.begin("nothing")
    await world.work(harness)
    assert len(await parent.runs.children()) == 1
    assert not await other.runs.children()


@pytest.mark.parametrize("events", [10, 2_000])
async def test_29_30_a_turn_reads_what_it_needs_and_not_the_log(
    world: World, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reads do not grow with the events of the session or with the sessions of the agent."""
    session = await world.begin()
    await session.append_many(
        [limpet.Draft(type="note.taken", actor="user:ada") for _ in range(events)]
    )
    for _ in range(20):
        await world.lp.create("support", "ada")
    await world.send("hi")
    reads: list[str] = []
    for name in ("load", "read", "pending_inputs", "heads"):
        _count(world, name, reads, monkeypatch)
    (lease,) = await world.lp.work.claim("w", app="support")
    # However slow the machine is, the turn does not listen for interrupts.
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", 3_600.0)
    await wake.Wake(world.lp, lease, wake.harness_options(echo)).run()
    assert reads == ["load"]


def _count(world: World, name: str, reads: list[str], patch: pytest.MonkeyPatch) -> None:
    before: Any = getattr(world.store, name)

    async def counted(*args: Any, **how: Any) -> Any:
        reads.append(name)
        return await before(*args, **how)

    patch.setattr(world.store, name, counted)
