"""A session service, without any framework, in memory and in a database side by side.

    python examples/session_service.py

The same calls run on both stores and must say the same: Create, Get with After and
NumRecentEvents, List, Delete, AppendEvent; application, user and session state; temporary keys,
partial events and stale sessions. docs/session-service.md explains each step.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limpet

Say = Callable[[str], None]


async def create(lp: limpet.Limpet, say: Say) -> None:
    """An id of one's own or a generated one; the initial state goes to its scopes."""
    state = {"step": 0, "user:lang": "en", "app:motd": "welcome"}
    session = await lp.create("support", "ada", id="s1", state=state)
    say(f"created {session.key} at version {session.version}")
    generated = await lp.create("support", "bob")
    say(f"bob sees {dict(generated.state)}")
    try:
        await lp.create("support", "ada", id="s1")
    except limpet.SessionExists as error:
        say(f"again: {error.code}")


async def append_event(lp: limpet.Limpet, say: Say) -> None:
    """An event and its changes are one commit; each key goes to its scope."""
    session = await lp.get("support", "ada", "s1", actor="agent:main")
    await session.append("user.message", {"text": "hello"}, actor="user:ada")
    change = {"step": 1, "user:lang": "fr", "app:motd": "hi", "temp:draft": "bonj"}
    await session.append("agent.message", {"text": "bonjour"}, set=change)
    say(f"live state {dict(sorted(session.state.items()))}")
    stored = await lp.get("support", "ada", "s1")
    say(f"temp: is stored: {'temp:draft' in stored.state}")
    bob = (await lp.list(app="support", user="bob", state=True)).states
    say(f"bob's app: state {[dict(state) for state in bob.values()]}")


async def partial(lp: limpet.Limpet, say: Say) -> None:
    """A partial event reaches those who follow, and is never stored."""
    session = await lp.get("support", "ada", "s1", actor="agent:main")
    before = session.version
    following = session.follow(after=before)
    heard = asyncio.ensure_future(anext(following))
    while not heard.done():  # it may be lost, for one before somebody follows
        said = {"text": "au rev", "index": 0}
        await session.append("agent.message", said, partial=True, id="m3")
        await asyncio.wait([heard], timeout=0.01)
    piece = await heard
    await following.aclose()
    stored = await lp.get("support", "ada", "s1")
    say(
        f"heard {piece.data['text']!r}, partial: {piece.partial}; stored: {stored.version > before}"
    )
    await session.append("agent.message", {"text": "au revoir"}, id="m3")


async def get(lp: limpet.Limpet, say: Say) -> None:
    """All of it, the most recent events, those after a time, or both."""
    session = await lp.get("support", "ada", "s1")
    say(f"events {[event.type for event in session.events]}")
    recent = await lp.get("support", "ada", "s1", tail=2)
    say(f"the last two {[event.data['text'] for event in recent.events]}")
    after = await lp.get("support", "ada", "s1", since=session.events[-1].at)
    say(f"since the last one's time, inclusive: {len(after.events) >= 1}")
    none = await lp.get("support", "ada", "s1", tail=0)
    say(f"without events {none.events}, step {none.state['step']}")
    say(f"missing: {await lp.find('support', 'ada', 'none')}")


async def stale(lp: limpet.Limpet, say: Say) -> None:
    """Who decides on an old reading is refused by its version, whatever the clocks say."""
    one = await lp.get("support", "ada", "s1", actor="agent:one")
    two = await lp.get("support", "ada", "s1", actor="agent:two")
    await one.append("order.placed", set={"step": 2}, expect=one.version)
    try:
        await two.append("order.placed", set={"step": 2}, expect=two.version)
    except limpet.SessionConflict as error:
        say(f"stale: {error.code}")
    await two.update(lambda state: {"step": state["step"] + 1})
    say(f"read, decided and written again: step {two.state['step']}")


async def list_and_delete(lp: limpet.Limpet, say: Say) -> None:
    """A page of sessions with their merged state; a deleted one is gone, shared state is not."""
    page = await lp.list(app="support", order="created", reverse=False, state=True)
    say(f"listed {[(key.user, state.get('step')) for key, state in page.states.items()]}")
    await lp.delete("support", "ada", "s1")
    say(f"deleted twice: {await lp.delete('support', 'ada', 's1')}")
    say(f"ada's names {dict(sorted((await lp.names('support', 'ada')).items()))}")
    try:
        await lp.session("support", "ada", "s1").append("late.write", actor="agent:main")
    except limpet.errors.SessionDeleted as error:
        say(f"a late write: {error.code}")


async def walk(url: str) -> list[str]:
    """Every step on one store."""
    lines: list[str] = []
    async with limpet.open(url) as lp:
        for step in (create, append_event, partial, get, stale, list_and_delete):
            await step(lp, lambda line, name=step.__name__: lines.append(f"{name:16} {line}"))
    return lines


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        database: Any = f"sqlite:///{Path(place) / 'support.db'}"
        in_memory, in_database = await walk("memory://"), await walk(database)
    for line in in_memory:
        print(line)
    assert in_memory == in_database
    print("the same in memory and in the database")


if __name__ == "__main__":
    asyncio.run(main())
