"""A process that archives, brings back, writes to and forgets sessions that others do the same to.

    python -m tests.support.archivist URL ARCHIVE USER SEED STEPS

It says `ready`, waits for a line, and then says on stdout what was acknowledged: `said N what`,
`blob N hash`, `checkpoint N number`, `ended N`, `gone N`. Before it forgets a session it says
`going N`. At the end it says `done`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from typing import Final

import limpet

SESSIONS: Final = 4
VERBS: Final = (
    *("archive", "unarchive") * 6,
    *("say", "blob", "checkpoint", "complete", "timeouts", "sweep", "read") * 2,
    *("compact", "import"),
    "delete",
    "erase",
)
# What another process was faster with, or has done to the session; nothing was acknowledged.
_REFUSED: Final = (limpet.SessionError, limpet.errors.ArchiveFailed, limpet.errors.UploadLost)


async def main(url: str, archive: str, user: str, seed: str, steps: int) -> None:
    chance = random.Random(seed)
    async with limpet.open(url, archive=archive) as lp:
        known: dict[int, limpet.Session] = {}
        say("ready")
        sys.stdin.readline()
        for step in range(steps):
            n, verb = chance.randrange(SESSIONS), chance.choice(VERBS)
            if verb in ("delete", "erase") and (n or step < steps // 2):
                continue  # one session of them is forgotten, and not at once
            try:
                if n not in known or chance.random() < 0.3:
                    known[n] = lp.session("race", user, f"{n}", actor=f"user:{user}")
                await act(lp, known[n], n, verb, f"{seed}-{step}")
            except _REFUSED:
                continue
            except limpet.StoreError as error:
                if not error.retryable:
                    raise
    say("done")


async def act(lp: limpet.Limpet, s: limpet.Session, n: int, verb: str, mark: str) -> None:
    if verb == "say":
        await s.append("user.message", {"text": mark})
        say("said", n, mark)
    elif verb == "blob":
        ref = await s.blobs.put(mark.encode() * 100)
        say("blob", n, ref.sha256)
    elif verb == "checkpoint":
        await s.refresh()
        made = await s.checkpoint(mark)
        say("checkpoint", n, made.number)
    elif verb == "complete":
        await s.complete()
        say("ended", n)
    elif verb == "archive":
        await s.archive()
    elif verb == "unarchive":
        await lp.unarchive(s.key)
    elif verb == "timeouts":
        await s.lifecycle.set_timeouts(limpet.Timeouts())
    elif verb == "read":
        old = await lp.get(s.key, archived=True)
        assert old.values["n"] == n
    elif verb == "sweep":
        await lp.work.sweep()
    elif verb == "compact":
        await s.history.retention(events=2)
        await lp.maintenance.compact(s.key)
    elif verb == "import":  # what it is now, or was a moment ago: adopted where it is missing
        with tempfile.TemporaryDirectory(prefix="limpet-") as folder:
            await lp.export(s.key, f"{folder}/{n}.limpet")
            assert await lp.import_(f"{folder}/{n}.limpet") == s.key
    else:
        say("going", n)
        await (lp.delete(s.key) if verb == "delete" else lp.erase(s.key))
        say("gone", n)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
