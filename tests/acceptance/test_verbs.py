"""Verbs as people guess them: keys in three forms, pages back, own events from update."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft, Key, Limpet, Session, State, errors
from limpet.model.events import to_us
from limpet.session.writer import writer_of
from tests.acceptance.test_follow import SOON, take, waiting

PARTS = ("support", "ada", "one")
FORMS = {"Key": (Key(*PARTS),), "tuple": (PARTS,), "three texts": PARTS}


class Chat(State):
    title: str = ""
    turns: int = 0


# --- keys ---------------------------------------------------------------------------------------


async def quiet(turn: limpet.Turn) -> None:
    """A harness with nothing to say."""


@pytest.mark.parametrize("key", FORMS.values(), ids=FORMS)
async def test_a_key_is_taken_in_three_forms(
    lp: Limpet, s: Session, key: Any, tmp_path: Path
) -> None:
    """By every verb that takes one, and it is the same session."""
    assert (await lp.get(*key)).key == s.key
    assert (await lp.find(*key, tail=1)).events == s.events[-1:]
    assert lp.session(*key, actor="x").key == s.key
    assert (await lp.maintenance.verify(*key)).sessions == 1
    assert await lp.work.release(await lp.work.lock(*key, worker="w"))
    await lp.export(*key, tmp_path / "one.limpet")
    await lp.export(*key, path=tmp_path / "two.limpet")
    async with limpet.open("memory://") as other:
        assert await other.import_(tmp_path / "one.limpet") == s.key
        assert (await lp.copy(*key, to=other)).refused == ()
    await s.history.retention(events=100, actor="x")
    assert (await lp.maintenance.compact(*key)).events == 0
    assert (await lp.wake(*key, quiet)).error is None
    with pytest.raises(errors.InvalidInput, match="is not a dead letter"):
        await lp.work.requeue(*key)
    version = (await lp.get(*key)).version
    assert await lp.delete(*key)
    assert await lp.find(*key) is None
    assert (await lp.erase(*key)).version == version


HALF: dict[str, tuple[tuple[Any, ...], str]] = {
    "app alone": (("support",), "user is missing"),
    "no id": (("support", "ada"), "id is missing"),
    "no user": (("support", None, "one"), "user is missing"),
    "a key and more": ((Key(*PARTS), "ada"), "form is Key .* with other arguments after it"),
    "a tuple and more": ((PARTS, None, "one"), "form is tuple .* with other arguments after it"),
    "two of a tuple": ((("support", "ada"),), "neither a limpet.Key nor"),
}


@pytest.mark.parametrize(("key", "words"), HALF.values(), ids=HALF)
async def test_half_a_key_is_refused_by_the_part_that_is_missing(
    lp: Limpet, key: Any, words: str
) -> None:
    """The same words from every verb, and nothing is asked of the store."""
    verbs: list[Callable[..., Any]] = [
        lp.get,
        lp.find,
        lp.session,
        lp.delete,
        lp.erase,
        lp.maintenance.verify,
    ]
    verbs += [
        lp.maintenance.compact,
        lp.work.requeue,
        partial(lp.export, path="x"),
        partial(lp.wake, harness=print),
    ]
    for verb in (*verbs, lambda *key: lp.work.lock(*key, worker="w")):
        with pytest.raises(errors.InvalidKey, match=words):
            await verb(*key)


async def test_a_key_without_what_follows_it_is_refused(lp: Limpet, s: Session) -> None:
    """The error says what is missing; a path or a harness is never taken for a part of a key."""
    for verb, words in ((lp.export, "a key, then a path"), (lp.wake, "a key, then a harness")):
        for given in ((s.key,), ("support", "ada", "one"), ("support",)):
            with pytest.raises(errors.InvalidInput, match=words):
                await verb(*given)


async def test_a_session_tells_its_app_user_and_id(s: Session, lp: Limpet) -> None:
    """Without a look into its key; a handle that has read nothing does, too."""
    for known in (s, lp.session(*PARTS)):
        assert (known.app, known.user, known.id) == PARTS


async def test_a_session_is_created_under_three_texts(lp: Limpet) -> None:
    """What names it may stand together, as in every other verb."""
    assert (await lp.create("a", "u", "i")).key == Key("a", "u", "i")
    assert (await lp.get_or_create("a", "u", "i")).version == 1


# --- reading ------------------------------------------------------------------------------------

PAGES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "before alone is newest first": ({"before": 6}, [5, 4, 3, 2, 1]),
    "a page back": ({"before": 6, "limit": 2}, [5, 4]),
    "before, oldest first": ({"before": 4, "reverse": False}, [1, 2, 3]),
    "between": ({"after": 2, "before": 6}, [3, 4, 5]),
    "between, newest first": ({"after": 2, "before": 6, "reverse": True}, [5, 4, 3]),
    "between, a page": ({"after": 2, "before": 7, "limit": 2}, [3, 4]),
    "between, a page back": ({"after": 2, "before": 7, "limit": 2, "reverse": True}, [6, 5]),
    "after, newest first": ({"after": 5, "reverse": True}, [8, 7, 6]),
    "past the end": ({"before": 99, "limit": 2}, [8, 7]),
    "of a type": ({"before": 8, "types": ["a.0"]}, [7, 5, 3]),
    "of a type, between": ({"after": 3, "before": 8, "types": ["a.0"]}, [5, 7]),
    "before the first": ({"before": 1}, []),
    "nothing between": ({"after": 4, "before": 5}, []),
    "crossed": ({"after": 6, "before": 3}, []),
    "crossed, newest first": ({"after": 6, "before": 3, "reverse": True}, []),
}


@pytest.mark.parametrize(("how", "seqs"), PAGES.values(), ids=PAGES)
async def test_a_page_lies_between_after_and_before(
    s: Session, how: dict[str, Any], seqs: list[int]
) -> None:
    """Neither bound is in it, whichever way it is read."""
    await s.append_many([Draft(type=f"a.{n % 2}", actor="x") for n in range(6)])
    assert [event.seq for event in await s.read(**how)] == seqs


@pytest.mark.parametrize("how", [{"before": 1}, {"after": 6, "before": 3}])
async def test_an_empty_page_of_no_session_is_not_found(lp: Limpet, how: dict[str, int]) -> None:
    """Bounds between which nothing can lie do not hide that nothing is there."""
    with pytest.raises(errors.SessionNotFound):
        await lp.session("a", "u", "none").read(**how)


async def test_a_follower_of_types_meets_these_alone(s: Session) -> None:
    """Exact types and families, of what is there and of what comes, partials too."""
    await s.append_many([Draft(type="agent.message", actor="x")] * 120)
    await s.append("tool.called", actor="x")
    following = s.follow(types=["user.*", "tool.called"])
    assert [event.seq for event in await take(following, 2)] == [2, 123]
    next_ = await waiting(following)
    await s.append("agent.delta", {"text": "h"}, actor="x", partial=True)
    await s.append("agent.message", actor="x")
    assert not next_.done()
    await s.append("user.typing", {"text": "h"}, actor="x", partial=True)
    assert (await asyncio.wait_for(next_, SOON)).partial
    said = await s.append("user.message", {"text": "hi"}, actor="x")
    assert await take(following, 1) == [said]
    await following.aclose()


# --- timers -------------------------------------------------------------------------------------


async def test_a_timer_is_set_for_so_long_from_now(lp: Limpet, s: Session) -> None:
    """A timedelta is added to the store's time of the call; a fact has a time of its own."""
    now_us, at = writer_of(s).journal.now_us, datetime.now(UTC)
    before = now_us()
    await s.lifecycle.set_timer("one", timedelta(hours=1), actor="x")
    after = now_us()
    async with lp.commit() as c:
        c.record(s, limpet.facts.timer_set("two", at, actor="x"))
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    assert before <= to_us(s.head.timers["one"].at) - hour <= after
    assert s.head.timers["two"].at == at


