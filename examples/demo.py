"""The tour behind `make demo`, in which every claim is checked.

An agent asks before it pays, its worker is killed in mid-refund, and a second one finishes: the
customer is paid once. The session then moves to another store and goes on there. After that the
tour kills a writer process in mid-stream again and again, and forges a copy of the database. A
claim that turns out false ends the tour with exit code 1.

The stores stay in the folder limpet-demo: look at them with `limpet studio`. The agent's story is
in refund.py and agent.py; the writer is writer.py.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import refund
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from writer import word

import limpet

HERE = Path(__file__).parent
KEY = limpet.Key("support", "ada", "refund")
KILLS = 3
FOLDER = Path("limpet-demo")  # where the tour leaves its stores

console = Console(highlight=False)
checked: list[str] = []


class Broken(Exception):
    """Something the tour claims is not true."""


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # a plain terminal may lack some characters
    began = time.monotonic()
    try:
        asyncio.run(tour(FOLDER))
    except Broken as broken:
        console.print(f"  ✗ NOT TRUE: {broken}", style="bold red")
        return 1
    seconds = time.monotonic() - began
    console.print(f"\n[bold]{len(checked)} claims, all checked, in {seconds:.0f} seconds.[/]")
    console.print("\nLook at these sessions in a browser:")
    console.print("  make studio                          in this clone; or")
    console.print(f"  limpet studio {FOLDER}/office.db   with limpet\\[cli,server] installed")
    console.print("Next: docs/tutorial.md, and docs/agent.md for an agent of your own.")
    return 0


async def tour(folder: Path) -> None:
    sweep(folder)
    laptop, office = (f"sqlite:///{folder.absolute()}/{name}.db" for name in ("laptop", "office"))
    await refund.tell(laptop, folder / "bank.txt", console, scene, claim)
    await refund.move(laptop, office, folder / "bank.txt", console, scene, claim)
    async with limpet.open(office) as lp:
        await lp.create(KEY.app, KEY.user, id=KEY.id, state={"words": 0}, actor="user:ada")
    await crash(office)
    async with limpet.open(office) as lp:
        await verify(lp, folder)


def sweep(folder: Path) -> None:
    """Remove what an earlier tour left, and nothing else."""
    folder.mkdir(exist_ok=True)
    left = [
        path for name in ("laptop.db", "office.db", "forged.db") for path in folder.glob(f"{name}*")
    ]
    for path in (*left, folder / "bank.txt"):
        path.unlink(missing_ok=True)


# --- the scenes ---------------------------------------------------------------------------------


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


async def verify(lp: limpet.Limpet, folder: Path) -> None:
    scene("Nothing changes unseen", "Each event's link is a hash that covers the one before.")
    report = await lp.maintenance.verify()
    claim(report.ok, f"{report.events:,} events of {report.sessions} sessions fit their chains")
    copy = folder / "forged.db"
    await lp.maintenance.backup(copy)
    copy.write_bytes(copy.read_bytes().replace(b"charged twice", b"charged once!"))
    async with limpet.open(f"sqlite:///{copy}") as forged:
        report = await forged.maintenance.verify()
    copy.unlink()
    claim(not report.ok, "a copy in which one word was changed is detected:")
    finding = report.findings[0]
    console.print(f"    → {finding.where} {finding.seq} {finding.problem}")


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
        time.sleep(0.5)  # nothing else runs: time to read
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


if __name__ == "__main__":
    sys.exit(main())
