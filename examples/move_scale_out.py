"""Scaling out: a new node takes half of the sessions, prestaged, so that each pause is short."""

import asyncio
import tempfile

import limpet


async def main() -> None:
    folder = tempfile.mkdtemp()
    async with (
        limpet.open(f"sqlite:///{folder}/n1.db", node="n1") as n1,
        limpet.open(f"sqlite:///{folder}/n2.db", node="n2") as n2,
    ):
        for number in range(4):
            s = await n1.create("support", "ada", f"c{number}", state={"n": 0}, actor="user:ada")
            await s.append_many([limpet.Draft(type="note.made", data={"n": n}) for n in range(500)])
        half = [head.key for head in (await n1.list(app="support")).items[::2]]
        for key in half:
            await n1.prestage(key, n2)  # the sessions run on meanwhile
        moved = [await n1.move(key, n2) for key in half]
        print("moved:", sum(each.success for each in moved))
        print("events sent in the moves themselves:", max(each.events for each in moved))
        nodes = {"n1": n1, "n2": n2}
        print({name: len((await lp.list(app="support")).items) for name, lp in nodes.items()})


asyncio.run(main())