@pytest.mark.parametrize("span", [timedelta(seconds=-1), timedelta.max, timedelta(days=3_000_000)])
async def test_a_timer_that_cannot_come_is_refused(s: Session, span: timedelta) -> None:
    """Before now, or after the last year there is."""
    with pytest.raises(errors.InvalidEvent, match="a timer"):
        await s.lifecycle.set_timer("t", span, actor="x")
    assert s.version == 2


# --- update and apply ---------------------------------------------------------------------------


def bump(state: Any) -> Mapping[str, Any]:
    turns = state.turns if isinstance(state, Chat) else state["turns"]
    return {"turns": turns + 1}


async def begun(lp: Limpet, typed: bool) -> Session[Any]:
    if typed:
        return await lp.create("a", "u", "i", state=Chat(), actor="agent:a")
    return await lp.create("a", "u", "i", state={"turns": 0}, actor="agent:a")


@pytest.mark.parametrize("typed", [False, True])
async def test_an_update_may_be_an_event_of_ones_own(lp: Limpet, typed: bool) -> None:
    """With its type, its data and what it answers; the change is in the same event."""
    s = await begun(lp, typed)
    how: dict[str, Any] = {
        "data": {"n": 1},
        "trace": limpet.Trace(cause="c", wake_id="w"),
        "actor": "agent:b",
    }
    event = await s.update(bump, type="agent.counted", **how)
    assert (event.type, event.data, event.cause, event.wake_id) == (
        "agent.counted",
        {"n": 1},
        "c",
        "w",
    )
    assert (event.actor, s.values["turns"], s.version) == ("agent:b", 1, 2)
    with pytest.raises(errors.ReservedType):
        await s.update(bump, type="session.created")


