"""append_soon and flush, as callers use them: on every store."""

from __future__ import annotations

import asyncio
from contextvars import Context
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest

import limpet
from limpet import Limpet, Session, State, errors, ops
from limpet.session import append_queue as queue
from limpet.store.sqlite.store import SQLiteStore
from tests.support.deadlines import passed


class Order(State):
    schema_version: ClassVar[str] = "1.0.0"
    total: int = 0
    note: str = ""


async def sessions(lp: Limpet, *ids: str) -> list[Session]:
    return [await lp.create("shop", "ada", id=id, state={"n": 0}, actor="a") for id in ids]


async def steps(lp: Limpet, id: str) -> list[Any]:
    """The numbers that the events of a session say, in their order."""
    events = await lp.session("shop", "ada", id).read(limit=1_000)
    return [event.data["n"] for event in events if event.data and "n" in event.data]


# --- what a flush records ------------------------------------------------------------------------


async def test_a_flush_records_what_was_queued_in_its_order(lp: Limpet) -> None:
    """Each session's events in the order they were appended, under the ids that were returned."""
    one, two = await sessions(lp, "one", "two")
    ids = []
    for n in range(10):
        ids.append(one.append_soon("a.b", {"n": n}, inc={"n": 1}))
        two.append_soon("a.b", {"n": -n}, add={"log": [n]})
    await lp.flush()
    assert await steps(lp, "one") == list(range(10))
    assert await steps(lp, "two") == [-n for n in range(10)]
    assert [event.id for event in (await one.read())[1:]] == ids
    assert (one.version, one.state["n"], two.state["log"]) == (11, 10, list(range(10)))
    assert (await lp.maintenance.verify()).ok


async def test_nothing_is_recorded_or_shown_before_the_flush(lp: Limpet) -> None:
    """Neither the object nor a reader sees a queued event; flushing nothing is fine."""
    (s,) = await sessions(lp, "one")
    await lp.flush()
    s.append_soon("a.b", {"n": 1}, set={"n": 7})
    assert (s.version, s.state["n"], len(s.events)) == (1, 0, 1)
    assert (await lp.get("shop", "ada", "one")).version == 1
    await lp.flush()
    assert (s.version, s.state["n"], len(s.events)) == (2, 7, 2)


