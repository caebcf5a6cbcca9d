"""A process whose files may not grow: it writes until it is refused, then with the limit lifted."""

from __future__ import annotations

import asyncio
import random
import resource
import sys

import limpet
from limpet import LimpetError, Session

TRIES = 50


async def say(session: Session, id: str) -> None:
    text = random.Random(id).randbytes(8_000).hex()
    await session.append("x.y", {"text": text}, actor="a:b", id=id, inc={"n": 1})
    print(f"did {id}", flush=True)


async def main(path: str) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.create("a", "b", id="c", state={"n": 0})
        await say(session, "first")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        refused = None
        for number in range(TRIES):
            before = (session.version, session.state["n"])
            try:
                await say(session, f"tight-{number}")
            except LimpetError as error:
                assert (session.version, session.state["n"]) == before
                refused = (f"tight-{number}", error)
                break
        assert refused is not None, "the limit was never felt"
        id, error = refused
        print(f"refused {id}: {error.code}", flush=True)
        assert error.retryable
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await say(session, id)
        await say(session, "last")
        assert (await lp.maintenance.verify()).ok
    print("fine", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