@pytest.mark.parametrize("typed", [False, True])
async def test_an_update_that_decides_on_nothing_records_nothing(lp: Limpet, typed: bool) -> None:
    """None records no event of any type; an empty dict records one's own alone."""
    s = await begun(lp, typed)
    assert await s.update(lambda _: None, type="agent.counted") is None
    assert await s.update(lambda _: {}) is None
    assert s.version == 1
    assert (await s.update(lambda _: {}, type="agent.looked")).ops == ()


@pytest.mark.parametrize("typed", [False, True])
async def test_a_repeated_update_returns_the_first_record(lp: Limpet, typed: bool) -> None:
    """The function is not even called: it would see its own effect, and might refuse it."""
    s = await begun(lp, typed)
    first = await s.update(bump, type="agent.counted", id="once")

    def once(state: Any) -> Mapping[str, Any]:
        raise AssertionError("it was counted before")

    again = await lp.session(s.key, state_type=Chat if typed else None).update(
        once, type="agent.counted", id="once", actor="x"
    )
    assert (again.seq, again.id, again.ops) == (first.seq, "once", first.ops)
    await s.refresh()
    assert (s.values["turns"], s.version) == (1, 2)


@pytest.mark.parametrize("typed", [False, True])
async def test_racing_updates_of_one_id_have_one_effect(lp: Limpet, typed: bool) -> None:
    """Whoever is first; the others are given its record."""
    s = await begun(lp, typed)
    handles = [
        lp.session(s.key, actor=f"agent:{n}", state_type=Chat if typed else None) for n in range(6)
    ]
    made = await asyncio.gather(*[h.update(bump, type="a.b", id="once") for h in handles])
    assert {event.seq for event in made} == {2}
    await s.refresh()
    assert (s.values["turns"], s.version) == (1, 2)


async def test_an_apply_that_expects_a_version_is_strict(lp: Limpet) -> None:
    """Where apply would go on with the newest state, it is a conflict."""
    one = await begun(lp, typed=True)
    two = await lp.get(one.key, state_type=Chat, actor="agent:b")
    assert (await one.apply({"turns": 1}, expect=1)).seq == 2
    with pytest.raises(errors.SessionConflict) as refused:
        await two.apply({"title": "x"}, expect=1)
    assert (refused.value.expected, refused.value.actual) == (1, 2)
    assert (await two.apply({"title": "x"}, type="a.b", expect=2)).seq == 3
    # What this object knew is older than what it expects: read first, then planned on that.
    assert (one.version, (await one.apply({"turns": 2}, expect=3)).seq) == (2, 4)
    assert (one.state.title, one.state.turns) == ("x", 2)


async def test_a_repeated_apply_is_found_whatever_it_expects(lp: Limpet) -> None:
    """A retry after a lost answer expects the version that its first try has left."""
    s = await begun(lp, typed=True)
    first = await s.apply({"turns": 1}, id="once", expect=1)
    again = await s.apply({"turns": 1}, id="once", expect=1)
    assert (again.seq, s.version) == (first.seq, 2)