async def test_a_large_flush_is_split_and_keeps_its_order(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events, bytes, sessions and objects than one commit takes."""
    monkeypatch.setattr(queue, "COMMIT_EVENTS", 4)
    monkeypatch.setattr(queue, "COMMIT_BYTES", 400)
    monkeypatch.setattr(queue, "COMMIT_SESSIONS", 2)
    monkeypatch.setattr(queue, "COMMIT_OBJECTS", 2)
    ids = [f"s{n}" for n in range(5)]
    await sessions(lp, *ids)
    for n in range(30):
        text = "x" * (500 if n % 7 == 0 else 50)
        for id in ids:
            handle = lp.session("shop", "ada", id, actor="a")
            handle.append_soon("a.b", {"n": n, "text": text})
    await lp.flush()
    for id in ids:
        assert await steps(lp, id) == list(range(30))


async def test_two_flushes_at_once_record_everything_once(lp: Limpet) -> None:
    """Also what is queued while the first is under way, if it came before the second."""
    (s,) = await sessions(lp, "one")
    flushes = []
    for n in range(20):
        s.append_soon("a.b", {"n": n})
        flushes.append(asyncio.create_task(lp.flush()))
        await asyncio.sleep(0)
    await asyncio.gather(*flushes)
    assert await steps(lp, "one") == list(range(20))


async def test_a_follower_sees_what_was_flushed(lp: Limpet) -> None:
    """Recorded is recorded: in order, none lost."""
    (s,) = await sessions(lp, "one")
    for n in range(5):
        s.append_soon("a.b", {"n": n})
    await lp.flush()
    seen = []
    async for event in s.follow(after=1):
        assert event.data is not None
        seen.append(event.data["n"])
        if len(seen) == 5:
            break
    assert seen == list(range(5))


async def test_queued_input_resumes_an_idle_session(lp: Limpet) -> None:
    """As an awaited append does, for the object that queued it."""
    idle = limpet.Timeouts(idle=timedelta(microseconds=1))
    for id in ("one", "two"):
        await lp.create("shop", "ada", id, timeouts=idle, actor="a")
    await passed(lp, 2)
    assert (await lp.work.sweep()).suspended == 2
    found = [await lp.get("shop", "ada", id) for id in ("one", "two")]
    for s in found:
        s.append_soon("user.message", {"text": "back"}, actor="user:ada")
    await lp.flush()
    assert [s.phase for s in found] == ["active", "active"]


# --- order with other writes ---------------------------------------------------------------------


async def test_a_later_write_is_recorded_after_what_was_queued(lp: Limpet) -> None:
    """Whichever verb writes: append, append_many, update, a fact, a commit over sessions."""
    s, other = await sessions(lp, "one", "two")
    other.append_soon("a.b", {"n": "other"})

    async def both(n: int) -> None:
        async with lp.commit() as c:
            c.append(s, "a.b", {"n": n}, actor="a")

    later = (
        lambda n: s.append("a.b", {"n": n}),
        lambda n: s.append_many([limpet.Draft(type="a.b", data={"n": n})]),
        lambda n: s.update(lambda state: {"n": state["n"] + 1}, type="a.b", data={"n": n}),
        both,
        lambda n: lp.session(s.key, actor="b").append("a.b", {"n": n}),
    )
    for number, write in enumerate(later):
        s.append_soon("a.b", {"n": 2 * number}, inc={"n": 10})
        await write(2 * number + 1)
    s.append_soon("a.b", {"n": 10})
    await s.label({"plan": "gold"})
    assert await steps(lp, "one") == list(range(11))
    assert s.events[-1].type == "session.labeled"
    assert (await s.refresh()).state["n"] == 51
    assert await steps(lp, "two") == []  # it waits for a flush still
    await lp.flush()
    assert await steps(lp, "two") == ["other"]


async def test_a_write_that_begins_during_a_flush_comes_after_it(lp: Limpet) -> None:
    """The flush has taken the events and is not done; the write waits for it."""
    (s,) = await sessions(lp, "one")
    for n in range(3):
        s.append_soon("a.b", {"n": n})
    flush = asyncio.create_task(lp.flush())
    await asyncio.sleep(0)
    await asyncio.gather(s.append("a.b", {"n": 3}), flush)
    assert await steps(lp, "one") == [0, 1, 2, 3]


async def test_an_expected_version_counts_what_was_queued(lp: Limpet) -> None:
    """What was queued is recorded first, so the version that was read is not the newest."""
    (s,) = await sessions(lp, "one")
    s.append_soon("a.b", {"n": 0})
    with pytest.raises(errors.SessionConflict):
        await s.append("a.b", {"n": 1}, expect=s.version)
    assert await steps(lp, "one") == [0]


# --- what cannot be recorded ---------------------------------------------------------------------


async def test_a_refused_session_does_not_hold_up_the_others(lp: Limpet) -> None:
    """The error names the events that were not recorded, by session, and why; the rest is there."""
    one, two, three = await sessions(lp, "one", "two", "three")
    one.append_soon("a.b", {"n": 1})
    ids = (two.append_soon("a.b", {"n": 1}), two.append_soon("a.b", {"n": 2}, add={"n": [1]}))
    gone = lp.session("shop", "ada", "gone", actor="a")
    lost = gone.append_soon("a.b", {"n": 1})
    three.append_soon("a.b", {"n": 1})
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    found = {each.key.id: each for each in caught.value.unrecorded}
    assert {id: each.ids for id, each in found.items()} == {"two": ids, "gone": (lost,)}
    assert isinstance(found["two"].error, errors.OpTypeMismatch)
    assert isinstance(found["gone"].error, errors.SessionNotFound)
    assert {*caught.value.ids} == {*ids, lost}
    assert [await steps(lp, id) for id in ("one", "two", "three")] == [[1], [], [1]]
    await lp.flush()  # what was named has left the queue


async def test_what_a_flush_names_can_be_sent_again_and_is_recorded_once(lp: Limpet) -> None:
    """The drafts are those that were appended, with data, changes, ids and causes."""
    handle = lp.session("shop", "ada", "one", actor="a")
    first = handle.append_soon("user.message", {"n": 0, "text": "hi"}, set={"m": {"a": 1}})
    handle.append_soon(
        "a.b",
        {"n": 1},
        inc={"n": 2},
        trace=limpet.Trace(cause=first, correlation_id="c"),
        input=True,
    )
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    (s,) = await sessions(lp, "one")
    (unrecorded,) = caught.value.unrecorded
    for _ in range(2):
        await s.append_many(unrecorded.drafts)
    assert await steps(lp, "one") == [0, 1]
    assert (s.state["n"], s.state["m"]) == (2, {"a": 1})
    events = await s.read(after=1)
    assert [(e.id, e.processed) for e in events] == [(id, 0) for id in unrecorded.ids]
    assert (events[1].cause, events[1].correlation_id, events[1].actor) == (first, "c", "a")


async def test_what_follows_a_refused_part_is_not_recorded(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event of a session overtakes an earlier one, however the flush is split."""
    monkeypatch.setattr(queue, "COMMIT_EVENTS", 2)
    (s,) = await sessions(lp, "one")
    for n in range(6):
        s.append_soon("a.b", {"n": n}, **({"add": {"n": [1]}} if n == 3 else {}))
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    assert await steps(lp, "one") == [0, 1]
    assert [d.data["n"] for d in caught.value.unrecorded[0].drafts] == [2, 3, 4, 5]


async def test_a_write_is_refused_once_if_what_was_queued_before_it_is(lp: Limpet) -> None:
    """It was to come after them. The next flush names them, too, and the write can be repeated."""
    (s,) = await sessions(lp, "one")
    id = s.append_soon("a.b", {"n": 0}, add={"n": [1]})
    with pytest.raises(errors.FlushFailed) as caught:
        await s.append("a.b", {"n": 1})
    assert caught.value.unrecorded[0].ids == (id,)
    await s.append("a.b", {"n": 2})
    with pytest.raises(errors.FlushFailed) as again:
        await lp.flush()
    assert again.value.ids == (id,)
    assert await steps(lp, "one") == [2]
    await lp.flush()


async def test_a_lost_lease_is_named(lp: Limpet) -> None:
    """What a handle with a lease queued is not recorded once another has the session."""
    (s,) = await sessions(lp, "one")
    lease = await lp.work.lock(s.key, worker="w1", lease_seconds=30)
    assert lease is not None
    held = lp.session(s.key, actor="w", lease=lease)
    held.append_soon("a.b", {"n": 0})
    await lp.work.release(lease)
    s.append_soon("a.b", {"n": 1})
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    assert isinstance(caught.value.unrecorded[0].error, errors.SessionFenced)
    assert await steps(lp, "one") == []  # what came after it did not overtake it


# --- typed sessions ------------------------------------------------------------------------------


async def test_typed_state_is_checked_when_it_is_flushed(lp: Limpet) -> None:
    """On the newest state, under the class: what fits is recorded, what does not is named."""
    for id in ("one", "two"):
        await lp.create("shop", "ada", id=id, state=Order(), actor="a")
    good, bad = [await lp.get("shop", "ada", id, state_type=Order) for id in ("one", "two")]
    plain = lp.session("shop", "ada", "two", actor="a")
    good.append_soon("a.b", {"n": 0}, inc={"total": 2}, actor="a")
    good.append_soon("a.b", {"n": 1}, actor="a")
    bad.append_soon("a.b", {"n": 0}, set={"total": "two"}, actor="a")
    await lp.session("shop", "ada", "one", state_type=Order).append(
        "a.b", inc={"total": 1}, actor="b"
    )
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    assert isinstance(caught.value.unrecorded[0].error, errors.SchemaViolation)
    plain.append_soon("a.b", {"n": 1}, set={"total": 1})
    with pytest.raises(errors.FlushFailed) as caught:
        await lp.flush()
    assert isinstance(caught.value.unrecorded[0].error, errors.SessionTyped)
    assert (await good.refresh()).state.total == 3
    assert [await steps(lp, id) for id in ("one", "two")] == [[0, 1], []]


# --- bounds --------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_the_event(lp: Limpet, monkeypatch: pytest.MonkeyPatch) -> None:
    """By events and by bytes; what was queued is kept, and a flush makes room."""
    (s,) = await sessions(lp, "one")
    monkeypatch.setattr(queue, "QUEUED_EVENTS_MAX", 3)
    for n in range(3):
        s.append_soon("a.b", {"n": n})
    with pytest.raises(errors.QueueFull):
        s.append_soon("a.b", {"n": 3})
    await lp.flush()
    monkeypatch.setattr(queue, "QUEUED_BYTES_MAX", 100)
    s.append_soon("a.b", {"n": 3, "text": "x" * 50})
    with pytest.raises(errors.QueueFull):
        s.append_soon("a.b", {"n": 4, "text": "x" * 50})
    await lp.flush()
    s.append_soon("a.b", {"n": 4, "text": "x" * 50})
    await lp.flush()
    assert await steps(lp, "one") == [0, 1, 2, 3, 4]


async def test_room_is_made_also_by_what_was_refused(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that only ever met refusals is as empty as a new one."""
    monkeypatch.setattr(queue, "QUEUED_EVENTS_MAX", 2)
    gone = lp.session("shop", "ada", "gone", actor="a")
    for _ in range(3):
        gone.append_soon("a.b")
        with pytest.raises(errors.FlushFailed):
            await gone.append("a.b")
        gone.append_soon("a.b")
        with pytest.raises(errors.FlushFailed) as caught:
            await lp.flush()
        assert len(caught.value.unrecorded) == 2


async def test_what_is_wrong_with_an_event_is_said_at_once(lp: Limpet) -> None:
    """Nothing is queued then; temp: names, conditions and partials are not for a queue."""
    (s,) = await sessions(lp, "one")
    with pytest.raises(errors.InvalidEvent):
        s.append_soon("nodots")
    with pytest.raises(errors.ReservedType):
        s.append_soon("session.ended")
    with pytest.raises(errors.InvalidEvent, match="temp:"):
        s.append_soon("a.b", set={"temp:t": 1})
    with pytest.raises(TypeError):
        s.append_soon("a.b", expect=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        s.append_soon("a.b", partial=True)  # type: ignore[call-arg]
    await lp.flush()
    assert s.version == 1


# --- cancelled, closed, busy ---------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancelled_flush_loses_and_doubles_nothing(lp: Limpet, turns: int) -> None:
    """Wherever it was cancelled, the next one records what was not, in order, once."""
    await sessions(lp, "one", "two")
    for n in range(6):
        for id in ("one", "two"):
            lp.session("shop", "ada", id, actor="a").append_soon("a.b", {"n": n})
    flush = asyncio.create_task(lp.flush())
    for _ in range(turns):
        await asyncio.sleep(0)
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    lp.session("shop", "ada", "one", actor="a").append_soon("a.b", {"n": 6})
    await lp.flush()
    assert await steps(lp, "one") == list(range(7))
    assert await steps(lp, "two") == list(range(6))


async def test_closing_flushes(file_url: str) -> None:
    """Who forgets the flush at the end finds everything recorded."""
    async with limpet.open(file_url) as lp:
        (s,) = await sessions(lp, "one")
        s.append_soon("a.b", {"n": 0})
    with pytest.raises(errors.StoreClosed):
        s.append_soon("a.b", {"n": 1})
    with pytest.raises(errors.StoreClosed):
        await lp.flush()
    async with limpet.open(file_url) as lp:
        assert await steps(lp, "one") == [0]


async def test_closing_says_what_was_not_flushed(file_url: str) -> None:
    """It is closed all the same."""
    lp = await limpet.open(file_url)
    lp.session("shop", "ada", "gone", actor="a").append_soon("a.b")
    with pytest.raises(errors.FlushFailed):
        await lp.close()
    await lp.close()


async def test_closing_notes_what_was_not_flushed_on_the_error_of_the_block(file_url: str) -> None:
    """What the block raised is raised, with a note."""

    async def block() -> None:
        async with limpet.open(file_url) as lp:
            lp.session("shop", "ada", "gone", actor="a").append_soon("a.b")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        await block()
    assert "not recorded: " in caught.value.__notes__[0]


async def test_a_busy_store_keeps_the_queue_for_a_write_and_empties_it_for_a_flush(
    tmp_path: Path,
) -> None:
    """A write that cannot go first is repeated by its caller; a flush names all, for once."""
    path = tmp_path / "support.db"
    store = await SQLiteStore.open(path, busy_seconds=0.01)
    async with Limpet(f"sqlite:///{path}", store=store) as lp:
        one, two = await sessions(lp, "one", "two")
        other = apsw.Connection(str(path))
        other.set_busy_timeout(10_000)  # the writer may be at its housekeeping just now
        other.execute("BEGIN IMMEDIATE")
        one.append_soon("a.b", {"n": 0})
        two.append_soon("a.b", {"n": 0})
        with pytest.raises(errors.StoreBusy):
            await one.append("a.b", {"n": 1})
        with pytest.raises(errors.FlushFailed) as caught:
            await lp.flush()
        assert len(caught.value.unrecorded) == 2
        one.append_soon("a.b", {"n": 2})
        with pytest.raises(errors.StoreBusy):
            await one.append("a.b", {"n": 3})
        other.execute("ROLLBACK")
        other.close()
        await one.append("a.b", {"n": 3})
        assert await steps(lp, "one") == [2, 3]


@pytest.mark.parametrize("typed", [False, True])
async def test_a_hook_may_queue_flush_and_wait_for_who_writes(lp: Limpet, typed: bool) -> None:
    """What a flush resumes is resumed when it is done: a hook of that may wait for anybody."""
    other, third = await sessions(lp, "other", "third")
    said: list[str] = []

    async def writes_for_others(session: Session) -> None:
        third.append_soon("a.b", {"n": 1})
        await session.append("a.b", {"n": 9}, actor="a")

    async def hook(session: Session) -> None:
        other.append_soon("a.b", {"n": 1})
        await lp.flush()
        await other.append("a.b", {"n": 2})
        await asyncio.create_task(writes_for_others(lp.session(session.key)), context=Context())
        said.append(session.id)

    idle = limpet.Timeouts(idle=timedelta(microseconds=1))
    how: Any = {"state": Order()} if typed else {}
    await lp.create("idle", "ada", "one", timeouts=idle, actor="a", **how)
    await passed(lp)
    assert (await lp.work.sweep()).suspended == 1
    lp.policies.lifecycle("idle", after={("resumed", "active"): hook})
    other.append_soon("a.b", {"n": 0})
    as_what: Any = {"state_type": Order} if typed else {}
    sets: Any = {"set": {"total": 1}} if typed else {}
    one = lp.session("idle", "ada", "one", actor="a", **as_what)
    one.append_soon("user.message", {"text": "hi"}, **sets)
    async with asyncio.timeout(60):
        await lp.flush()
    assert said == ["one"]
    assert await steps(lp, "other") == [0, 1, 2]


async def test_who_waits_for_anothers_flush_hears_what_it_could_not_record(lp: Limpet) -> None:
    """Two tasks queue and flush at once; the one whose event was refused is not told that all is
    well because the other's flush had taken it."""
    good, bad = await sessions(lp, "good", "bad")
    await lp.delete(bad.key)

    async def handle(s: Session) -> tuple[str, ...]:
        s.append_soon("a.b", {"n": 0})
        await asyncio.sleep(0)
        try:
            await lp.flush()
        except errors.FlushFailed as error:
            return tuple([each.key.id for each in error.unrecorded])
        return ()

    assert await asyncio.gather(handle(good), handle(bad)) == [("bad",), ("bad",)]
    assert lp._journal.queue.events == 0


async def test_each_caller_is_named_its_own_ids(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure of the store reaches several callers; who sends again by another's ids would
    lose its own event."""
    one, two = await sessions(lp, "one", "two")
    failure = errors.StoreBusy("the store")

    async def fail(commits: object) -> object:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(lp._journal.store, "commit", fail)
        first, second = await asyncio.gather(
            one.append("a.b", id="first"), two.append("a.b", id="second"), return_exceptions=True
        )
    assert (first.ids, second.ids) == (("first",), ("second",))
    assert str(first) == str(second) == str(failure)
    assert failure.ids == ()


class Payment(State):
    """A state on which the first event fits once."""

    schema_version: ClassVar[str] = "1.0.0"
    total: int | str = 0
    note: str = ""


async def test_what_is_queued_after_a_cancelled_flush_does_not_join_what_is_in_doubt(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a part is recorded, or nothing: an event that came later would be refused with it."""
    await lp.create("shop", "ada", id="typed", state=Payment(), actor="a")
    s = await lp.get("shop", "ada", "typed", state_type=Payment)
    paid = [ops.Inc(("total",), 1), ops.Set(("total",), "paid")]
    s.append_soon("a.paid", ops=paid, actor="a")
    commit, store = lp._journal.store.commit, lp._journal.store

    async def recorded_and_cancelled(commits: Any) -> Any:
        answers = await commit(commits)
        flushing.cancel()
        await asyncio.sleep(0)
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", recorded_and_cancelled)
        flushing = asyncio.create_task(lp.flush())
        await asyncio.wait([flushing])
    assert flushing.cancelled()
    s.append_soon("a.note", set={"note": "hello"}, actor="a")
    await lp.flush()
    types = [event.type for event in await lp.session("shop", "ada", "typed").read()]
    assert types == ["session.created", "a.paid", "a.note"]


# --- without await -------------------------------------------------------------------------------


def test_it_works_without_await(file_url: str) -> None:
    """The same verbs in the synchronous door; closing flushes there, too."""
    with limpet.open_sync(file_url) as lp:
        s = lp.create("shop", "ada", id="one", actor="a")
        ids = [s.append_soon("a.b", {"n": n}) for n in range(3)]
        lp.flush()
        assert [event.id for event in s.read(after=1)] == ids
        s.append_soon("a.b", {"n": 3})
    with limpet.open_sync(file_url) as lp:
        assert lp.get("shop", "ada", "one").version == 5
