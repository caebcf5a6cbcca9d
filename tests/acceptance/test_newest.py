"""What a session object decides and shows is of the newest state it can know."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet import Draft, InvalidInput, Limpet, Session


async def test_nothing_to_do_is_decided_on_the_newest_state(lp: Limpet) -> None:
    """An object that has not heard of new work does not answer that there is none."""
    mine = await lp.create("a", "u", id="q", actor="x", state={"jobs": 0, "user:jobs": 0})
    theirs = await lp.get(mine.key, actor="y")

    def take(name: str) -> Any:
        return lambda state: {name: state[name] - 1} if state[name] else None

    for name in ("jobs", "user:jobs"):
        await theirs.append("x.y", set={name: 5})
        assert await mine.update(take(name)) is not None
        assert (await theirs.refresh()).state[name] == 4
    await theirs.append("x.y", set={"jobs": 0})
    assert await mine.update(take("jobs")) is None


async def test_an_update_on_a_handle_reads_first(lp: Limpet) -> None:
    """It needs no refresh of the caller's."""
    session = await lp.create("a", "u", id="q", state={"n": 1})
    handle = lp.session(session.key, actor="x")
    await handle.update(lambda state: {"n": state["n"] + 1})
    assert handle.state["n"] == 2


@pytest.mark.parametrize("way", ["alone", "in a commit"])
async def test_a_processed_input_shows_in_the_tail(lp: Limpet, s: Session, way: str) -> None:
    """As the store has it: the same time, at once, and only on that input."""
    s.actor = "x"
    first, second = await s.append_many([Draft(type="user.said")] * 2)
    if way == "alone":
        done = await s.mark_processed([first.seq])
    else:
        async with lp.commit() as commit:
            commit.record(s, limpet.facts.processed([first.seq]))
        (done,) = commit.events
    assert done.seq == second.seq + 1
    shown = {event.seq: event.processed_us for event in s.events}
    assert shown[first.seq] == done.at_us
    assert shown[second.seq] is None
    stored = await s.read(after=first.seq - 1)
    assert s.events[-3:] == stored
    assert (await lp.get(s.key, tail=3)).events == stored


async def test_an_input_processed_in_its_own_commit_shows_so(lp: Limpet, s: Session) -> None:
    """Brought and dealt with at once: the object shows what the store has."""
    s.actor = "x"
    async with lp.commit() as commit:
        commit.append(s, "user.said")
        commit.record(s, limpet.facts.processed([s.version + 1]))
    assert s.events[-2:] == await s.read(after=s.version - 2)
    assert s.events[-2].processed_us is not None


@pytest.mark.parametrize("expect", [True, False, "1", 1.0], ids=repr)
@pytest.mark.parametrize("way", ["append", "append_many", "commit"])
async def test_a_version_is_a_number_and_nothing_like_it(lp: Limpet, way: str, expect: Any) -> None:
    """True is not version 1: it is refused, and nothing is recorded."""
    session = await lp.create("a", "u", id="q", actor="x")

    async def write() -> None:
        match way:
            case "append":
                await session.append("x.y", expect=expect)
            case "append_many":
                await session.append_many([Draft(type="x.y")], expect=expect)
            case "commit":
                async with lp.commit() as commit:
                    commit.append(session, "x.y", expect=expect)

    with pytest.raises(InvalidInput):
        await write()
    assert (await lp.get(session.key)).version == 1
