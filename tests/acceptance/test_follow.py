"""Following: none lost, none doubled, partials in their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from limpet import Draft, Event, Limpet, Session, errors
from limpet.model.limits import PARTIALS_WAITING_MAX

SOON = 60.0  # seconds; what is awaited comes at once, or the test has failed


async def take(following: AsyncIterator[Event], count: int) -> list[Event]:
    """The next `count` events."""
    async with asyncio.timeout(SOON):
        return [await anext(following) for _ in range(count)]


def texts(events: list[Event]) -> list[Any]:
    """Recorded events by seq, partials by their text."""
    return [(e.data or {}).get("text") if e.partial else e.seq for e in events]


async def partial(s: Session, text: str) -> None:
    await s.append("agent.delta", {"text": text}, actor="agent:a", partial=True)


async def waiting(following: AsyncIterator[Event]) -> asyncio.Task[Event]:
    """A follower that has read all there is and waits for more."""
    task = asyncio.ensure_future(anext(following))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_follower_meets_what_is_there_and_what_comes(s: Session) -> None:
    """From the seq it names, in order, each event as it was recorded."""
    following = s.follow(after=1)
    assert await take(following, 1) == [s.events[1]]
    next_ = await waiting(following)
    e = await s.append("a.b", {"n": 1}, actor="x")
    assert await asyncio.wait_for(next_, SOON) == e
    es = await s.append_many([Draft(type="a.b", actor="x")] * 3)
    assert await take(following, 3) == list(es)
    await following.aclose()


async def test_none_is_lost_and_none_doubled(lp: Limpet) -> None:
    """Many writers, several followers that begin at different times, more than a page."""
    s = await lp.create("a", "u")

    async def follow(after: int) -> list[int]:
        return [e.seq for e in await take(s.follow(after=after), 301 - after)]

    async def write(n: int) -> None:
        handle = lp.session(s.key, actor=f"w:{n}")
        for _ in range(10):
            await handle.append_many([Draft(type="a.b")] * 3)

    early = [asyncio.create_task(follow(0)) for _ in range(3)]
    writers = [asyncio.create_task(write(n)) for n in range(10)]
    await writers[0]
    late = asyncio.create_task(follow(5))
    await asyncio.gather(*writers)
    for seqs in await asyncio.gather(*early):
        assert seqs == list(range(1, 302))
    assert await late == list(range(6, 302))


async def test_every_follower_gets_everything(s: Session) -> None:
    """Followers do not take events from each other."""
    one, two = s.follow(after=2), s.follow(after=2)
    tasks = [await waiting(one), await waiting(two)]
    e = await s.append("a.b", actor="x")
    assert await asyncio.wait_for(asyncio.gather(*tasks), SOON) == [e, e]


async def test_a_follower_of_one_session_hears_of_no_other(lp: Limpet, s: Session) -> None:
    """Neither recorded nor partial events of other sessions reach it."""
    other = await lp.create("support", "ada", id="two")
    next_ = await waiting(s.follow(after=2))
    await other.append("a.b", actor="x")
    await partial(other, "not for you")
    e = await s.append("a.b", actor="x")
    assert await asyncio.wait_for(next_, SOON) == e


async def test_partials_reach_those_who_follow_now(s: Session) -> None:
    """At once, marked as partial, in order, and no one who comes later."""
    following = s.follow(after=2)
    next_ = await waiting(following)
    await partial(s, "h")
    first = await asyncio.wait_for(next_, SOON)
    assert (first.partial, first.seq, first.data) == (True, 0, {"text": "h"})
    await partial(s, "he")
    await partial(s, "hel")
    assert texts(await take(following, 2)) == ["he", "hel"]
    late = await waiting(s.follow(after=2))
    e = await s.append("agent.message", {"text": "hello"}, actor="agent:a")
    assert await asyncio.wait_for(late, SOON) == e
    assert texts(await take(following, 1)) == [3]


async def test_partials_keep_their_place_among_recorded_events(s: Session) -> None:
    """What was said between two recorded events is met between them, however slow the reader."""
    following = s.follow(after=2)
    next_ = await waiting(following)
    await partial(s, "a")
    await s.append("a.b", actor="x")
    await partial(s, "b")
    await partial(s, "c")
    await s.append_many([Draft(type="a.b", actor="x")] * 2)
    await partial(s, "d")
    met = [await asyncio.wait_for(next_, SOON), *await take(following, 6)]
    assert texts(met) == ["a", 3, "b", "c", 4, 5, "d"]


async def test_a_partial_comes_after_what_was_recorded_before_it(s: Session) -> None:
    """Also for a follower that is still reading up on older events."""
    following = s.follow(after=0)
    assert texts(await take(following, 1)) == [1]
    await partial(s, "after 2")
    assert texts(await take(following, 2)) == [2, "after 2"]


async def test_a_follower_that_falls_behind_is_cut_off(s: Session) -> None:
    """Partials pile up to a bound; no recorded event is lost, and the error says where to go on."""
    following = s.follow(after=1)
    await take(following, 1)
    for n in range(PARTIALS_WAITING_MAX + 1):
        await partial(s, str(n))
    e = await s.append("a.b", actor="x")
    with pytest.raises(errors.FollowerBehind) as info:
        await take(following, PARTIALS_WAITING_MAX + 3)
    assert (info.value.after, info.value.retryable) == (2, True)
    assert await take(s.follow(after=info.value.after), 1) == [e]


async def test_a_follower_just_within_the_bound_gets_everything(s: Session) -> None:
    """The bound itself is not behind."""
    following = s.follow(after=1)
    await take(following, 1)
    for n in range(PARTIALS_WAITING_MAX):
        await partial(s, str(n))
    met = await take(following, PARTIALS_WAITING_MAX)
    assert texts(met) == [str(n) for n in range(PARTIALS_WAITING_MAX)]


async def test_a_writer_never_waits_for_a_follower(lp: Limpet, s: Session) -> None:
    """One that reads nothing holds up neither appends nor other followers."""
    asleep, awake = s.follow(after=2), s.follow(after=2)
    first = [await waiting(asleep), await waiting(awake)]
    await s.append("a.b", actor="x")
    await asyncio.gather(*first)
    for _ in range(200):
        await s.append("a.b", actor="x")
    assert texts(await take(awake, 200)) == list(range(4, 204))
    assert texts(await take(asleep, 200)) == list(range(4, 204))


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("delete", errors.SessionDeleted),
        ("erase", errors.SessionErased),
        ("close", errors.StoreClosed),
    ],
)
async def test_following_ends_with_its_session_or_its_store(
    lp: Limpet, s: Session, end: str, error: type[errors.LimpetError]
) -> None:
    """A waiting follower is told what happened, not left waiting."""
    next_ = await waiting(s.follow(after=2))
    if end == "close":
        await lp.close()
    else:
        await (lp.delete(s.key) if end == "delete" else lp.erase(s.key))
    with pytest.raises(error):
        await asyncio.wait_for(next_, SOON)


async def test_a_follower_may_stop_at_any_time(lp: Limpet, s: Session) -> None:
    """Breaking off, cancelling or dropping it leaves nothing behind that fails."""
    async for e in s.follow(after=0):
        if e.seq == 2:
            break
    next_ = await waiting(s.follow(after=2))
    next_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await next_
    del next_
    assert (await s.append("a.b", actor="x")).seq == 3


async def test_the_same_object_may_be_appended_to_while_followed(s: Session) -> None:
    """A loop that answers what it meets does not wait for itself."""
    met: list[int] = []
    async with asyncio.timeout(SOON):
        async for e in s.follow(after=1):
            met.append(e.seq)
            if len(met) == 5:
                break
            await s.append("a.answer", actor="x", trace=limpet.Trace(cause=e.id))
    assert met == [2, 3, 4, 5, 6]


async def test_followers_of_another_instance_on_the_file_meet_everything(file_url: str) -> None:
    """Across instances, as across processes, the log is what is followed."""
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        s = await here.create("a", "u", id="1")
        following = there.session(("a", "u", "1")).follow(after=0)
        assert texts(await take(following, 1)) == [1]
        for n in range(2, 12):
            await s.append("a.b", actor="x")
            assert texts(await take(following, 1)) == [n]
        await s.append_many([Draft(type="a.b", actor="x")] * 250)
        assert texts(await take(following, 250)) == list(range(12, 262))
        await here.delete(s.key)
        with pytest.raises(errors.SessionDeleted):
            await take(following, 1)


async def test_a_file_may_be_followed_from_both_sides(file_url: str) -> None:
    """Two instances answer each other, each hearing of the other through the file alone."""
    async with limpet.open(file_url) as here, limpet.open(file_url) as there:
        await here.create("a", "u", id="1")

        async def play(lp: Limpet, mine: str, theirs: str) -> list[int]:
            s = lp.session(("a", "u", "1"), actor=mine)
            seqs = []
            async for e in s.follow(after=0):
                seqs.append(e.seq)
                if e.seq == 12:
                    return seqs
                if e.type in ("session.created", f"{theirs}.played") and (
                    e.type != "session.created" or mine == "ping"
                ):
                    await s.append(f"{mine}.played")
            raise AssertionError("a follower does not end by itself")

        async with asyncio.timeout(SOON):
            both = await asyncio.gather(play(here, "ping", "pong"), play(there, "pong", "ping"))
        assert both == [list(range(1, 13))] * 2


async def test_a_follower_does_not_go_on_with_another_session_of_its_key(lp: Limpet) -> None:
    """Deleted and created again before it looks, the key has another log: SessionDeleted."""
    s = await lp.create("support", "ada", "again", actor="user:ada")
    await s.append("user.message", {"text": "first"})
    events = lp.session(s.key).follow(after=0)
    seen = [await anext(events) for _ in range(2)]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)  # it waits for more
    await lp.delete(s.key)
    other = await lp.create("support", "ada", "again", actor="user:ada", reuse_deleted=True)
    for number in range(3):
        await other.append("user.message", {"text": f"second {number}"})
    with pytest.raises(limpet.errors.SessionDeleted):
        await asyncio.wait_for(waiting, 60)
    assert [event.seq for event in seen] == [1, 2]
