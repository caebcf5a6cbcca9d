"""What followers see of a framework's agent while it speaks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import limpet


async def streamed(lp: limpet.Limpet, session: limpet.Session[Any], harness: Any) -> list[str]:
    """Run the harness until it has nothing to do; return the pieces of text that were streamed."""
    pieces: list[str] = []
    begun = asyncio.Event()

    async def follow() -> None:
        async with aclosing(session.follow(after=session.version)) as events:
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            begun.set()
            while True:
                event = await following
                if event.partial and event.data.get("text"):
                    pieces.append(event.data["text"])
                if event.type == "session.status_idle":
                    return
                following = asyncio.ensure_future(anext(events))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        await begun.wait()
        worker = limpet.Worker(lp, harness, app=session.key.app, idle_exit=True, signals=False)
        await worker.run()
    return pieces
