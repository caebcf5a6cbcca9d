"""The first scenes of `make demo`: a worker dies in the middle of a refund; the session moves."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from agent import APP
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

import limpet

HERE = Path(__file__).parent
KEY = limpet.Key(APP, "ada", "refund")
WAIT_SECONDS_MAX = 60.0
ASKS = {None: "", "approval": ": may it?", "unknown_effect": ": did it happen?"}


class Claim(Protocol):
    """Says something and stands by it."""

    def __call__(self, truth: bool, words: str) -> None: ...  # noqa: FBT001  # a sentence


Scene: TypeAlias = Callable[[str, str], None]


async def tell(url: str, bank: Path, console: Console, scene: Scene, claim: Claim) -> None:
    """An agent asks, is killed with the money on its way, and does not pay twice."""
    async with limpet.open(url, node="laptop") as lp:
        session = await lp.create(KEY.app, KEY.user, id=KEY.id, actor="user:ada")
        scene("An agent asks before it pays", "A customer writes; a worker process wakes up.")
        await session.append("user.message", {"text": "I was charged twice!"})
        async with worker(url, bank, "die") as first:
            await until(session, "requires_action")
            (request,) = session.blocked_on
            claim(not paid(bank), f"it wants to refund {request.input['eur']} euros, and waits")
            await session.confirm(request.id, allow=True, note="that was us", actor="user:boss")
            scene("kill -9 in mid-refund", "The boss agrees, money is sent, the worker dies.")
            claim(await first.wait() == -signal.SIGKILL, "the worker was killed")
        claim(len(paid(bank)) == 1, "the bank has one payment; nobody wrote that down")
        scene("A second worker", "It finds an intent without a result: was it paid or not?")
        async with worker(url, bank) as second:
            await until(session, "requires_action")
            (request,) = session.blocked_on
            claim(request.kind == "unknown_effect", "it does not pay again: it asks")
            key = request.input["idempotency_key"]
            claim(key in paid(bank)[0], "and names the key to look for at the bank")
            await session.resolve(request.id, happened="receipt 7", actor="user:boss")
            await until(session, "end_turn")
            claim(not session.blocked_on, "the boss finds receipt 7, and the run goes on")
            second.terminate()
            claim(await second.wait() == 0, "SIGTERM ends the second worker cleanly")
        await check(session, bank, claim)
        console.print(await timeline(session))


async def check(session: limpet.Session[Any], bank: Path, claim: Claim) -> None:
    log = await session.read(limit=1000)
    answers = [text for text in spoken(log) if "receipt 7" in text]
    claim(len(paid(bank)) == 1, "the customer was paid once")
    claim(len(answers) == 1, "and told so once")
    claim(session.status == "idle" and not session.head.pending, "nothing is left open")
    spans = [event.type for event in log if event.type.startswith("span.")]
    closed = spans.count("span.started") == spans.count("span.completed")
    claim(closed, "and the log has every run from its beginning to its end:")


async def move(
    source: str, target: str, bank: Path, console: Console, scene: Scene, claim: Claim
) -> None:
    """The session changes its store, with its whole past, and goes on there."""
    scene("The session moves", "From the laptop's file to the office's, while both are open.")
    async with (
        limpet.open(source, node="laptop") as laptop,
        limpet.open(target, node="office") as office,
    ):
        before = await laptop.get(KEY)
        moved = await laptop.move(KEY, office)
        session = await office.get(KEY, actor="user:ada")
        claim(moved.success, f"all {before.version} events went over, and the state with them")
        links = [event.link for event in await session.read(limit=before.version)]
        claim(before.head.link in links, "hash by hash the same log")
        claim(await refused(laptop), "the laptop refuses to write to it, and says where it is")
        await session.append("user.message", {"text": "Is my refund on its way?"})
        async with worker(target, bank) as third:
            await until(session, "end_turn")
            third.terminate()
            await third.wait()
        answer = spoken(await session.read(limit=1000))[-1]
        claim("receipt 7" in answer, "a worker at the office knows the whole conversation:")
        console.print(f"    → {answer}")
        claim(len(paid(bank)) == 1, "and nothing is paid again")


async def refused(lp: limpet.Limpet) -> bool:
    """True if this store refuses to write to the session because it lives elsewhere."""
    try:
        await lp.session(KEY, actor="user:ada").append("user.message", {"text": "Hello?"})
    except limpet.errors.SessionMoved as error:
        return "office" in str(error)
    return False


async def timeline(session: limpet.Session[Any]) -> Tree:
    """Each run of the agent, and what it recorded."""
    tree = Tree(f"{session.key}")
    for start in reversed(await session.runs.wakes()):
        trace = await session.runs.trace(str(start.wake_id))
        style = "green" if trace.span.result == "success" else "yellow"
        node = tree.add(Text(f"run {trace.attempt}: {trace.span.result}", style=style))
        for event in trace.events:
            if event.type.startswith(("step.", "agent.", "effect.")):
                name = event.data.get("name") or event.data.get("text") or ""
                node.add(Text(f"{event.type}  {name}{ASKS[event.data.get('awaits')]}", style="dim"))
    return tree


def spoken(log: tuple[limpet.Event, ...]) -> list[str]:
    """The agent's messages."""
    return [event.data["text"] for event in log if event.type == "agent.message"]


def paid(bank: Path) -> list[str]:
    return bank.read_text().splitlines() if bank.exists() else []


async def until(session: limpet.Session[Any], reason: str) -> None:
    """Wait for the end of a run that stopped for this reason."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for event in session.follow(after=session.version, types=["session.status_idle"]):
            if event.data["stop_reason"] == reason:
                break
    await session.refresh()


@asynccontextmanager
async def worker(url: str, bank: Path, *mode: str) -> AsyncIterator[Process]:
    """A process of its own that does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "agent.py"), url, str(bank), *mode
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
