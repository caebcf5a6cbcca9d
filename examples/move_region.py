"""Region transfer: a user relocates, and the data must not stay in the old region."""

import asyncio
import tempfile

import limpet


async def main() -> None:
    folder = tempfile.mkdtemp()
    async with (
        limpet.open(f"sqlite:///{folder}/us.db", node="us") as us,
        limpet.open(f"sqlite:///{folder}/eu.db", node="eu") as eu,
    ):
        s = await us.create("support", "ada", "c1", state={"n": 1, "user:lang": "de"})
        moved = await us.move(s.key, eu)
        us_names = await us.names("support", "ada")
        await eu.create("support", "ada", "names", state={n: us_names[n] for n in moved.left_out})
        await us.erase_user("support", "ada")  # what is left of the session, and user: names
        print("in eu:", (await eu.get(s.key)).values, "| left in us:", await us.home(s.key))


asyncio.run(main())
