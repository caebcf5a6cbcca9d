"""The first scene of `make demo`: an agent whose worker dies in the middle of a refund."""

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
WAIT_SECONDS_MAX = 60.0


class Claim(Protocol):
    """Says something and stands by it."""

    def __call__(self, truth: bool, words: str) -> None: ...  # noqa: FBT001  # a sentence


Scene: TypeAlias = Callable[[str, str], None]


async def tell(folder: Path, console: Console, scene: Scene, claim: Claim) -> None:
    """The whole story."""
    url, bank = f"sqlite:///{folder}/agents.db", folder / "bank.txt"
    async with limpet.open(url) as lp:
        session = await lp.create(APP, "ada", id="refund", actor="user:ada")
        scene("An agent asks before it pays", "A customer writes; a worker process wakes up.")
        await session.append("user.message", {"text": "I was charged twice!"})
        async with worker(url, bank, "die") as first:
            await until(session, "requires_action")
            (request,) = session.blocked_on
            claim(not paid(bank), f"it wants to refund {request.input['eur']} euros, and waits")
            await session.confirm(request.id, allow=True, note="that was us")
            scene("kill -9 in mid-refund", "Approved: the money is sent, and the worker dies.")
            claim(await first.wait() == -signal.SIGKILL, "the worker was killed")
        claim(len(paid(bank)) == 1, "the bank has one payment; nobody wrote that down")
        scene("A second worker", "It finds an intent without a result: was it paid or not?")
        async with worker(url, bank) as second:
            await until(session, "requires_action")
            (request,) = session.blocked_on
            claim(request.kind == "unknown_effect", "it does not pay again: it asks")
            key = request.input["idempotency_key"]
            claim(key in paid(bank)[0], "and names the key to look for")
            await session.resolve(request.id, happened="receipt 7")
            await until(session, "end_turn")
            second.terminate()
            claim(await second.wait() == 0, "SIGTERM ends the second worker cleanly")
        await check(session, bank, claim)
        console.print(await timeline(session))


async def check(session: limpet.Session[Any], bank: Path, claim: Claim) -> None:
    log = await session.read(limit=1000)
    said = [event.data["text"] for event in log if event.type == "agent.message"]
    claim(len(paid(bank)) == 1, "the customer was paid once")
    claim(len(said) == 2 and "receipt 7" in said[1], "and answered once")
    claim(session.status == "idle" and not session.head.pending, "nothing is left open")
    spans = [event.type for event in log if event.type.startswith("span.")]
    closed = spans.count("span.started") == spans.count("span.completed")
    claim(closed, "and the log tells every run from its beginning to its end:")


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
                node.add(Text(f"{event.type}  {name[:44]}", style="dim"))
    return tree


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
async def worker(url: str, bank: Path, *how: str) -> AsyncIterator[Process]:
    """A process of its own that does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "agent.py"), url, str(bank), *how
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
