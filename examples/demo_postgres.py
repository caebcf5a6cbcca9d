"""The tour behind `make demo-postgres`: the same promises, kept by a PostgreSQL server.

It starts a server of its own from the binaries in a wheel, on a socket in a temporary directory.
Then it kills a writer process, stops and crashes the server while another one writes and a
follower looks on, lets two processes share a counter, and forges a row. Every claim is checked; a
false one ends the tour with exit code 1. The server and its files are gone afterwards.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import demo
from demo import KEY, Broken, a_table, claim, console, scene
from rich.table import Table

import limpet

sys.path.append(str(Path(__file__).parents[1]))  # the server is the one that the tests use

from tests.support.postgres import Server

KILLS = 2
COUNTS = 60
TICKETS = 500
WORDS = 25
WAIT_SECONDS_MAX = 60.0


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # a plain terminal may lack some characters
    began = time.monotonic()
    demo.KILLS = KILLS
    server = None
    try:
        with console.status("making a server …"):
            server = Server()  # with fsync, as in production
            server.start()
        asyncio.run(tour(server))
    except Broken as broken:
        console.print(f"  ✗ NOT TRUE: {broken}", style="bold red")
        return 1
    finally:
        if server is not None:
            server.remove()
    seconds = time.monotonic() - began
    console.print(f"\n[bold]{len(demo.checked)} claims, all checked, in {seconds:.0f} seconds.[/]")
    console.print("Yours: limpet.open('postgresql://user@host/database'). No other change.")
    return 0


async def tour(server: Server) -> None:
    await greet(server)
    async with limpet.open(server.url) as lp:
        await talk(lp)
    await demo.crash(server.url)
    async with limpet.open(server.url) as lp:
        await outlive(lp, server)
        await share(lp, server.url)
        await isolate(lp)
        await verify(lp, server)
        await show(lp)


# --- the scenes ---------------------------------------------------------------------------------


async def greet(server: Server) -> None:
    names = "server_version", "fsync", "synchronous_commit"
    async with administrator(server) as conn:
        version, fsync, sync = [await conn.fetchval(f"SHOW {name}") for name in names]
    scene("A real server", f"PostgreSQL {version}, on a socket of its own.")
    claim(fsync == sync == "on", "it acknowledges nothing that is not on the disk")


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


async def outlive(lp: limpet.Limpet, server: Server) -> None:
    scene("The server goes away", "A process writes, we follow, and the server stops twice.")
    before = (await lp.get(KEY)).version
    table = a_table("the server", "was away", "acknowledged before", "and after")
    async with writing(server.url) as told, following(lp, before) as seen:
        for how, name in ((signal.SIGINT, "stopped, started"), (signal.SIGQUIT, "crashed")):
            await more(told)
            first, began = len(told), time.monotonic()
            with console.status(f"{name} …"):
                await asyncio.to_thread(server.restart, how)
            away = time.monotonic() - began
            await more(told)
            table.add_row(name, f"{away:.1f} s", f"{first:,}", f"{len(told):,}")
        last = told[-1]
        await until(lambda: any(event.id == last for event in seen))
    console.print(table)
    claim(True, "the writer was never told: its commits waited, and went through")
    await check(lp, told, seen, before)


async def check(lp: limpet.Limpet, told: list[str], seen: list[limpet.Event], before: int) -> None:
    """What the writer was promised, what the follower was shown, what is there."""
    session = await lp.get(KEY)
    log = demo.up_to(session, await demo.whole_log(session))
    found = demo.ids(log)
    claim(set(told) <= set(found), f"all {len(told):,} acknowledged events are there")
    claim(len(found) == len(set(found)), "none of them twice, though some were sent twice")
    seqs = [event.seq for event in seen]
    claim(seqs == [*range(before + 1, before + 1 + len(seqs))], "the follower saw each one once")
    words = sum(id.startswith("word-") for id in found)
    claim(session.state["words"] == words, "and the state has counted each of them once")


async def share(lp: limpet.Limpet, url: str) -> None:
    scene("Two processes, one counter", "Both count visits and take tickets in app: state.")
    before = (await lp.get(KEY)).state
    with console.status("counting …"):
        grace = demo.start("counter.py", url, KEY.app, "grace", str(COUNTS))
        alan = demo.start("counter.py", url, KEY.app, "alan", str(COUNTS))
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


async def verify(lp: limpet.Limpet, server: Server) -> None:
    scene("Nothing changes unseen", "Not even for the administrator of the database.")
    report = await lp.maintenance.verify()
    claim(report.ok, f"{report.events:,} events of {report.sessions} sessions fit their chains")
    forge = "UPDATE limpet.events SET actor = $1 WHERE actor = $2 AND seq = 2"
    async with administrator(server) as conn:
        await conn.execute(forge, "user:eve", "user:ada")
        report = await lp.maintenance.verify()
        claim(not report.ok, "UPDATE events SET actor = 'user:eve' is found out:")
        finding = report.findings[0]
        console.print(f"    → {finding.where} {finding.seq} {finding.problem}")
        await conn.execute(forge, "user:ada", "user:eve")
    claim((await lp.maintenance.verify()).ok, "and once it is put right, all is well again")


async def show(lp: limpet.Limpet) -> None:
    session = await lp.get(KEY, tail=3)
    scene("The timeline", f"{session.key}, {session.version:,} events")
    console.print(timeline(await session.read(limit=6), session.events))
    scene("The state", "Folded from the events, with the names of ada and of the app.")
    table = a_table("name", "scope", "value")
    for name, value in session.state.items():
        table.add_row(name, name.partition(":")[0] if ":" in name else "session", short(value))
    console.print(table)


# --- those who write and those who look on ------------------------------------------------------


@asynccontextmanager
async def administrator(server: Server) -> AsyncIterator[asyncpg.Connection]:
    """A connection past the store, with every right."""
    conn = await asyncpg.connect(server.url)
    try:
        yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[list[str]]:
    """A writer process; the ids it has reported as safe, as they come."""
    told: list[str] = []
    async with demo.start("writer.py", url, KEY.app, KEY.user, KEY.id) as writer:
        assert writer.stdout is not None  # start asks for a pipe

        async def listen() -> None:
            async for line in writer.stdout:
                told.append(line.decode().strip())

        task = asyncio.create_task(listen())
        yield told
        writer.kill()
        await task
        await writer.wait()


@asynccontextmanager
async def following(lp: limpet.Limpet, after: int) -> AsyncIterator[list[limpet.Event]]:
    """What a follower in this process is shown."""
    seen: list[limpet.Event] = []

    async def follow() -> None:
        async for event in lp.session(KEY).follow(after=after):
            seen.append(event)

    task = asyncio.create_task(follow())
    yield seen
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def more(told: list[str]) -> None:
    """Wait until the writer has gone on for a while."""
    goal = len(told) + WORDS
    await until(lambda: len(told) >= goal)


async def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds, but not without a limit."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not true():
        if time.monotonic() > deadline:
            raise Broken("the writer and the follower go on")
        await asyncio.sleep(0.01)


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
