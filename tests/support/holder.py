"""A process that has a store open and does something with its file, between two writes.

    python -m tests.support.holder PATH BACKUP

Says "open"; does each deed that it is told, by its name, and says what came of it; appends as many
events as it is told ("append 22"); ends with "end". After each deed it says which files of the
database Python itself opened meanwhile: none, since closing one drops the locks on it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import limpet
from limpet import Limpet, LimpetError, Session
from limpet.store.open import look_at
from limpet.store.sqlite.file import connect
from tests.support.command import run
from tests.support.worker import KEY

PATH: Final = Path(sys.argv[1])
BACKUP: Final = Path(sys.argv[2])
URL: Final = f"sqlite:///{PATH}"
DEEDS: dict[str, Callable[[Limpet], Awaitable[object]]] = {}
opened: list[str] = []


def deed(work: Callable[[Limpet], Awaitable[object]]) -> None:
    DEEDS[work.__name__] = work


@deed
async def restore_onto_it(lp: Limpet) -> None:
    limpet.restore(BACKUP, URL, replace=True)


@deed
async def restore_without_replace(lp: Limpet) -> None:
    limpet.restore(BACKUP, URL, replace=False)


@deed
async def restore_from_it(lp: Limpet) -> None:
    limpet.restore(PATH, f"sqlite:///{PATH.parent}/other.db", replace=True)


@deed
async def restore_from_and_onto_it(lp: Limpet) -> None:
    limpet.restore(PATH, URL, replace=True)


@deed
async def back_up(lp: Limpet) -> None:
    await lp.maintenance.backup(PATH.parent / "another.db")


@deed
async def back_up_onto_it(lp: Limpet) -> None:
    await lp.maintenance.backup(PATH)


@deed
async def doctor(lp: Limpet) -> None:
    assert (await lp.maintenance.doctor()).ok


@deed
async def verify(lp: Limpet) -> None:
    assert (await lp.maintenance.verify()).ok


@deed
async def open_it_twice(lp: Limpet) -> None:
    async with limpet.open(URL) as second:
        await second.get(KEY)


@deed
async def open_wrong_paths(lp: Limpet) -> None:
    for path in (PATH.parent, PATH / "x.db", PATH.parent / "no" / "x.db"):
        try:
            async with limpet.open(f"sqlite:///{path}"):
                raise AssertionError(path)
        except LimpetError:
            pass


@deed
async def look_where_nothing_may_be_written(lp: Limpet) -> None:
    may, connect.may_write = connect.may_write, lambda path: False
    try:
        async with Limpet(URL, store=await look_at(URL)) as second:
            await second.maintenance.doctor()
    finally:
        connect.may_write = may


@deed
async def run_every_command(lp: Limpet) -> None:
    fresh = PATH.parent / "fresh.db"
    for words in (
        ("doctor", URL),
        ("verify", URL),
        ("status", URL),
        ("backup", URL, str(fresh), "--verify"),
        ("backup", URL, str(PATH)),
        ("restore", str(BACKUP), URL),
        ("restore", str(BACKUP), URL, "--replace"),
        ("restore", str(PATH), f"sqlite:///{fresh}", "--replace"),
    ):
        await asyncio.to_thread(run, PATH.parent, *words)


@deed
async def read_the_file_by_hand(lp: Limpet) -> None:
    """What a user's own program may do, and should not."""
    PATH.read_bytes()
    opened.clear()


def note(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        name = os.path.realpath(os.fsdecode(args[0]))
        if name in (str(PATH), f"{PATH}-shm"):
            opened.append(Path(name).name)


async def told() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def do(lp: Limpet, name: str) -> str:
    """The name of the error that a deed ended with, or "well", and the files it opened."""
    opened.clear()
    try:
        await DEEDS[name](lp)
    except LimpetError as error:
        return " ".join([error.code, *opened])
    return " ".join(["well", *opened])


async def append(session: Session, count: int) -> str:
    for _ in range(count):
        await session.append("a.b", inc={"n": 1})
    return f"at {session.version}"


async def main() -> None:
    async with limpet.open(URL) as lp:
        session = await lp.get(KEY, actor="x")
        await append(session, 1)
        print("open", flush=True)
        while (line := await told()) != "end":
            name, _, count = line.partition(" ")
            said = await (append(session, int(count)) if count else do(lp, name))
            print(said, flush=True)


if __name__ == "__main__":
    sys.addaudithook(note)
    asyncio.run(main())
