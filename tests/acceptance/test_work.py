"""Claims, leases and locks, as a worker uses them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import limpet
from limpet import Key, Lease, Limpet, Session, errors

WHO = "agent:main"


@pytest.fixture
async def waiting(lp: Limpet) -> Session:
    """A session with an input that nobody has looked at."""
    session = await lp.create("support", "eve", id="waiting", state={"n": 0})
    await session.append("user.message", {"text": "hi"}, actor="user:eve")
    return session


async def test_a_round_of_work(lp: Limpet, waiting: Session) -> None:
    """Claim, read, answer, say so, release: then there is nothing left to do."""
    (lease,) = await lp.work.claim("w1")
    assert (lease.key, lease.worker) == (waiting.key, "w1")
    assert lease.until > datetime.now(UTC) + timedelta(seconds=20)
    assert await lp.work.claim("w2") == ()
    session = await lp.session(lease.key, actor=WHO, lease=lease).refresh()
    async with lp.commit() as c:
        c.append(session, "agent.message", {"text": "hello"}, inc={"n": 1})
        c.record(session, limpet.facts.processed([2]))
    lease = await lp.work.renew(lease, lease_seconds=5)
    assert await lp.work.release(lease)
    assert await lp.work.claim("w2") == ()
    await waiting.refresh()
    assert (waiting.state["n"], waiting.head.pending, waiting.head.fence) == (1, 0, 1)


async def test_a_loop_over_what_is_pending_never_runs_dry(lp: Limpet) -> None:
    """The hundred-and-fiftieth message is answered like the first, by an object or a handle."""
    session = await lp.create("support", "ada", actor=WHO)
    seen: list[int] = []
    for number in range(150):
        await session.append("user.message", {"text": "hi", "n": number})
        for message in await lp.session(session.key).pending():
            seen.append(message.data["n"])
            await session.mark_processed([message.seq])
    assert seen == list(range(150))
    await session.append_many([limpet.Draft(type="user.message", data={"text": "hi"})] * 5)
    assert len(await session.pending(limit=3)) == 3
    for limit in (0, 1_001, True, "5"):
        with pytest.raises(errors.InvalidQuery):
            await session.pending(limit=limit)  # type: ignore[arg-type]  # that is the point


async def test_renewing_never_shortens_a_lease_unasked(lp: Limpet, waiting: Session) -> None:
    """It is given again for as long as it was given for, claimed or locked."""
    far = datetime.now(UTC) + timedelta(seconds=3_000)
    (lease,) = await lp.work.claim("w1", lease_seconds=3_600)
    assert (await lp.work.renew(lease)).until > far
    short = await lp.work.renew(lease, lease_seconds=5)
    assert (await lp.work.renew(short)).until < far
    assert (await lp.work.renew(lease)).until > far
    lock = await lp.work.lock(("support", "eve", "waiting"), worker="w1", lease_seconds=3_600)
    assert (await lp.work.renew(lock)).until > far


async def test_every_way_to_write_is_guarded(lp: Limpet, waiting: Session) -> None:
    """Through a session with a lease that was given back, nothing is written any more."""
    (lease,) = await lp.work.claim("w1")
    session = await lp.session(lease.key, actor=WHO, lease=lease).refresh()
    await session.append("agent.thought")
    await session.update(lambda state: {"n": state["n"] + 1})
    await lp.work.release(lease)
    version = (await waiting.refresh()).version
    for write in (
        lambda: session.append("agent.thought"),
        lambda: session.append_many([limpet.Draft(type="agent.thought")]),
        lambda: session.update(lambda state: {"n": state["n"] + 1}),
        lambda: session.label({"a": "b"}),
        lambda: session.lifecycle.set_timer("t", datetime.now(UTC)),
        lambda: session.lifecycle.set_priority(1),
        lambda: session.mark_processed([2]),
    ):
        with pytest.raises(errors.SessionFenced) as told:
            await write()
        assert "its lease has ended" in str(told.value)
    with pytest.raises(errors.SessionFenced):
        async with lp.commit() as c:
            c.append(session, "agent.thought")
    assert (await waiting.refresh()).version == version


async def test_one_commit_is_under_one_lease(lp: Limpet, waiting: Session) -> None:
    """Two handles on one session with different fences cannot be meant."""
    key = waiting.key
    leases = [await lp.work.lock(key, worker="me") for _ in range(2)]
    commit = await lp.commit().__aenter__()
    for lease in leases:
        commit.append(lp.session(key, actor=WHO, lease=lease), "agent.thought")
    with pytest.raises(errors.InvalidInput, match="two leases"):
        await commit.__aexit__(None, None, None)


async def test_the_urgent_come_first(lp: Limpet) -> None:
    """Priorities are set by a verb of their own, or within a commit."""
    for id in "abc":
        session = await lp.create("support", "ada", id=id, actor=WHO)
        await session.append("user.message", {"text": "hi"})
    await lp.session(Key("support", "ada", "b"), actor=WHO).lifecycle.set_priority(5)
    async with lp.commit() as c:
        c.record(lp.session(Key("support", "ada", "c"), actor=WHO), limpet.facts.prioritized(-5))
    assert [lease.key.id for lease in await lp.work.claim("w", limit=9)] == ["b", "a", "c"]


async def test_a_lock_tells_who_has_it(lp: Limpet, waiting: Session) -> None:
    """And is free again once it is released."""
    lock = await lp.work.lock(tuple_of(waiting.key), worker="me")
    with pytest.raises(errors.SessionLocked, match="'me'") as told:
        await lp.work.lock(waiting.key, worker="you")
    assert told.value.until == lock.until
    assert await lp.work.release(lock) is True
    assert await lp.work.release(lock) is False
    assert (await lp.work.lock(waiting.key, worker="you")).fence == lock.fence + 1


def tuple_of(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), float("inf"), "30", "", True])
async def test_a_lease_has_a_length_within_bounds(
    lp: Limpet, waiting: Session, seconds: object
) -> None:
    """Wherever a length is given, and nothing is leased."""
    lease = Lease(waiting.key, "w", 1, 1)
    for ask in (
        lambda: lp.work.claim("w", lease_seconds=seconds),  # type: ignore[arg-type]
        lambda: lp.work.renew(lease, lease_seconds=seconds),  # type: ignore[arg-type]
        lambda: lp.work.lock(waiting.key, worker="w", lease_seconds=seconds),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.InvalidInput):
            await ask()
    with pytest.raises(errors.InvalidInput):
        await lp.work.renew(Lease(waiting.key, "w", 1, 1, seconds))  # type: ignore[arg-type]
    assert (await waiting.refresh()).head.lease_us is None


async def test_one_that_fails_does_not_starve_the_others(lp: Limpet) -> None:
    """Claimed one at a time, a session whose work always fails keeps nobody from their turn."""
    for id in ("bad", "good-1", "good-2"):
        session = await lp.create("support", "ada", id=id, actor=WHO)
        await session.append("user.message", {"text": id})
    done: list[str] = []
    while leases := await lp.work.claim("w"):
        (lease,) = leases
        if lease.key.id == "bad":
            assert await lp.work.release(lease, retry_seconds=600)
        else:
            done.append(lease.key.id)
            session = lp.session(lease.key, actor=WHO, lease=lease)
            await session.mark_processed([e.seq for e in await session.pending()])
            assert await lp.work.release(lease)
    assert done == ["good-1", "good-2"]
    bad = await lp.get(("support", "ada", "bad"))
    assert (bad.head.pending, bad.head.worker) == (1, None)
    when = limpet.runnable_at(bad.head)
    assert when is not None
    assert when > datetime.now(UTC) + timedelta(seconds=500)


@pytest.mark.parametrize("seconds", [-1, 86_401, float("nan"), float("inf"), "30", True])
async def test_a_retry_is_within_bounds(lp: Limpet, waiting: Session, seconds: object) -> None:
    """Anything else is refused, and the lease is held as before."""
    (lease,) = await lp.work.claim("w")
    with pytest.raises(errors.InvalidInput):
        await lp.work.release(lease, retry_seconds=seconds)  # type: ignore[arg-type]
    assert await lp.work.release(lease)


async def test_a_timer_is_cleared_with_the_work_it_was_for(lp: Limpet) -> None:
    """In one commit under the lease; one that is refused leaves the timer and the session due."""
    session = await lp.create("support", "ada", id="timed", actor=WHO)
    past, later = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1)
    async with lp.commit() as c:
        c.append(session, "agent.promised")
        c.record(session, limpet.facts.timer_set("remind", past))
        c.record(session, limpet.facts.timer_set("end", later, kind="deadline"))
    assert limpet.deadline_at(session.head) == later
    (lease,) = await lp.work.claim("w")
    held = lp.session(lease.key, actor=WHO, lease=lease)
    c = await lp.commit().__aenter__()
    c.record(held, limpet.facts.timer_cleared("remind"))
    c.record(held, limpet.facts.processed([1]))
    with pytest.raises(errors.NotPending):
        await c.__aexit__(None, None, None)
    assert set((await held.refresh()).head.timers) == {"remind", "end"}
    async with lp.commit() as c:
        c.append(held, "agent.reminded")
        c.record(held, limpet.facts.timer_cleared("remind"))
        c.record(held, limpet.facts.timer_set("again", later))
    await lp.work.release(lease)
    assert set((await session.refresh()).head.timers) == {"end", "again"}
    assert [event.type for event in c.events][1:] == ["session.timer_cleared", "session.timer_set"]
    assert (limpet.runnable_at(session.head), await lp.work.claim("w")) == (later, ())
    async with lp.commit() as c:
        with pytest.raises(errors.InvalidEvent):
            c.record(session, limpet.facts.timer_set("x", later.replace(tzinfo=None)))
        with pytest.raises(errors.InvalidEvent):
            c.record(session, limpet.facts.timer_cleared(""))
    assert c.events == ()


async def test_what_makes_no_sense_is_refused(lp: Limpet, waiting: Session) -> None:
    """A worker without a name, no sessions at all, a lease of another session, a wild priority."""
    with pytest.raises(errors.InvalidInput):
        await lp.work.claim("")
    with pytest.raises(errors.InvalidInput):
        await lp.work.claim("w", limit=0)
    with pytest.raises(errors.InvalidInput):
        await lp.work.lock(waiting.key, worker="\x00")
    with pytest.raises(errors.InvalidInput, match="this is a lease on"):
        lp.session(("support", "ada", "x"), lease=Lease(waiting.key, "w", 1, 1))
    for priority in (1_001, -1_001, 1.5, True, "1"):
        with pytest.raises(errors.InvalidEvent, match="a priority"):
            await waiting.lifecycle.set_priority(priority, actor=WHO)  # type: ignore[arg-type]


def test_the_sync_facade_works_too(url: str) -> None:
    """Leases pass through it as they are."""
    with limpet.open_sync(url) as lp:
        session = lp.create("support", "eve", id="one")
        session.append("user.message", {"text": "hi"}, actor="user:eve")
        (lease,) = lp.work.claim("w")
        lp.session(lease.key, actor=WHO, lease=lease).append("agent.message")
        assert lp.work.release(lease) is True
