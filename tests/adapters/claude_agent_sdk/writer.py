"""A process that appends to one transcript: python -m … NAME URL. See tests/support/race."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from limpet.adapters.claude_agent_sdk import LimpetSessionStore
from tests.support.race import at_once

COUNT = 20
KEY: Any = {"project_key": "project", "session_id": "s1"}


def entry(name: str, number: int) -> Any:
    message = {"role": "user", "content": f"{name} {number}"}
    return {"type": "user", "uuid": f"{name}-{number}", "message": message}


async def main(name: str, url: str) -> None:
    store = LimpetSessionStore(url)
    for number in range(COUNT):
        # The second of each batch comes again as the first of the next: it is recorded once.
        await store.append(KEY, [entry(name, number), entry(name, number + 1)])
    await store.append({**KEY, "subpath": f"agents/{name}"}, [entry(name, 0)])
    await store.close()


if __name__ == "__main__":
    at_once()
    asyncio.run(main(*sys.argv[1:]))
