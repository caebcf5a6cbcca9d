"""Deaths: who was in flight is a suspect, suspects run alone, and only who dies alone is dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import limpet
from limpet import errors
from limpet.model.facts.running import deaths
from limpet.model.facts.running.deaths import Deaths, delay_us, held_until_us, is_killer
from limpet.model.lease import Expired
from limpet.runtime.wake import Wake, harness_options
from limpet.server.serve import serving
from tests.support.deaths import APP, Fleet, a_fleet, running_process

SECOND = 1_000_000


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with a_fleet() as made:
        yield made


def test_the_delay_grows_with_deaths() -> None:
    """None after the first, two seconds after the second, twice as long each time, five minutes."""
    assert [delay_us(n) // SECOND for n in range(7)] == [0, 0, 2, 4, 8, 16, 32]
    assert delay_us(100) == 300 * SECOND


def test_a_killer_has_died_alone_as_often_as_it_may() -> None:
    """Deaths beside others make nobody a dead letter, however many."""
    assert not is_killer(Deaths(shared=100, alone=2), 3)
    assert is_killer(Deaths(alone=3), 3)
    assert not is_killer(Deaths(shared=1), 0)
    assert is_killer(Deaths(alone=1), 0)


def test_suspects_wait_together_if_several_died_alone() -> None:
    """One that dies alone holds nobody; the more there are, the longer all wait."""
    one, other = Deaths(alone=1, at_us=50), Deaths(alone=2, at_us=70)
    assert held_until_us([Deaths(shared=3, at_us=90)]) == 0
    assert held_until_us([one]) == 50
    assert held_until_us([one, other]) == 70 + 2 * SECOND
    assert held_until_us([one, other, other]) == 70 + 4 * SECOND


async def test_only_the_session_that_kills_becomes_a_dead_letter(fleet: Fleet) -> None:
    """Thirty beside it are answered; it dies once with them, and `retries` times alone."""
    for number in range(30):
        await fleet.add(f"s{number}")
    await fleet.add("killer", "die")
    await fleet.finish()
    assert await fleet.dead() == {"killer"}
    assert fleet.deaths == 1 + fleet.retries
    assert all(fleet.wakes[f"s{number}"] <= 2 for number in range(30))
    (dead,) = (await fleet.lp.work.dead_letters(app=APP)).items
    assert deaths.dead_reason(dead.facts) == "died"
    errors = await fleet.lp.session(dead.key).read(types=["session.error"])
    assert [e.data["death"] for e in errors] == ["shared"] + ["alone"] * fleet.retries


async def test_innocents_get_on_however_many_kill(fleet: Fleet) -> None:
    """Deaths are bounded by the sessions that kill, not by those beside them."""
    for number in range(20):
        await fleet.add(f"s{number}")
    for number in range(3):
        await fleet.add(f"k{number}", "die")
    await fleet.finish(concurrency=8)
    assert await fleet.dead() == {"k0", "k1", "k2"}
    assert fleet.deaths <= 3 * (1 + fleet.retries)


async def test_a_rolling_deploy_that_kills_slows_nobody_beyond_one_more_wake(fleet: Fleet) -> None:
    """After five processes are killed with eight turns under way each: nobody is dead, and each
    session needs one wake for each death that it was in, and one more."""
    for number in range(40):
        await fleet.add(f"s{number:02}")
    for _ in range(5):
        process = await fleet.process(concurrency=8, kills_at=8)
        assert process.died.is_set()
    fleet.later()
    for number in range(20):
        await fleet.add(f"new{number:02}")
    process = await fleet.process(concurrency=8)
    assert not process.died.is_set(), "one process does it all, at once"
    assert set((await fleet.ends()).values()) == {"end_turn"}
    assert all(n <= 1 + fleet.in_flight[id] for id, n in fleet.wakes.items())
    last = fleet.order[-60:]
    assert [suspect for _, suspect in last].count(True) == 40
    fresh = [place for place, (_, suspect) in enumerate(last) if not suspect]
    assert fresh[0] <= 40 / 8, "a claim of suspects only, for each of them one run"
    assert fresh[-1] <= fresh[0] + 20 + 20 / 8, "then groups of others, and a suspect between them"


async def test_who_is_cleared_is_no_suspect(fleet: Fleet) -> None:
    """A wake that ends by itself clears the session: the next runs beside others."""
    await fleet.add("one")
    await fleet.process(kills_at=1)
    fleet.later()
    await fleet.process()
    session = await fleet.lp.get((APP, "ada", "one"))
    assert session.stop_reason == "end_turn"
    assert "deaths" not in session.head.facts["run"]
    assert "$suspect" not in session.head.indexed_labels
    await session.append("user.message", {"text": "again"}, actor="user:ada")
    await fleet.process()
    assert [suspect for _, suspect in fleet.order] == [True, False]


async def die(fleet: Fleet, times: int) -> None:
    """The only session that is due is claimed by processes that die before they write."""
    for number in range(times):
        fleet.later(600)
        await fleet.lp.work.claim(f"w{number}", app=APP, lease_seconds=30)
        fleet.later()
        (lease,) = await fleet.lp.work.claim("look", app=APP, lease_seconds=30)
        await Wake(fleet.lp, lease, harness_options(fleet.harness)).put_off(0)


@pytest.mark.parametrize("times", [1, 7])  # at once, and after a delay
@pytest.mark.parametrize("left", ["feedback", "nothing"])
async def test_a_suspect_without_a_turn_is_cleared_too(fleet: Fleet, times: int, left: str) -> None:
    """Feedback begins no turn; an input that somebody else has processed leaves nothing to do."""
    await fleet.add("one")
    if left == "feedback":
        await fleet.process()
    session = await fleet.lp.get((APP, "ada", "one"))
    if left == "feedback":
        await session.append("user.feedback", {"rating": 1}, actor="user:ada")
    await die(fleet, times)
    await session.refresh()
    assert session.head.indexed_labels["$suspect"] == "yes"
    if left == "nothing":
        (event,) = await session.pending()
        await session.mark_processed([event.seq], actor="agent:other")
    fleet.later(600)
    await fleet.process()
    await session.refresh()
    assert "$suspect" not in session.head.indexed_labels
    assert limpet.runnable_at(session.head) is None
    assert session.stop_reason == "end_turn"
    assert await fleet.lp.work.claim("w", app=APP, lease_seconds=30) == ()
    assert (await fleet.lp.maintenance.verify()).ok


async def test_a_suspect_that_is_ended_is_none(fleet: Fleet) -> None:
    """Nobody runs it again, so nobody would clear it."""
    await fleet.add("one")
    await die(fleet, 1)
    session = await fleet.lp.get((APP, "ada", "one"))
    await session.terminate("enough")
    assert "$suspect" not in session.head.indexed_labels
    assert not deaths.is_suspect(session.head.facts)


async def test_a_death_before_the_first_write_is_counted(fleet: Fleet) -> None:
    """A process that dies between its claim and its first commit dies like any other."""
    await fleet.add("one")
    for number in range(1 + fleet.retries):
        worker = f"w{number}" if number == 0 else f"w{number}/alone"
        await fleet.lp.work.claim(worker, app=APP, lease_seconds=30)
        fleet.later()
        if number < fleet.retries:
            assert not await fleet.dead()
            (lease,) = await fleet.lp.work.claim("look", app=APP, lease_seconds=30)
            assert lease.expired is not None
            assert (lease.expired.worker, lease.expired.excused) == (worker, False)
            await Wake(fleet.lp, lease, harness_options(fleet.harness)).put_off(0)
            fleet.later(600)
    await fleet.process()
    assert await fleet.dead() == {"one"}
    assert not fleet.wakes, "it is not run again"


async def test_a_holder_that_comes_back_first_withdraws_its_death(fleet: Fleet) -> None:
    """Its lease ran out, it still lives, and nobody has come in between."""
    await fleet.add("one")
    (lease,) = await fleet.lp.work.claim("w1", app=APP, lease_seconds=30)
    fleet.later()
    assert await fleet.lp.work.release(lease) is False
    await fleet.process()
    assert fleet.order == [("one", False)]
    log = await fleet.lp.session((APP, "ada", "one")).read()
    assert "session.error" not in [event.type for event in log]


async def test_a_suspect_whose_death_cannot_be_recorded_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for its lease to run out, and takes that for another death."""
    await fleet.add("one")
    await fleet.lp.work.claim("w1", app=APP, lease_seconds=30)
    fleet.later()
    (lease,) = await fleet.lp.work.claim("w2", app=APP, lease_seconds=3_000)

    async def commit(*args: object, **given: object) -> None:
        raise errors.StoreBusy("memory://")

    with monkeypatch.context() as patched:
        patched.setattr(type(fleet.lp._journal.store), "commit", commit)
        woken = await Wake(fleet.lp, lease, harness_options(fleet.harness)).put_off(1)
    assert woken is not None
    assert woken.reason == "failed"
    session = await fleet.lp.get((APP, "ada", "one"))
    assert session.head.worker is None
    fleet.later(600)
    await fleet.process()
    assert fleet.order == [("one", False)]