async def test_an_apply_with_a_type_always_records_it(lp: Limpet) -> None:
    """Also if nothing changes: the event is what was asked for."""
    s = await begun(lp, typed=True)
    assert await s.apply({}) is None
    assert (await s.apply({}, type="agent.looked", expect=1)).type == "agent.looked"


# --- who and where ------------------------------------------------------------------------------

EMPTY: dict[str, Callable[[Limpet, Session[Any]], Awaitable[Any]]] = {
    "apply": lambda lp, s: s.apply({"title": "x"}, actor=""),
    "apply nothing": lambda lp, s: s.apply({}, actor=""),
    "update": lambda lp, s: s.update(bump, actor=""),
    "append": lambda lp, s: s.append("a.b", actor=""),
    "no drafts": lambda lp, s: s.append_many([], actor=""),
    "a draft": lambda lp, s: s.append_many([Draft(type="a.b", actor="")]),
    "commit": lambda lp, s: committed(lp, lambda c: c.apply(s, {"turns": 1}, actor="")),
    "timer": lambda lp, s: committed(
        lp, lambda c: c.record(s, limpet.facts.timer_set("t", datetime.now(UTC), actor=""))
    ),
    "create": lambda lp, s: lp.create("a", "u", actor=""),
    "get": lambda lp, s: lp.get(s.key, state_type=Chat, actor=""),
    "app": lambda lp, s: lp.app("a", actor="").list(),
    "migrate": lambda lp, s: lp.maintenance.migrate(registry(), Chat, actor=""),
}


async def committed(lp: Limpet, use: Callable[[Any], None]) -> None:
    async with lp.commit() as c:
        use(c)


def registry() -> limpet.MigrationRegistry:
    found = limpet.MigrationRegistry()
    found.register("0.9.0", "1.0.0", dict)
    return found


@pytest.mark.parametrize("ask", EMPTY.values(), ids=EMPTY)
async def test_an_empty_actor_is_never_replaced_by_the_bound_one(
    lp: Limpet, ask: Callable[[Limpet, Session[Any]], Awaitable[Any]]
) -> None:
    """Somebody was meant to be named, so nobody else is recorded in the place."""
    s = await begun(lp, typed=True)
    with pytest.raises(errors.InvalidInput, match="actor is empty"):
        await ask(lp, s)
    await s.refresh()
    assert s.version == 1


async def test_a_migration_is_by_the_actor_who_makes_it(lp: Limpet) -> None:
    """Of the whole store, as of one session that is loaded."""

    class Old(State):
        schema_version = "0.9.0"

    await lp.create("a", "u", "i", state=Old())
    await lp.maintenance.migrate(registry(), Chat, apply=True, actor="operator:eve")
    (event,) = (await lp.get("a", "u", "i", tail=1)).events
    assert (event.type, event.actor) == ("state.migrated", "operator:eve")


@pytest.mark.parametrize("name", ["apps:b", "usr:x", "App:x"])
async def test_state_takes_no_name_of_an_unknown_scope(lp: Limpet, s: Session, name: str) -> None:
    """Not at creation, not by an event, not from update; nothing is recorded."""
    tries: list[Callable[[], Awaitable[Any]]] = [
        lambda: lp.create("a", "u", state={name: 1}),
        lambda: s.append("a.b", actor="x", set={name: 1}),
        lambda: s.append("a.b", actor="x", merge={name: {}}),
        lambda: s.append("a.b", actor="x", add={name: [1]}),
        lambda: s.append("a.b", actor="x", inc={name: 1}),
        lambda: s.append("a.b", actor="x", ops=[limpet.ops.Set((name, "x"), 1)]),
        lambda: s.update(lambda _: {name: 1}, actor="x"),
    ]
    for ask in tries:
        with pytest.raises(errors.ScopeUnknown, match="app:, user: or temp:"):
            await ask()
    assert s.version == 2
    await s.append("a.b", actor="x", set={"links": {name: {name: 1}}})
    assert s.state["links"] == {name: {name: 1}}
