"""One of several processes on one file.

    python -m tests.support.worker ROLE PATH NAME COUNT

Says "ready", waits for a line on stdin, does its part, and says what came of it, a line each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, Final

import limpet
from limpet import Draft, Key, Limpet, Session

KEY: Final = Key("share", "ada", "main")


def say(*words: object) -> None:
    print(*words, flush=True)


async def told() -> None:
    """Wait for the starting signal without keeping the event loop from its work."""
    await asyncio.to_thread(sys.stdin.readline)


async def incrementer(lp: Limpet, name: str, count: int) -> None:
    """Appends that add: to the session's state, to app: and to user:."""
    session = lp.session(KEY, actor=f"worker:{name}")
    for number in range(count):
        id = f"{name}.{number}"
        if number % 10 == 9:
            async with lp.commit() as commit:
                own = lp.session(Key(KEY.app, KEY.user, name), actor=f"worker:{name}")
                for target in (session, own):
                    commit.append(target, "x.y", id=id, inc={"n": 1, "app:n": 1})
        else:
            await session.append(
                "x.y", id=id, inc={"n": 1, "app:n": 1}, add={"log": [id], "user:log": [id]}
            )
    say("done", name)


async def updater(lp: Limpet, name: str, count: int) -> None:
    """Read, compute, commit: on a field of the session and on an app: name."""
    session = await lp.get(KEY)
    session.actor = f"worker:{name}"
    for _ in range(count):
        await session.update(lambda state: {"u": state.get("u", 0) + 1})
        await session.update(lambda state: {"app:u": state.get("app:u", 0) + 1})
    say("done", name)


async def follower(lp: Limpet, name: str, count: int) -> None:
    """The seqs as they come, until as many have come."""
    session = lp.session(KEY)
    seen: list[int] = []
    say("following")
    async for event in session.follow(after=1):
        seen.append(event.seq)
        if len(seen) == count:
            break
    say(*seen)


async def appender(lp: Limpet, name: str, count: int) -> None:
    """Appends until the session is gone; every acknowledged id is said."""
    session = lp.session(KEY, actor=f"worker:{name}")
    for number in range(sys.maxsize):
        drafts = [
            Draft(type="user.said", id=f"{name}.{number}.{part}", inc={"n": 1}) for part in "ab"
        ]
        try:
            await session.append_many(drafts)
        except limpet.errors.SessionDeleted:
            say("deleted")
            return
        say("did", number)


async def creator(lp: Limpet, name: str, count: int) -> None:
    """Whoever comes first creates; all write."""
    session: Session = await lp.get_or_create(KEY.app, KEY.user, id=KEY.id, state={"n": 0})
    await session.append("x.y", actor=f"worker:{name}", inc={"n": 1, "app:n": 1})
    say("done", name)


async def dier(lp: Limpet, name: str, count: int) -> None:
    """Takes the write lock, writes something, and dies without letting go."""
    store: Any = lp._journal.store
    conn = store._database.connect()
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE sessions SET version = version + 1000")
    conn.cache_flush()  # half of it is in the log already
    os.kill(os.getpid(), signal.SIGKILL)


ROLES: Final = {
    role.__name__: role for role in (incrementer, updater, follower, appender, creator, dier)
}


async def main(role: str, path: str, name: str, count: int) -> None:
    url = f"sqlite:///{path}"
    if role == "creator":  # the opening itself is the race
        say("ready")
        await told()
        async with limpet.open(url) as lp:
            await creator(lp, name, count)
        return
    async with limpet.open(url) as lp:
        say("ready")
        await told()
        await ROLES[role](lp, name, count)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
