"""Failover: a node dies in the middle of a turn; another takes its sessions over.

The dead node's store outlives it. Whoever is left opens it and moves its sessions with force: the
turn of the dead worker is ended, and the worker of the new node goes on with it.
"""

import asyncio
import tempfile

import limpet


async def answer(turn: limpet.Turn) -> None:
    await turn.say(f"answered at attempt {turn.attempt}")


async def main() -> None:
    folder = tempfile.mkdtemp()
    async with limpet.open(f"sqlite:///{folder}/eu-1.db", node="eu-1") as eu1:
        s = await eu1.create("support", "ada", "c1", actor="user:ada")
        await s.append("user.message", {"text": "hello?"})
        await eu1.work.claim("worker-of-eu-1", lease_seconds=3_600)  # and it died with its lease
    async with (
        limpet.open(f"sqlite:///{folder}/eu-1.db", node="eu-1") as dead,
        limpet.open(f"sqlite:///{folder}/eu-2.db", node="eu-2") as eu2,
    ):
        moved = await dead.move(s.key, eu2, force=True)
        await limpet.Worker(eu2, answer, app="support", idle_exit=True, signals=False).run()
        last = (await (await eu2.get(s.key)).messages())[-1]
        print("moved:", moved.success, "| last:", last.event.data["text"])


asyncio.run(main())
