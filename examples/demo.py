"""The tour behind `make demo`, in which every claim is checked.

An agent asks before it pays, its worker is killed in mid-refund, and a second one finishes. Then
the tour kills a writer process in mid-stream again and again, lets two processes write the same
state, looks through two users' eyes, and forges a copy of the database. A claim that turns out
false ends the tour with exit code 1. The agent's story is in refund.py and agent.py; what else is
started is in writer.py and counter.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import refund
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from writer import word

import limpet

HERE = Path(__file__).parent
KEY = limpet.Key("support", "ada", "refund")
KILLS = 3
COUNTS = 60
TICKETS = 500

console = Console(highlight=False)
checked: list[str] = []


class Broken(Exception):
    """Something the tour claims is not true."""


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # a plain terminal may lack some characters
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="limpet-demo-") as folder:
            asyncio.run(tour(Path(folder)))
    except Broken as broken:
        console.print(f"  ✗ NOT TRUE: {broken}", style="bold red")
        return 1
    seconds = time.monotonic() - began
    console.print(f"\n[bold]{len(checked)} claims, all checked, in {seconds:.0f} seconds.[/]")
    console.print("Next: docs/tutorial.md and docs/runtime.md; examples/crash.py dies and resumes.")
    return 0


async def tour(folder: Path) -> None:
    url = f"sqlite:///{folder}/support.db"
    await refund.tell(folder, console, scene, claim)
    async with limpet.open(url) as lp:
        await talk(lp)
    await crash(url)
    async with limpet.open(url) as lp:
        await share(lp, url)
        await isolate(lp)
        await verify(lp, folder)
        await show(lp)


# --- the scenes ---------------------------------------------------------------------------------


async def talk(lp: limpet.Limpet) -> None:
    scene("A session is a log of events", "Events and their changes to state are one commit.")
    session = await lp.create(
        KEY.app,
        KEY.user,
        id=KEY.id,
        state={"user:lang": "en", "app:visits": 0, "app:tickets": TICKETS},
        labels={"plan": "gold"},
    )
    question = await session.append(
        "user.message",
        {"text": "I was charged twice."},
        actor="user:ada",
        add={"topics": ["billing"]},
        inc={"app:visits": 1},
    )
    await session.append(
        "agent.tool_used",
        {"tool": "list_charges"},
        actor="agent:main",
        trace=limpet.Trace(cause=question.id),
        set={"refund": {"eur": 12, "status": "open"}},
        add={"topics": ["refund"]},
    )
    claim(session.version == 3, "three events: created, asked, looked up")
    claim(session.state["topics"] == ["billing", "refund"], "and the state that follows from them")


async def crash(url: str) -> None:
    scene("kill -9", f"A writer process streams an answer. We kill it, {KILLS} times.")
    acknowledged: list[str] = []
    table = a_table("kill", "acknowledged", "lost", "in doubt", "was it recorded?", "sent again")
    for kill in range(1, KILLS + 1):
        with console.status(f"kill {kill}: writing …"):
            acknowledged += await stream_until_killed(url)
        table.add_row(f"{kill}", *await carry_on(url, acknowledged))
    console.print(table)
    async with limpet.open(url) as lp:
        await check_log(await lp.get(KEY), acknowledged)


async def carry_on(url: str, acknowledged: list[str]) -> tuple[str, ...]:
    """Start again after a kill; how many were acknowledged, and what became of the next one."""
    doubtful = word(len(acknowledged) + 1)
    async with limpet.open(url) as lp:
        session = lp.session(KEY)
        found = ids(await whole_log(session))
        lost = len(set(acknowledged) - set(found))
        claim(not lost, "after a kill every acknowledged event is there", quietly=True)
        await send_again(session, doubtful)
    row = f"{len(acknowledged):,}", f"{lost}", f"{doubtful.id}"
    acknowledged.append(f"{doubtful.id}")
    return (*row, "yes", "not doubled") if doubtful.id in found else (*row, "no", "recorded")


async def send_again(session: limpet.Session, doubtful: limpet.Draft) -> None:
    """Was it recorded when the writer died? Nobody has to know: send it, with the same id."""
    (first,) = await session.append_many([doubtful])
    (again,) = await session.append_many([doubtful])
    claim(first == again, "a repeated id returns the first record", quietly=True)


async def check_log(session: limpet.Session, acknowledged: list[str]) -> None:
    log = up_to(session, await whole_log(session))
    found = ids(log)
    words = [id for id in found if id.startswith("word-")]
    claim(set(acknowledged) <= set(found), f"all {len(acknowledged):,} events are there")
    claim(len(found) == len(set(found)), "none is there twice")
    claim([e.seq for e in log] == [*range(1, len(log) + 1)], "seqs run from 1 without a gap")
    claim(session.state["words"] == len(words), "and the state has counted each of them once")


async def share(lp: limpet.Limpet, url: str) -> None:
    scene("Two processes, one counter", "Both count visits and take tickets in app: state.")
    before = (await lp.get(KEY)).state
    with console.status("counting …"):
        grace = start("counter.py", url, KEY.app, "grace", str(COUNTS))
        alan = start("counter.py", url, KEY.app, "alan", str(COUNTS))
        async with grace as one, alan as other:
            codes = await one.wait(), await other.wait()
    after = (await lp.get(KEY)).state
    visits = after["app:visits"] - before["app:visits"]
    tickets = before["app:tickets"] - after["app:tickets"]
    claim(codes == (0, 0), "both processes finished")
    claim(visits == 2 * COUNTS, f"2 × {COUNTS} visits counted, none lost")
    claim(tickets == 2 * COUNTS, f"2 × {COUNTS} tickets taken by read and write, none twice")


async def isolate(lp: limpet.Limpet) -> None:
    scene("Who sees what", "app: is shared by an app, user: by one user's sessions.")
    first = await lp.get(KEY)
    second = await lp.create(KEY.app, KEY.user)
    grace = (await lp.list(app=KEY.app, user="grace")).items[0].key
    others = await lp.get(grace)
    table = a_table("name", "ada", "ada, another session", "grace")
    for name in ("app:visits", "user:lang", "refund"):
        table.add_row(name, *[short(s.state.get(name, "–")) for s in (first, second, others)])
    console.print(table)
    claim(second.state["user:lang"] == "en", "ada's new session knows her language")
    claim(others.state["user:lang"] == "fr", "grace has her own")
    stranger = await lp.find((KEY.app, "grace", KEY.id))
    claim(stranger is None, "the id of ada's session opens nothing under grace's name")


async def verify(lp: limpet.Limpet, folder: Path) -> None:
    scene("Nothing changes unseen", "Each event's link is a hash that covers the one before.")
    report = await lp.maintenance.verify()
    claim(report.ok, f"{report.events:,} events of {report.sessions} sessions fit their chains")
    copy = folder / "copy.db"
    await lp.maintenance.backup(copy)
    copy.write_bytes(copy.read_bytes().replace(b"charged twice", b"charged once!"))
    async with limpet.open(f"sqlite:///{copy}") as forged:
        report = await forged.maintenance.verify()
    claim(not report.ok, "a backup in which somebody changed one word is found out:")
    finding = report.findings[0]
    console.print(f"    → {finding.where} {finding.seq} {finding.problem}")


async def show(lp: limpet.Limpet) -> None:
    session = await lp.get(KEY, tail=3)
    scene("The timeline", f"{session.key}, {session.version:,} events")
    console.print(timeline(await session.read(limit=6), session.events))
    scene("The state", "Folded from the events, with the names of ada and of the app.")
    table = a_table("name", "scope", "value")
    for name, value in session.state.items():
        table.add_row(name, name.partition(":")[0] if ":" in name else "session", short(value))
    console.print(table)


# --- processes ----------------------------------------------------------------------------------


async def stream_until_killed(url: str) -> list[str]:
    """Start the writer and kill it while it writes; the ids it had reported as safe."""
    async with start("writer.py", url, KEY.app, KEY.user, KEY.id) as writer:
        assert writer.stdout is not None  # start asks for a pipe
        first = await writer.stdout.readline()
        if not first:
            raise Broken("the writer began to write")
        await asyncio.sleep(random.uniform(0.3, 0.6))
        writer.kill()  # SIGKILL: no handler, no clean-up, no goodbye
        rest = await writer.stdout.read()
        if await writer.wait() != -signal.SIGKILL:
            raise Broken("the writer died of our SIGKILL")
    return (first + rest).decode().split()


@asynccontextmanager
async def start(script: str, *args: str) -> AsyncIterator[Process]:
    """A process of its own that does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / script), *args, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# --- what is there ------------------------------------------------------------------------------


