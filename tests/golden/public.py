"""What the golden stores on a server and in log files hold, written by the public verbs alone.

    python -m tests.golden.public URL

fills an empty store. With the source of an earlier schema first on PYTHONPATH, it writes as that
code did.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any, Final

import limpet

POEM: Final = "roses are red " * 120  # long enough to be compressed
PHOTO: Final = bytes(range(256)) * 5
WAKE: Final = datetime(2030, 1, 1, tzinfo=UTC)
MAIN: Final = ("shop", "ada", "main")
FORK: Final = ("shop", "ada", "fork")
GONE: Final = ("shop", "eve", "gone")
ERASED: Final = ("shop", "eve", "erased")
FORGOTTEN: Final = ("shop", "bob", "forgotten")  # with its user; the golden dumps lack it
STATES: Final[dict[tuple[str, str, str], dict[str, Any]]] = {
    MAIN: {"n": 2, "log": ["x"], "user:lang": "en", "app:visits": 3},
    FORK: {"n": 1, "tried": True, "user:lang": "en", "app:visits": 3},
}
TYPES: Final = ["session.created", "user.message", "tool.ran", "session.timer_set"]


async def write(lp: limpet.Limpet) -> None:
    """Fill a store with sessions, a fork, shared names, a timer, a blob, documents and ends."""
    shared = {"user:lang": "en", "app:visits": 1}
    app, user, id = MAIN
    s = await lp.create(
        app, user, id=id, state={"n": 0, **shared}, labels={"plan": "gold"}, actor="user:ada"
    )
    await s.append("user.message", {"text": "hi"}, id="m2", inc={"n": 1})
    await s.append("tool.ran", {"poem": POEM}, id="m3", inc={"n": 1}, add={"log": ["x"]})
    await s.lifecycle.set_timer("nap", WAKE)
    await s.checkpoint("golden")
    await s.blobs.put(PHOTO, "image/png")
    fork = await s.fork(at=2, id="fork", actor="agent:tried")
    await fork.append(
        "agent.message", {"text": "or so"}, set={"tried": True}, inc={"app:visits": 2}
    )
    await lp.documents("agents").put("support", {"model": "small"}, actor="user:ada")
    await lp.documents("agents").put("support", {"model": "large"}, actor="user:ada")
    for key in (GONE, ERASED):
        await lp.create(key[0], key[1], id=key[2], state={"x": 1}, actor="user:eve")
    await lp.delete(GONE)
    await lp.erase(ERASED)
    s = await lp.create(
        *FORGOTTEN[:2], id=FORGOTTEN[2], state={"user:lang": "de"}, actor="user:bob"
    )
    await lp.erase_user(s.app, s.user)


async def main(url: str) -> None:
    async with limpet.open(url) as lp:
        await write(lp)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
