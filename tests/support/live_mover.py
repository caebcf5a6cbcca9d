"""A process that moves a live session between two files and stops at one point.

    python -m tests.support.live_mover SOURCE TARGET N

It stops before the write number N + 1 to either file and says `halted`; a line on its input lets it
go on. It says `done` and what became of the move when it is through.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import limpet
from limpet.session.move import arrivals, mover
from limpet.store.sqlite.store import SQLiteStore

KEY: Final = limpet.Key("support", "ada", "c1")
PIECE: Final = 8


def halt_at(writes: int) -> None:
    left = writes
    commit, run = SQLiteStore.commit, SQLiteStore._run

    def count() -> None:
        nonlocal left
        if left == 0:
            print("halted", flush=True)
            sys.stdin.readline()
        left -= 1

    def counted_commit(self: SQLiteStore, commits: Any) -> Any:
        count()
        return commit(self, commits)

    async def counted_run(self: SQLiteStore, *args: Any) -> Any:
        count()
        return await run(self, *args)

    SQLiteStore.commit = counted_commit  # type: ignore[method-assign]
    SQLiteStore._run = counted_run  # type: ignore[method-assign]


async def main(source: str, target: str, writes: str) -> None:
    for module in (arrivals, mover):
        module.PIECE_EVENTS = PIECE  # type: ignore[misc]  # so that there is a middle
    async with (
        limpet.open(f"sqlite:///{source}", node=Path(source).stem) as a,
        limpet.open(f"sqlite:///{target}", node=Path(target).stem) as b,
    ):
        halt_at(int(writes))
        try:
            moved = await a.move(KEY, b, force=True)
            print("done", moved.reason, flush=True)
        except limpet.LimpetError as error:
            print("done", error.code, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
