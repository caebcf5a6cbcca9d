"""What the golden file of a session holds, in plain text as exports and archives have it, and
sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import limpet
from limpet.store.coding.files import FileSeal
from limpet.store.coding.seal import Sealer
from tests.support.seal import FixedKeySeal

HERE: Final = Path(__file__).parent
BUNDLE: Final = HERE / "bundle-1.limpet"
SEALED: Final = HERE / "sealed-1.limpet"
KEY: Final = limpet.Key("golden", "ada", "one")
OWNER: Final = "the keys of a session"
STATE: Final = {"said": "It was a Friday.", "n": 3}
BLOB: Final = b"a blob"


async def write(path: Path) -> None:
    """Write one of the two. The sealed one has what the plain one has."""
    if path == SEALED:
        path.write_bytes((await seal()).sealed(BUNDLE.read_bytes()))
        return
    async with limpet.open("memory://") as lp:
        of = (KEY.app, KEY.user, KEY.id)
        s = await lp.create(*of, state={"n": 0}, labels={"plan": "gold"}, actor="user:ada")
        await s.append("user.message", {"text": "Which day?"}, set={"said": STATE["said"]})
        await s.checkpoint("then")
        await s.append("agent.message", {"text": STATE["said"]}, inc={"n": 3})
        await s.blobs.put(BLOB, "text/plain")
        await s.complete({"day": "Friday"})
        await lp.export(s.key, path)


async def seal() -> FileSeal:
    """The seal of the sealed one, with its keys."""
    made = FileSeal(Sealer(FixedKeySeal()), "archive", OWNER, f"golden/{SEALED.name}")
    await made.ready()
    return made
