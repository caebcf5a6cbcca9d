"""Load balancing: the fuller node gives sessions to the emptier one, within its policy."""

import asyncio
import tempfile

import limpet


async def main() -> None:
    folder = tempfile.mkdtemp()
    async with (
        limpet.open(f"sqlite:///{folder}/a.db", node="a") as full,
        limpet.open(f"sqlite:///{folder}/b.db", node="b") as empty,
    ):
        for number in range(6):
            await full.create("support", "ada", f"c{number}")
        await empty.policies.arrivals("support", sessions=2)  # it is small
        moved, refused = 0, ""
        for head in (await full.list(app="support")).items[:3]:
            done = await full.move(head.key, empty)
            moved += done.success
            refused = refused or (done.reason or "")
        print("moved:", moved, "| refused:", refused)


asyncio.run(main())