async def test_leases_that_ran_out_while_the_store_was_out_of_reach_count_no_death(
    fleet: Fleet,
) -> None:
    """A worker that saw the outage itself takes nobody for dead."""
    await fleet.add("one")
    (lease,) = await fleet.lp.work.claim("w1", app=APP, lease_seconds=30)
    worker = limpet.Worker(fleet.lp, fleet.harness, app=APP, signals=False)
    worker._outages.reached()
    fleet.later(5)
    worker._outages.began()
    fleet.later()
    worker._outages.reached()
    (again,) = await fleet.lp.work.claim("w2", app=APP, lease_seconds=30)
    assert again.expired is not None
    excused = Expired("w1", lease.claimed_us, lease.until_us, excused=True)
    assert worker._judged(again).expired == excused


async def test_wakes_by_hand_run_suspects_alone(fleet: Fleet) -> None:
    """Ten at once, all of them suspects: one after another, once nothing else runs."""
    running: set[str] = set()
    ran: list[tuple[str, int]] = []
    begun, slow = asyncio.Event(), asyncio.Event()

    async def harness(turn: limpet.Turn) -> None:
        begun.set()
        running.add(turn.session.id)
        ran.append((turn.session.id, len(running)))
        if turn.session.id == "slow":
            await slow.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        running.discard(turn.session.id)

    for number in range(10):
        await fleet.add(f"s{number}")
    await fleet.process(kills_at=10)
    fleet.later()
    await fleet.add("slow")
    beside = asyncio.ensure_future(fleet.lp.wake((APP, "ada", "slow"), harness))
    await begun.wait()
    keys = [(APP, "ada", f"s{number}") for number in range(10)]
    wakes = asyncio.gather(*[fleet.lp.wake(key, harness) for key in keys])
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert ran == [("slow", 1)]
    slow.set()
    assert {woken.reason for woken in (await beside, *await wakes)} == {"end_turn"}
    assert sorted(ran) == sorted([("slow", 1), *[(f"s{number}", 1) for number in range(10)]])


