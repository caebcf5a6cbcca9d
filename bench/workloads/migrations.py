"""S2: a dry run of a migration over every session of a store.

All sessions are of the old version and one step leads to the new one: the case in which nothing
can be skipped. Raw has the same states in a table of JSON and reads, changes and encodes them.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec

import limpet
from bench import raw
from bench.rounds import Numbers, Run
from bench.table import Row, at_least, row
from bench.texts import Writer
from limpet import MigrationRegistry, State

_PER_SECOND_MIN = 2_000
_SCHEMA = "CREATE TABLE states (sid INTEGER PRIMARY KEY, state BLOB NOT NULL) STRICT"
_REGISTRY = MigrationRegistry("plans become goals")


class Before(State):
    schema_version: ClassVar[str] = "1.0.0"
    plan: str
    step: int = 0
    notes: list[str] = []  # a default of a field: every state gets a copy


class After(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    step: int = 0
    notes: list[str] = []  # the same


@_REGISTRY.migration("1.0.0", "2.0.0")
def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    fields["goal"] = fields.pop("plan")
    return fields


def rows(run: Run) -> list[Row]:
    count = run.size(20_000, 3_000)
    with run.place.empty() as path:
        states = _states(count)
        asyncio.run(_build_ours(run, path, states))
        _build_raw(path, states)
        readings = run.alternate_in(
            path,
            {
                "ours": lambda path: asyncio.run(_ours(path, count)),
                "raw": lambda path: _raw(path, count),
            },
        )
    found = []
    for name in ("with its class", "without one"):
        target = at_least(_PER_SECOND_MIN, "a second", readings.median("ours", name))
        found.append(row("S2", f"{count:,} sessions, {name}", "per second", readings, name, target))
    return found


def _states(count: int) -> list[Before]:
    writer = Writer()
    return [
        Before(plan=writer.prose(60), step=n, notes=[writer.prose(40), writer.prose(40)])
        for n in range(count)
    ]


async def _build_ours(run: Run, path: Path, states: list[Before]) -> None:
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        for start in range(0, len(states), 1_000):
            run.say(f"building {len(states):,} sessions: {start:,}")
            some = enumerate(states[start : start + 1_000], start)
            await asyncio.gather(
                *(lp.create("app", f"u-{n % 500}", id=f"s-{n}", state=state) for n, state in some)
            )


def _build_raw(path: Path, states: list[Before]) -> None:
    conn = raw.connect(path / "raw.db", schema=_SCHEMA)
    with conn:
        lines = ((msgspec.json.encode(state.model_dump()),) for state in states)
        conn.executemany("INSERT INTO states (state) VALUES (?)", lines)
    conn.close()


async def _ours(path: Path, count: int) -> Numbers:
    numbers = {}
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        for name, state_type in (("with its class", After), ("without one", None)):
            begin = time.perf_counter()
            plan = await lp.maintenance.migrate(_REGISTRY, state_type)
            numbers[name] = count / (time.perf_counter() - begin)
            assert plan.count("migratable") == plan.sessions == count
    return numbers


def _raw(path: Path, count: int) -> Numbers:
    conn = raw.connect(path / "raw.db")
    begin = time.perf_counter()
    found: list[Any] = conn.execute("SELECT state FROM states ORDER BY sid").fetchall()
    for (state,) in found:
        msgspec.json.encode(_renamed(msgspec.json.decode(state)))
    rate = count / (time.perf_counter() - begin)
    conn.close()
    return {"with its class": rate, "without one": rate}
