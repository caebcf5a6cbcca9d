"""A process that moves or forgets sessions and stops at one point, to be killed there.

    python -m tests.support.mover copy|import|erase-user TARGET N [SOURCE or FILE]

It stops before the write number N + 1 to the target and says `halted`; it says `done` if there was
none. Pieces are small, so that there are many points.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import limpet
from limpet.session.move import adopter, import_export as files, transfer
from limpet.store.sqlite.store import SQLiteStore

PIECE: Final = 3
APP, USER = "support", "ada"


def small_pieces() -> None:
    for module in (adopter, files, transfer):
        module.PIECE_EVENTS = PIECE  # type: ignore[misc]  # so that there is a middle


def halt_at(target: str, writes: int) -> None:
    """Let this process stop before a write to the target: a commit, or a step of an erasure."""
    left = writes

    def count(store: SQLiteStore) -> None:
        nonlocal left
        if str(store._database.path) == target:
            if not left:
                print("halted", flush=True)
                sys.stdin.readline()
            left -= 1

    commit, run = SQLiteStore.commit, SQLiteStore._run

    def counted_commit(self: SQLiteStore, commits: Any) -> Any:
        count(self)
        return commit(self, commits)

    async def counted_run(self: SQLiteStore, *args: Any) -> Any:
        count(self)
        return await run(self, *args)

    SQLiteStore.commit = counted_commit  # type: ignore[method-assign]
    SQLiteStore._run = counted_run  # type: ignore[method-assign]


async def main(what: str, target: str, writes: str, *more: str) -> None:
    small_pieces()
    async with limpet.open(f"sqlite:///{target}") as lp:
        halt_at(target, int(writes))
        if what == "copy":
            async with limpet.open(f"sqlite:///{more[0]}") as source:
                await source.copy(to=lp)
        elif what == "import":
            await lp.import_(more[0])
        else:
            await lp.erase_user(APP, USER)
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