async def test_a_wake_within_a_turn_waits_for_nobody(fleet: Fleet) -> None:
    """A suspect that a turn wakes runs beside it, or neither would end."""
    for id in ("one", "two"):
        await fleet.add(id)
    await fleet.process(kills_at=2)
    fleet.later()
    reasons = []

    async def echo(turn: limpet.Turn) -> None:
        await turn.say("done")

    async def nested(turn: limpet.Turn) -> None:
        reasons.append((await fleet.lp.wake((APP, "ada", "two"), echo)).reason)

    assert (await fleet.lp.wake((APP, "ada", "one"), nested)).reason == "end_turn"
    assert reasons == ["end_turn"]


async def test_a_session_that_kills_when_it_is_read_is_counted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its death is recorded before anything of it is read."""
    await fleet.add("one")
    await fleet.lp.work.claim("w1", app=APP, lease_seconds=30)
    fleet.later()
    (lease,) = await fleet.lp.work.claim("w2", app=APP, lease_seconds=30)

    class Dead(BaseException):
        pass

    async def load(*args: object, **given: object) -> None:
        raise Dead

    with monkeypatch.context() as patched:
        patched.setattr(type(fleet.lp._journal.store), "load", load)
        with pytest.raises(Dead):
            await Wake(fleet.lp, lease, harness_options(fleet.harness)).run()
    log = await fleet.lp.session((APP, "ada", "one")).read()
    assert [e.data["death"] for e in log if e.type == "session.error"] == ["shared"]


async def test_dead_letters_are_requeued_by_app_and_reason(fleet: Fleet) -> None:
    """The count is of those that were; a requeued session is no suspect."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    await fleet.add("raises")
    await fleet.lp.wake((APP, "ada", "raises"), broken, retries=0)
    await fleet.add("killer", "die")
    await fleet.finish()
    work = fleet.lp.work
    assert await fleet.dead() == {"raises", "killer"}
    assert await work.requeue(app="other") == 0
    assert await work.requeue(app=APP, reason="died") == 1
    assert await fleet.dead() == {"raises"}
    head = (await fleet.lp.get((APP, "ada", "killer"))).head
    assert "deaths" not in head.facts["run"]
    assert await work.requeue() == 1
    assert await work.requeue(reason="raised") == 0
    for bad in ({"reason": "both"}, {"app": 1}, {"app": "$x"}):
        with pytest.raises((limpet.InvalidInput, limpet.LimpetError)):
            await work.requeue(**bad)  # type: ignore[call-overload]
    with pytest.raises(limpet.LimpetError):
        await work.requeue(None)  # type: ignore[call-overload]
    with pytest.raises(limpet.InvalidInput, match="key of one session"):
        await work.requeue(head.key, app=APP)  # type: ignore[call-overload]


