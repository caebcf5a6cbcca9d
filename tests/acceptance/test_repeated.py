"""An event that was returned because its id was recorded before says so, and only there."""

from __future__ import annotations

from typing import Annotated, ClassVar

from limpet import Draft, Event, Limpet, Session, State, reducers

ACTOR = "test:repeated"


class Noted(State):
    schema_version: ClassVar[str] = "1.0.0"
    notes: Annotated[list[str], reducers.append] = []


def _marks(events: tuple[Event, ...]) -> list[bool]:
    return [event.repeated for event in events]


async def test_an_append_says_whether_it_was_recorded_before(lp: Limpet, s: Session) -> None:
    """The first one is new, the second is told apart from it and is still the same event."""
    first = await s.append("note.made", id="x", actor=ACTOR)
    again = await lp.session(s.key).append("note.made", id="x", actor=ACTOR)
    assert (first.repeated, again.repeated) == (False, True)
    assert again == first
    assert hash(again) == hash(first)


async def test_no_reader_sees_it(lp: Limpet, s: Session) -> None:
    """Neither the log, a load, a follower nor the tail of the object that repeated it."""
    late = await lp.get(s.key)
    await s.append("note.made", id="x", actor=ACTOR)
    again = await late.append("note.made", id="x", actor=ACTOR)
    assert again.repeated
    assert late.events[-1] == again
    seen = [*late.events, *await s.read(), *(await lp.get(s.key)).events]
    async for event in s.follow():
        seen.append(event)
        if event.id == "x":
            break
    assert not any(event.repeated for event in seen)


async def test_each_of_many_says_it_for_itself(lp: Limpet, s: Session) -> None:
    """New and old drafts of one call, and one id twice in it."""
    await s.append("note.made", id="x", actor=ACTOR)
    drafts = [Draft(type="note.made", id=id, actor=ACTOR) for id in ("y", "x", "y")]
    assert _marks(await s.append_many(drafts)) == [False, True, True]


async def test_a_commit_says_it_of_each_event(lp: Limpet, s: Session) -> None:
    """In the order of the appends, over several sessions."""
    other = await lp.create("support", "ada", id="two")
    await s.append("note.made", id="x", actor=ACTOR)
    async with lp.commit() as c:
        c.append(other, "note.made", id="x", actor=ACTOR)
        c.append(s, "note.made", id="x", actor=ACTOR)
        c.append(s, "note.made", id="y", actor=ACTOR)
    assert _marks(c.events) == [False, True, False]


async def test_an_apply_says_it_too(lp: Limpet) -> None:
    """Sent again under its id, an update of typed state is done once."""
    s = await lp.create("support", "ada", id="typed", state=Noted(), actor=ACTOR)
    first = await s.apply({"notes": ["a"]}, id="x")
    again = await s.apply({"notes": ["a"]}, id="x")
    assert first is not None
    assert again is not None
    assert (first.repeated, again.repeated, s.state.notes) == (False, True, ["a"])
