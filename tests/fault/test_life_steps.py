"""A process is killed with SIGKILL before each step of each deed in the life of a session.

The nth change of the store or the archive is not reached: the process is gone by then. Reopened,
the session is in the phase before or the phase after, its log is whole, and the next sweep or the
next call brings it to its end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import limpet
from limpet.session.life.archive_storage import DirectoryArchive
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support.examples import tries
from tests.support.forked import fork
from tests.support.seal import FixedKeySeal

KEY: Final = limpet.Key("support", "ada", "one")
HOUR: Final = timedelta(hours=1)
ADA: Final = "user:ada"
SEALED: Final = "sealed"  # a file that says that the store of a folder is opened with a seal
Deed = Callable[[limpet.Limpet], Awaitable[Any]]
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Case(NamedTuple):
    """What a session has been through, what is done to it, and where that leads."""

    ways: tuple[str, ...]
    deed: Deed
    before: str
    after: str
    between: tuple[str, ...] = ()
    sealed: bool = False


def verb(name: str, **how: Any) -> Deed:
    return lambda lp: getattr(lp.session(KEY, actor=ADA), name)(**how)


async def swept(lp: limpet.Limpet) -> None:
    assert not (await lp.work.sweep()).failed


# The timeouts of every session: idle 4 hours, absolute 60, grace 10, archive 6, expiry 20.
MOVING: Final = ("moving",)
CASES: Final = {
    "suspend": Case((), verb("suspend"), "active", "suspended"),
    "resume": Case(("suspend",), verb("resume"), "suspended", "active"),
    "resume by the protocol": Case(
        ("suspend",), lambda lp: lp.resume(KEY, actor=ADA), "suspended", "active"
    ),
    "complete": Case((), verb("complete"), "active", "completed"),
    "terminate": Case((), verb("terminate"), "active", "terminated"),
    "archive": Case(("complete",), verb("archive"), "completed", "archived", MOVING),
    "unarchive": Case(
        ("complete", "archive"), lambda lp: lp.unarchive(KEY), "archived", "completed", MOVING
    ),
    "archive, sealed": Case(
        ("complete",), verb("archive"), "completed", "archived", MOVING, sealed=True
    ),
    "unarchive, sealed": Case(
        ("complete", "archive"),
        lambda lp: lp.unarchive(KEY),
        "archived",
        "completed",
        MOVING,
        sealed=True,
    ),
    "sweep, idle": Case(("5",), swept, "active", "suspended"),
    "sweep, grace": Case(("suspend", "11"), swept, "suspended", "terminated"),
    "sweep, absolute": Case(("61",), swept, "active", "terminated"),
    "sweep, archive": Case(("complete", "7"), swept, "completed", "archived", MOVING),
    "sweep, expiry": Case(("complete", "archive", "21"), swept, "archived", "deleted", ("going",)),
}


async def with_store(folder: Path, hours: int, work: Deed) -> Any:
    """Do something on the store of a folder, so many hours after its beginning."""
    clock = FakeClock()
    for _ in range(hours):
        clock.advance(HOUR)
    how: dict[str, Any] = {"sync": "normal", "clock": clock.clock()}
    if (folder / SEALED).exists():
        how["seal"] = FixedKeySeal()
    store = await SQLiteStore.open(folder / "life.db", **how)
    cold = DirectoryArchive(folder / "cold")
    url = "sqlite:///life.db"
    async with limpet.Limpet(url, store=store, archive=cold) as lp:
        return await work(lp)


async def prepare(lp: limpet.Limpet) -> None:
    spans = {"idle": 4, "absolute": 60, "grace": 10, "archive": 6, "expiry": 20}
    limits = limpet.Timeouts(**{name: n * HOUR for name, n in spans.items()})
    s = await lp.create("support", "ada", "one", state={"n": 1}, timeouts=limits, actor=ADA)
    await s.append("user.message", {"text": "hi"}, set={"n": 2})
    await s.memory.episodic.put("refund", "it went well")


def killed_at(step: int, folder: Path, hours: int, deed: Deed) -> bool:
    """Do it in a child that is killed before its nth change; whether it came so far."""
    left = step

    def mortal(change: Any) -> Any:
        async def call(self: Any, *args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return await change(self, *args, **named)

        return call

    def work() -> str:
        for of, names in (
            (SQLiteStore, ("commit", "delete", "acquire", "release")),
            (DirectoryArchive, ("put", "fetch", "remove")),
        ):
            for name in names:
                setattr(of, name, mortal(getattr(of, name)))  # in this process alone
        asyncio.run(with_store(folder, hours, deed))
        return "done"

    return fork(work)() != "done"


async def found(lp: limpet.Limpet) -> str:
    """The one phase that the session is in; its log is whole, wherever it is."""
    assert (await lp.maintenance.verify()).ok
    try:
        s = await lp.get(KEY, archived=True)
    except limpet.errors.SessionDeleted:
        return "deleted"
    except limpet.errors.SessionArchived:
        return "moving"  # its file is whole in the archive; the next sweep finishes
    except limpet.errors.ArchiveFailed:
        return "going"  # its file went first: rows can be found again, a file could not
    log = await s.read(limit=100)
    assert [event.seq for event in log] == list(range(1, s.version + 1))
    assert [event.type for event in log[:2]] == ["session.created", "user.message"]
    assert s.values["n"] == 2
    return s.phase


async def again(case: Case, cold: Path, lp: limpet.Limpet, *, sweeping: bool) -> str:
    """Do it again, as whoever comes next would, before or after a sweep; where that leads."""
    if sweeping:
        await swept(lp)
        assert await has_arrived(lp, cold) in (case.before, case.after)
    with suppress(limpet.errors.InvalidTransition):  # it was done
        await case.deed(lp)
    return await has_arrived(lp, cold)


async def has_arrived(lp: limpet.Limpet, cold: Path) -> str:
    """Its phase. If that is archived, its rows have left the store; else its file the archive."""
    phase = await found(lp)
    for head in (await lp.list(app="support")).items:
        assert phase != "archived" or "archive" in head.facts
    if phase not in ("archived", "moving"):
        assert not list(cold.rglob("*.limpet"))
    return phase


def begun(tmp_path: Path, case: Case) -> tuple[Path, int]:
    """A folder with a session that is ready for the deed, and when it is."""
    hours, origin = 0, tmp_path / "origin"
    origin.mkdir()
    if case.sealed:
        (origin / SEALED).touch()
    asyncio.run(with_store(origin, hours, prepare))
    for way in case.ways:
        if way.isdecimal():
            hours += int(way)
        else:
            asyncio.run(with_store(origin, hours, verb(way)))
    return origin, hours


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_step_is_not_reached_the_session_is_in_one_phase(
    tmp_path: Path, case: Case
) -> None:
    """Before or after, never between; doing it again leads to the end."""
    origin, hours = begun(tmp_path, case)
    for step in range(1, 40):
        folder = shutil.copytree(origin, tmp_path / str(step))
        died = killed_at(step, folder, hours, case.deed)
        phase = asyncio.run(with_store(folder, hours, found))
        assert phase in {case.before, case.after, *case.between}, step
        # A lease of the killed process ends by itself within the hour.
        later = hours + 1 if case.deed is swept else hours
        on = partial(again, case, folder / "cold", sweeping=bool(step % 2))
        assert asyncio.run(with_store(folder, later, on)) == case.after
        if not died:
            break
    assert step > 1
    assert not died


async def erased(lp: limpet.Limpet) -> None:
    await lp.erase(KEY)
    await swept(lp)
    with pytest.raises(limpet.errors.SessionErased):
        await lp.get(KEY, archived=True)
    assert (await lp.list(app="support")).items == ()


@pytest.mark.parametrize("deed", ["archive", "unarchive"])
def test_what_is_erased_on_its_way_does_not_come_back(tmp_path: Path, deed: str) -> None:
    """Wherever a move was interrupted, erasing takes the file too, and no sweep finishes it."""
    case = CASES[deed]
    origin, hours = begun(tmp_path, case)
    for step in tries(range(3, 12, 3), range(1, 40)):
        folder = shutil.copytree(origin, tmp_path / str(step))
        died = killed_at(step, folder, hours, case.deed)
        asyncio.run(with_store(folder, hours, erased))
        assert not list((folder / "cold").rglob("*.limpet"))
        if not died:
            break