@pytest.mark.parametrize("held", ["suspended", "archived"])
async def test_dead_letters_that_take_no_work_hold_up_no_others(fleet: Fleet, held: str) -> None:
    """They are left out of those that are requeued together."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    for id in ("one", "two", "three"):
        await fleet.add(id)
        await fleet.lp.wake((APP, "ada", id), broken, retries=0)
    two = await fleet.lp.get((APP, "ada", "two"))
    if held == "suspended":
        await two.suspend()
    else:
        await two.complete()
        await two.archive()
    assert await fleet.lp.work.requeue(app=APP) == 2
    assert await fleet.dead() == {"two"}


async def test_a_lease_from_before_its_server_began_counts_no_death(fleet: Fleet) -> None:
    """While a server is away nobody can renew: those who held leases may live."""
    await fleet.add("one")
    await fleet.lp.work.claim("w1", app=APP, lease_seconds=30)
    fleet.later()
    async with serving(fleet.lp, dev=True) as url, limpet.open(url) as client:
        excused = []
        for worker in ("w2", "w3"):
            (lease,) = await client.work.claim(worker, app=APP, lease_seconds=30)
            assert lease.expired is not None
            excused.append(lease.expired.excused)
            fleet.later()
        lock = await client.work.lock((APP, "ada", "one"), worker="w4")
        assert lock.expired is not None
        assert lock.expired.worker == "w3"
    assert excused == [True, False]


async def test_a_compensation_that_kills_is_held_after_it_died_alone(fleet: Fleet) -> None:
    """Its neighbours are answered; a person has to look before anything is undone again."""

    async def undo(session: object, effect: object) -> None:
        process = running_process()
        assert process is not None
        await fleet.kill(process)

    async def buys(turn: limpet.Turn) -> None:
        await turn.effect("buy", lambda idempotency_key: 1, compensate="undo", on_unknown="retry")

    fleet.lp.policies.lifecycle(APP, compensations={"undo": undo})
    await fleet.add("killer")
    key = (APP, "ada", "killer")
    await fleet.lp.wake(key, buys)
    await (await fleet.lp.get(key)).terminate("enough")
    for number in range(5):
        await fleet.add(f"s{number}")
    for _ in range(2 + fleet.retries):
        await fleet.process()
        fleet.later(600)
    assert fleet.deaths == 1 + fleet.retries
    assert await fleet.dead() == {"killer"}
    ends = await fleet.ends()
    assert {ends[f"s{number}"] for number in range(5)} == {"end_turn"}
    head = (await fleet.lp.get(key)).head
    assert list(head.facts["ending"]["held"]) == ["buy"]
    assert deaths.dead_reason(head.facts) == "died"
    assert "$suspect" not in head.indexed_labels
    assert await fleet.lp.work.requeue(app=APP, reason="died") == 1
    assert (await fleet.lp.maintenance.verify()).ok
