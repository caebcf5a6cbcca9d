"""Lifecycle and time: any sequence of verbs, writes, sweeps and passing hours obeys the rules.

The rules are written here again, from the table of the issue; the code's own table is not asked.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from hypothesis import example, given, settings, strategies as st

import limpet
from limpet.session.life.archive_storage import DirectoryArchive
from limpet.store.memory import MemoryStore
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from tests.support import postgres
from tests.support.examples import examples

HOUR: Final = timedelta(hours=1)
SPANS: Final = {"idle": 4, "absolute": 60, "grace": 10, "archive": 14, "expiry": 20}  # hours
TERMINAL: Final = ("completed", "terminated", "archived", "deleted")
VERBS: Final = {
    "activate": {"init": "active", "resumed": "active"},
    "suspend": {"active": "suspended"},
    "resume": {"suspended": "active"},
    "resume_only": {"suspended": "resumed"},
    "complete": {"active": "completed"},
    "terminate": dict.fromkeys(("init", "active", "suspended", "resumed"), "terminated"),
    "archive": {"completed": "archived", "terminated": "archived"},
}
Moved = Callable[[], Awaitable[None]]
NOW: Final = (
    "CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS "
    "$$ SELECT {}::bigint $$"
)
STEPS = st.one_of(
    st.sampled_from([*VERBS, "user", "agent", "label", "sweep", "sweep", "unarchive"]),
    st.sampled_from(["delegate", "child"]),
    st.integers(1, 12),  # hours that pass
)


class Told:
    """What the session should be, by the rules alone."""

    def __init__(self, phase: str, now: int) -> None:
        self.phase, self.created, self.since, self.active = phase, now, now, now
        self.ended: int | None = None
        self.idle = False  # suspended by the sweep
        self.ended_as = ""  # completed or terminated
        self.children = 0  # that have not ended
        self.owes = False  # it ended before its children did, which nobody told them yet
        self.spent = dict.fromkeys(("init", "active", "suspended", "resumed"), 0)

    def move(self, to: str, now: int) -> None:
        if self.phase in self.spent:
            self.spent[self.phase] += now - self.since
        if to in TERMINAL and self.ended is None:
            self.ended, self.ended_as, self.owes = now, to, self.children > 0
        self.phase, self.since, self.idle = to, now, False

    def overdue(self, now: int, slack: int) -> set[str]:
        """What may have happened (no slack), or must have (with the rounding)."""
        hours = {name: span * 3_600_000_000 for name, span in SPANS.items()}
        found = set()
        if self.phase in TERMINAL:
            assert self.ended is not None
            if self.owes:  # its end is not over yet
                return set()
            if now >= self.ended + hours["expiry"]:
                return {"deleted"}
            due = self.phase != "archived" and now >= self.ended + hours["archive"]
            return {"archived"} if due else set()
        if now >= self.created + hours["absolute"] or (
            self.phase == "suspended" and now >= self.since + hours["grace"]
        ):
            found.add("terminated")
        elif self.phase == "active":
            idle_at = max(self.active, self.since) + hours["idle"]
            if now >= idle_at + (hours["idle"] // 16 if slack else 0):
                found.add("suspended")
        return found


class Life:
    """One session, driven beside what it should be."""

    def __init__(self, lp: limpet.Limpet, s: limpet.Session, clock: FakeClock, told: Told) -> None:
        self.lp, self.s, self.clock, self.told = lp, s, clock, told
        self.moved: Moved = _nothing  # awaited when time has passed

    async def take(self, step: Any) -> None:
        if isinstance(step, int):
            self.clock.advance(step * HOUR)
            await self.moved()
        elif self.told.phase == "deleted":
            return
        elif step in VERBS:
            await self.verb(step)
        elif step == "sweep":
            await self.sweep()
        elif step == "unarchive":
            await self.unarchive()
        elif step in ("delegate", "child"):
            await self.work(step)
        else:
            await self.write(step)
        await self.check()

    async def verb(self, step: str) -> None:
        to = VERBS[step].get(self.told.phase)
        call = self.s.resume(activate=False) if step == "resume_only" else getattr(self.s, step)()
        if to is None:
            with pytest.raises(limpet.errors.InvalidTransition):
                await call
            return
        if (step == "complete" and self.told.children) or (step == "archive" and self.told.owes):
            with pytest.raises(limpet.errors.GuardFailed):
                await call
            return
        assert (await call).phase == to
        self.told.move(to, self.clock.now_us)

    async def unarchive(self) -> None:
        if self.told.phase != "archived":
            with pytest.raises(limpet.errors.InvalidTransition):
                await self.lp.unarchive(self.s.key)
            return
        await self.lp.unarchive(self.s.key)
        self.told.move(self.told.ended_as, self.clock.now_us)

    async def work(self, step: str) -> None:
        """The session gives work to another, or one of those ends: both only while it is active."""
        if self.told.phase != "active" or (step == "child" and not self.told.children):
            return
        if step == "delegate":
            await self.s.append("user.message", {"text": "look"})
            assert (await self.lp.wake(self.s.key, delegates)).error is None
        else:
            child, *_ = await self.s.runs.children()
            assert (await self.lp.wake(child, ends)).error is None
        self.told.children += 1 if step == "delegate" else -1
        self.told.active = self.clock.now_us
        await self.s.refresh()
        assert len(await self.s.runs.children()) == self.told.children

    async def write(self, step: str) -> None:
        phase, now = self.told.phase, self.clock.now_us
        allowed = {"user": phase not in TERMINAL, "agent": phase in ("init", "active")}
        allowed["label"] = phase not in TERMINAL
        said = {"text": "hi"}
        call = (
            self.s.append(f"{step}.message", said) if step != "label" else self.s.label({"n": "1"})
        )
        if not allowed[step]:
            expected = limpet.SessionEnded if phase in TERMINAL else limpet.errors.SessionSuspended
            with pytest.raises(expected):
                await call
            return
        await call
        if step != "label":
            self.told.active = now
        if step == "user" and self.told.idle:
            self.told.move("resumed", now)
            self.told.move("active", now)

    async def sweep(self) -> None:
        now, before = self.clock.now_us, self.told.phase
        may, must = self.told.overdue(now, 0), self.told.overdue(now, 1)
        await self.lp.work.sweep()
        after = await self.phase()
        assert after == before or after in may, (before, after, may)
        assert not must or after in must, (before, after, must)
        if after != before:
            if after == "terminated" and before == "active":
                self.told.move("suspended", now)
            self.told.move(after, now)
            self.told.idle = after == "suspended"
        self.s = self.lp.session(self.s.key, actor="user:ada")

    async def phase(self) -> str:
        try:
            return (await self.lp.get(self.s.key, archived=True)).phase
        except limpet.errors.SessionDeleted:
            return "deleted"

    async def check(self) -> None:
        if self.told.phase == "deleted":
            return
        s = await self.lp.get(self.s.key, archived=True)
        assert s.phase == self.told.phase
        spent, now = s.lifecycle.durations, self.clock.now_us
        end = now if self.told.ended is None else self.told.ended
        assert round(spent.total * 1_000_000) == end - self.told.created
        if self.told.phase in TERMINAL and not self.told.owes:
            assert await self.lp.work.claim("w", app="support") == ()


async def delegates(turn: limpet.Turn) -> None:
    if any(event.type == "user.message" for event in turn.inputs):
        await turn.delegate("research", "look")


async def ends(turn: limpet.Turn) -> None:
    """A child whose turn closes has ended."""


async def _nothing() -> None:
    """A store that reads our clock by itself."""


async def drive(
    store: Any,
    clock: FakeClock,
    first: str,
    steps: list[Any],
    moved: Moved = _nothing,
    archive: Any = None,
) -> None:
    spans = {name: span * HOUR for name, span in SPANS.items()}
    how: Any = {"store": store, "archive": archive}
    async with limpet.Limpet("any://", **how) as lp:
        how = {"phase": first, "timeouts": limpet.Timeouts(**spans)}
        s = await lp.create("support", "ada", actor="user:ada", **how)
        life = Life(lp, s, clock, Told(first, clock.now_us))
        life.moved = moved
        for step in steps:
            await life.take(step)
        assert (await lp.maintenance.verify()).ok


@examples(200)
@example("active", ["delegate", "complete", "child", "complete", "archive", "unarchive", "archive"])
@example("active", ["delegate", "terminate", "archive", 12, 12, "sweep"])  # its end is not over
@example("active", ["complete", 8, 8, "sweep", "unarchive", "sweep", 12, "sweep"])
@example("active", [5, "suspend", "resume", "sweep"])  # what was not active was not idle
@example("active", [5, "sweep", "user", "sweep", 5, "sweep", 11, "sweep", 12, 12, "sweep"])
@given(st.sampled_from(["init", "active"]), st.lists(STEPS, max_size=25))
def test_any_life_obeys_the_rules_in_memory(first: str, steps: list[Any]) -> None:
    """Phases, refusals, deadlines and durations are what the table and the clock say."""
    clock = FakeClock()
    asyncio.run(drive(MemoryStore(clock.clock()), clock, first, steps))


@examples(30)
@example("active", ["complete", 8, 8, "sweep", "user", "unarchive", "archive", 12, "sweep"])
@given(st.sampled_from(["init", "active"]), st.lists(STEPS, max_size=25))
def test_any_life_obeys_the_rules_on_sqlite(first: str, steps: list[Any]) -> None:
    """The same on a file."""

    async def run(folder: str) -> None:
        clock = FakeClock()
        path = Path(folder) / "life.db"
        store = await SQLiteStore.open(path, sync="normal", clock=clock.clock())
        await drive(store, clock, first, steps, archive=DirectoryArchive(Path(folder) / "cold"))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))


async def on_server(url: str, first: str, steps: list[Any]) -> None:
    """A life on a server whose clock is ours for as long as it lasts."""
    clock = FakeClock()
    known = ServerClock(clock.wall)
    await postgres.cleared(url)
    conn = await asyncpg.connect(url)
    its_own = await conn.fetchval("SELECT pg_get_functiondef('limpet.now_us'::regproc)")

    async def moved() -> None:
        await conn.execute(NOW.format(clock.now_us))
        known.learn(known.local_us(), clock.now_us)  # or it would be known less well after hours

    try:
        await moved()
        store = await PostgresStore.open(url, connections=6, clock=known)
        await drive(store, clock, first, steps, moved)
    finally:
        await conn.execute(its_own)
        await conn.close()


@examples(9)
@example("active", ["delegate", "complete", "child", "complete", "archive", "unarchive", "archive"])
@example("active", [5, "suspend", "resume", "sweep"])
@example("active", [5, "sweep", "user", "sweep", 5, "sweep", 11, "sweep", 12, 12, "sweep"])
@given(st.sampled_from(["init", "active"]), st.lists(STEPS, max_size=25))
def test_any_life_obeys_the_rules_on_postgresql(
    any_postgres: postgres.Server | postgres.Elsewhere, first: str, steps: list[Any]
) -> None:
    """The same on a server, by a clock that is made ours."""
    asyncio.run(on_server(any_postgres.url, first, steps))


@pytest.mark.torture
@settings(max_examples=300)
@given(st.sampled_from(["init", "active"]), st.lists(STEPS, max_size=25))
def test_any_life_obeys_the_rules_on_postgresql_at_length(
    any_postgres: postgres.Server | postgres.Elsewhere, first: str, steps: list[Any]
) -> None:
    """The same for long."""
    asyncio.run(on_server(any_postgres.url, first, steps))
