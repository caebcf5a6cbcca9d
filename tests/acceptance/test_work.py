"""Claims, leases and locks, as a worker uses them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import holdfast
from holdfast import Holdfast, Key, Lease, Session, errors

WHO = "agent:main"


@pytest.fixture
async def waiting(hf: Holdfast) -> Session:
    """A session with an input that nobody has looked at."""
    session = await hf.create("support", "eve", id="waiting", state={"n": 0})
    await session.append("user.message", {"text": "hi"}, actor="user:eve")
    return session


async def test_a_round_of_work(hf: Holdfast, waiting: Session) -> None:
    """Claim, read, answer, say so, release: then there is nothing left to do."""
    (lease,) = await hf.claim("w1")
    assert (lease.key, lease.worker) == (waiting.key, "w1")
    assert lease.until > datetime.now(UTC) + timedelta(seconds=20)
    assert await hf.claim("w2") == ()
    session = await hf.session(lease.key, actor=WHO, lease=lease).refresh()
    async with hf.commit() as c:
        c.append(session, "agent.message", {"text": "hello"}, inc={"n": 1})
        c.mark_processed(session, [2])
    lease = await hf.renew(lease, lease_seconds=5)
    assert await hf.release(lease)
    assert await hf.claim("w2") == ()
    await waiting.refresh()
    assert (waiting.state["n"], waiting.head.pending, waiting.head.fence) == (1, 0, 1)


async def test_a_loop_over_what_is_pending_never_runs_dry(hf: Holdfast) -> None:
    """The hundred-and-fiftieth message is answered like the first, by an object or a handle."""
    session = await hf.create("support", "ada", actor=WHO)
    seen: list[int] = []
    for number in range(150):
        await session.append("user.message", {"n": number})
        for message in await hf.session(session.key).pending():
            seen.append(message.data["n"])
            await session.mark_processed([message.seq])
    assert seen == list(range(150))
    await session.append_many([holdfast.Draft(type="user.message")] * 5)
    assert len(await session.pending(limit=3)) == 3
    for limit in (0, 1_001, True, "5"):
        with pytest.raises(errors.InvalidQuery):
            await session.pending(limit=limit)  # type: ignore[arg-type]  # that is the point


async def test_renewing_never_shortens_a_lease_unasked(hf: Holdfast, waiting: Session) -> None:
    """It is given again for as long as it was given for, claimed or locked."""
    far = datetime.now(UTC) + timedelta(seconds=3_000)
    (lease,) = await hf.claim("w1", lease_seconds=3_600)
    assert (await hf.renew(lease)).until > far
    short = await hf.renew(lease, lease_seconds=5)
    assert (await hf.renew(short)).until < far
    assert (await hf.renew(lease)).until > far
    lock = await hf.acquire_lock(("support", "eve", "waiting"), "w1", lease_seconds=3_600)
    assert (await hf.renew(lock)).until > far


async def test_every_way_to_write_is_guarded(hf: Holdfast, waiting: Session) -> None:
    """Through a session with a lease that was given back, nothing is written any more."""
    (lease,) = await hf.claim("w1")
    session = await hf.session(lease.key, actor=WHO, lease=lease).refresh()
    await session.append("agent.thought")
    await session.update(lambda state: {"n": state["n"] + 1})
    await hf.release(lease)
    version = (await waiting.refresh()).version
    for write in (
        lambda: session.append("agent.thought"),
        lambda: session.append_many([holdfast.Draft(type="agent.thought")]),
        lambda: session.update(lambda state: {"n": state["n"] + 1}),
        lambda: session.label({"a": "b"}),
        lambda: session.set_timer("t", datetime.now(UTC)),
        lambda: session.set_priority(1),
        lambda: session.mark_processed([2]),
    ):
        with pytest.raises(errors.SessionFenced) as told:
            await write()
        assert "its lease has ended" in str(told.value)
    with pytest.raises(errors.SessionFenced):
        async with hf.commit() as c:
            c.append(session, "agent.thought")
    assert (await waiting.refresh()).version == version


async def test_one_commit_is_under_one_lease(hf: Holdfast, waiting: Session) -> None:
    """Two handles on one session with different fences cannot be meant."""
    key = waiting.key
    leases = [await hf.acquire_lock(key, "me") for _ in range(2)]
    commit = await hf.commit().__aenter__()
    for lease in leases:
        commit.append(hf.session(key, actor=WHO, lease=lease), "agent.thought")
    with pytest.raises(errors.InvalidEvent, match="two leases"):
        await commit.__aexit__(None, None, None)


async def test_the_urgent_come_first(hf: Holdfast) -> None:
    """Priorities are set by a verb of their own, or within a commit."""
    for id in "abc":
        session = await hf.create("support", "ada", id=id, actor=WHO)
        await session.append("user.message")
    await hf.session(Key("support", "ada", "b"), actor=WHO).set_priority(5)
    async with hf.commit() as c:
        c.set_priority(hf.session(Key("support", "ada", "c"), actor=WHO), -5)
    assert [lease.key.id for lease in await hf.claim("w", limit=9)] == ["b", "a", "c"]


async def test_a_lock_tells_who_has_it(hf: Holdfast, waiting: Session) -> None:
    """And is free again once it is released."""
    lock = await hf.acquire_lock(tuple_of(waiting.key), "me")
    with pytest.raises(errors.SessionLocked, match="'me'") as told:
        await hf.acquire_lock(waiting.key, "you")
    assert told.value.until == lock.until
    assert await hf.release_lock(lock) is True
    assert await hf.release_lock(lock) is False
    assert (await hf.acquire_lock(waiting.key, "you")).fence == lock.fence + 1


def tuple_of(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), float("inf"), "30", "", True])
async def test_a_lease_has_a_length_within_bounds(
    hf: Holdfast, waiting: Session, seconds: object
) -> None:
    """Wherever a length is given, and nothing is leased."""
    lease = Lease(waiting.key, "w", 1, 1)
    for ask in (
        lambda: hf.claim("w", lease_seconds=seconds),  # type: ignore[arg-type]
        lambda: hf.renew(lease, lease_seconds=seconds),  # type: ignore[arg-type]
        lambda: hf.acquire_lock(waiting.key, "w", lease_seconds=seconds),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.InvalidInput):
            await ask()
    with pytest.raises(errors.InvalidInput):
        await hf.renew(Lease(waiting.key, "w", 1, 1, seconds))  # type: ignore[arg-type]
    assert (await waiting.refresh()).head.lease_us is None


async def test_one_that_fails_does_not_starve_the_others(hf: Holdfast) -> None:
    """Claimed one at a time, a session whose work always fails keeps nobody from their turn."""
    for id in ("bad", "good-1", "good-2"):
        session = await hf.create("support", "ada", id=id, actor=WHO)
        await session.append("user.message", {"text": id})
    done: list[str] = []
    while leases := await hf.claim("w"):
        (lease,) = leases
        if lease.key.id == "bad":
            assert await hf.release(lease, retry_seconds=600)
        else:
            done.append(lease.key.id)
            session = hf.session(lease.key, actor=WHO, lease=lease)
            await session.mark_processed([e.seq for e in await session.pending()])
            assert await hf.release(lease)
    assert done == ["good-1", "good-2"]
    bad = await hf.get(("support", "ada", "bad"))
    assert (bad.head.pending, bad.head.worker) == (1, None)
    when = holdfast.runnable_at(bad.head)
    assert when is not None
    assert when > datetime.now(UTC) + timedelta(seconds=500)


@pytest.mark.parametrize("seconds", [-1, 86_401, float("nan"), float("inf"), "30", True])
async def test_a_retry_is_within_bounds(hf: Holdfast, waiting: Session, seconds: object) -> None:
    """Anything else is refused, and the lease is held as before."""
    (lease,) = await hf.claim("w")
    with pytest.raises(errors.InvalidInput):
        await hf.release(lease, retry_seconds=seconds)  # type: ignore[arg-type]
    assert await hf.release(lease)


async def test_a_timer_is_cleared_with_the_work_it_was_for(hf: Holdfast) -> None:
    """In one commit under the lease; one that is refused leaves the timer and the session due."""
    session = await hf.create("support", "ada", id="timed", actor=WHO)
    past, later = datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(days=1)
    async with hf.commit() as c:
        c.append(session, "agent.promised")
        c.set_timer(session, "remind", past)
        c.set_timer(session, "end", later, kind="deadline")
    assert holdfast.deadline_at(session.head) == later
    (lease,) = await hf.claim("w")
    held = hf.session(lease.key, actor=WHO, lease=lease)
    c = await hf.commit().__aenter__()
    c.clear_timer(held, "remind")
    c.mark_processed(held, [1])
    with pytest.raises(errors.NotPending):
        await c.__aexit__(None, None, None)
    assert set((await held.refresh()).head.timers) == {"remind", "end"}
    async with hf.commit() as c:
        c.append(held, "agent.reminded")
        c.clear_timer(held, "remind")
        c.set_timer(held, "again", later)
    await hf.release(lease)
    assert set((await session.refresh()).head.timers) == {"end", "again"}
    assert [event.type for event in c.events][1:] == ["session.timer_cleared", "session.timer_set"]
    assert (holdfast.runnable_at(session.head), await hf.claim("w")) == (later, ())
    async with hf.commit() as c:
        with pytest.raises(errors.InvalidEvent):
            c.set_timer(session, "x", later.replace(tzinfo=None))
        with pytest.raises(errors.InvalidEvent):
            c.clear_timer(session, "")
    assert c.events == ()


async def test_what_makes_no_sense_is_refused(hf: Holdfast, waiting: Session) -> None:
    """A worker without a name, no sessions at all, a lease of another session, a wild priority."""
    with pytest.raises(errors.InvalidInput):
        await hf.claim("")
    with pytest.raises(errors.InvalidInput):
        await hf.claim("w", limit=0)
    with pytest.raises(errors.InvalidInput):
        await hf.acquire_lock(waiting.key, "\x00")
    with pytest.raises(errors.InvalidInput, match="the lease is of"):
        hf.session(("support", "ada", "x"), lease=Lease(waiting.key, "w", 1, 1))
    for priority in (1_001, -1_001, 1.5, True, "1"):
        with pytest.raises(errors.InvalidEvent, match="a priority"):
            await waiting.set_priority(priority, actor=WHO)  # type: ignore[arg-type]


def test_the_sync_facade_works_too(url: str) -> None:
    """Leases pass through it as they are."""
    with holdfast.open_sync(url) as hf:
        session = hf.create("support", "eve", id="one")
        session.append("user.message", actor="user:eve")
        (lease,) = hf.claim("w")
        hf.session(lease.key, actor=WHO, lease=lease).append("agent.message")
        assert hf.release(lease) is True
