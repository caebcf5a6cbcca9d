"""A session service as docs/session-service.md describes it, on every store."""

from __future__ import annotations

import asyncio

import pytest

import limpet

KEY = ("support", "ada", "s1")


async def test_the_first_input_creates_the_session_or_gets_it(lp: limpet.Limpet) -> None:
    """Of callers at once one creates; all of them write to the one session, and see it updated."""
    sessions = await asyncio.gather(
        *[lp.get_or_create(*KEY, state={"by": n}, actor="user:ada") for n in range(4)]
    )
    assert len({session.head.uid for session in sessions}) == 1
    for session in sessions:
        await session.append("user.message", {"text": "hi"}, set={"said": True})
        assert session.state["said"]
    assert (await lp.get(KEY)).version == 5


async def test_a_creation_writes_every_scope_or_none(lp: limpet.Limpet) -> None:
    """Initial state goes to its scopes in one commit; a refused creation changes no shared name."""
    begin = {"app:motd": "hi", "user:lang": "fr", "step": 0, "temp:draft": "x"}
    await lp.create(*KEY, state=begin)
    with pytest.raises(limpet.SessionExists):
        await lp.create(*KEY, state={"app:motd": "lost", "user:more": 1})
    other = await lp.create("support", "bob", state={"step": 7})
    assert other.state == {"app:motd": "hi", "step": 7}
    assert await lp.names("support", "ada") == {"app:motd": "hi", "user:lang": "fr"}
    assert (await lp.get(KEY)).state == {"app:motd": "hi", "user:lang": "fr", "step": 0}


async def test_an_append_is_one_commit_that_dates_the_session(lp: limpet.Limpet) -> None:
    """Event, changes to every scope and the time of the last update; a refused one leaves none."""
    session = await lp.create(*KEY, actor="agent:main")
    event = await session.append("agent.message", {"text": "a"}, set={"app:n": 1, "step": 1})
    with pytest.raises(limpet.SessionConflict):
        await session.append("agent.message", set={"app:n": 2, "step": 2}, expect=1)
    (head,) = (await lp.list(app="support")).items
    assert (head.updated_us, head.version) == (event.at_us, event.seq)
    assert (await lp.get(KEY)).state == {"app:n": 1, "step": 1}


async def test_an_append_to_a_missing_session_is_an_error(lp: limpet.Limpet) -> None:
    """And it creates nothing, no shared name either."""
    with pytest.raises(limpet.SessionNotFound):
        await lp.session(*KEY, actor="agent:main").append("agent.message", set={"app:n": 1})
    assert await lp.find(KEY) is None
    assert await lp.names("support") == {}
