"""A script that is interrupted while it waits, as with Ctrl-C.

    python -m tests.support.interrupted ROLE URL

Says "waiting" once the main thread waits for Limpet, then what came of the interruption.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import limpet


def say(*words: object) -> None:
    print(*words, flush=True)


def tell_when(happened: Callable[[], Any]) -> None:
    """Say "waiting" from another thread when it has happened and the main thread waits."""
    main = threading.main_thread().ident
    assert main is not None

    def look() -> None:
        while not (happened() and sys._current_frames()[main].f_code.co_name == "wait"):
            pass
        say("waiting")

    threading.Thread(target=look, daemon=True).start()


def watcher(lp: Any) -> None:
    """A for loop over the feed, interrupted when there is nothing more to come."""
    s = lp.create("a", "u")
    met = []
    tell_when(lambda: met)
    try:
        for change in lp.watch():
            met.append(change.event.seq)
    except KeyboardInterrupt:
        say("interrupted after", *met)
    say("recorded", s.append("a.b", actor="x").seq)


def follower(lp: Any) -> None:
    """The same over one session."""
    s = lp.create("a", "u")
    met = []
    tell_when(lambda: met)
    try:
        for event in s.follow():
            met.append(event.seq)
    except KeyboardInterrupt:
        say("interrupted after", *met)
    say("recorded", s.append("a.b", actor="x").seq)


def caller(lp: Any) -> None:
    """A call that would never end: afterwards nothing is left of it on the loop."""
    begun = threading.Event()

    async def for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def is_call(task: asyncio.Task[Any]) -> bool:
        return "for_ever" in repr(task.get_coro())

    tell_when(begun.is_set)
    try:
        lp._loop.call(for_ever)
    except KeyboardInterrupt:
        say("interrupted")
    lp.list()
    # A store may have tasks of its own, such as the one that writes its files for people.
    say("left", lp._loop.call(lambda: sum(map(is_call, asyncio.all_tasks()))))


def script(lp: Any) -> None:
    """One that catches nothing: Python itself ends it, as it ends any other script."""
    lp.create("a", "u")
    met = []
    tell_when(lambda: met)
    for change in lp.watch():
        met.append(change)


ROLES = {"watcher": watcher, "follower": follower, "caller": caller, "script": script}

if __name__ == "__main__":
    with limpet.open_sync(sys.argv[2]) as opened:
        ROLES[sys.argv[1]](opened)
    say("closed")