async def whole_log(session: limpet.Session) -> list[limpet.Event]:
    """Every event, from the first to the last, page by page."""
    log: list[limpet.Event] = []
    while page := await session.read(after=len(log), limit=1000):
        log += page
    return log


def up_to(session: limpet.Session, log: list[limpet.Event]) -> list[limpet.Event]:
    """What the session had when it was loaded: a server may still finish a dead writer's commit."""
    return [event for event in log if event.seq <= session.version]


def ids(log: list[limpet.Event]) -> list[str]:
    return [event.id for event in log]


# --- telling it ---------------------------------------------------------------------------------


def scene(title: str, about: str) -> None:
    if checked and console.is_terminal:
        time.sleep(1)  # nothing else runs: time to read
    console.print(f"\n[bold cyan]{title}[/]  [dim]{about}[/]")


def claim(truth: bool, words: str, *, quietly: bool = False) -> None:  # noqa: FBT001  # a sentence
    """Say something and stand by it."""
    if not truth:
        raise Broken(words)
    checked.append(words)
    if not quietly:
        console.print(f"  [green]✓[/] {words}")


def a_table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def timeline(first: Sequence[limpet.Event], last: Sequence[limpet.Event]) -> Table:
    """The beginning of a log and its end."""
    began = first[0].at
    table = a_table("seq", "sec", "actor", "type", "data", "changes")
    for event in first:
        table.add_row(*told(event, began))
    table.add_row("…")
    for event in last:
        table.add_row(*told(event, began))
    return table


def told(event: limpet.Event, began: datetime) -> tuple[str, ...]:
    data = event.data or {}
    said = data.get("text") or ", ".join(f"{name}={value}" for name, value in data.items())
    after = f"{(event.at - began).total_seconds():.1f}"
    changes = ", ".join(dict.fromkeys(str(op.path[0]) for op in event.ops))
    return f"{event.seq:,}", after, event.actor, event.type, short(said, 20), short(changes, 14)


def short(value: Any, most: int = 40) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value}"
    return text if len(text) <= most else text[: most - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
