"""The process that is killed while it leads sessions through their lives.

    python -m tests.support.liver PATH-OR-URL ARCHIVE

It says `phase N` on stdout when a transition of session N was acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import limpet
from tests.support.deadlines import passed


async def main(path: str, cold: str) -> None:
    over = limpet.Timeouts(absolute=timedelta(microseconds=1))
    url = path if "://" in path else f"sqlite:///{path}"
    async with limpet.open(url, archive=f"file://{cold}") as lp:
        for n in range(sys.maxsize):
            s = await lp.create("kill", "ada", actor="user:ada", state={"n": n})
            await s.append("user.message", {"text": "hi"})
            say("active", s)
            await s.suspend()
            say("suspended", s)
            s, _ = await lp.resume(s.key, actor="user:ada")
            say("active", s)
            if n % 2:
                await s.lifecycle.set_timeouts(over)
                await passed(lp)
                await lp.work.sweep()
                say("terminated", s)
                await s.refresh()
            else:
                await s.complete()
                say("completed", s)
            await s.archive()
            say("archived", s)
            await lp.unarchive(s.key)
            say("back", s)


def say(phase: str, s: limpet.Session) -> None:
    sys.stdout.write(f"{phase} {s.id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
