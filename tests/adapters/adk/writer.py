"""A process that writes to one ADK session while another does: limpet or ADK's own service.

For each round it has read the session, says "ready", waits for a line, and appends an event with a
key of its own to the session that both share, and an app: key through a session of its own. It
repeats what is stale until it is acknowledged.

ADK's own service reads, computes and commits. Before it commits the app: key it says "read" and
waits for a line, so that both processes have read before either commits.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.adk.errors._stale_session_error import StaleSessionError

from tests.adapters.adk.saying import said

APP, SHARED = "support", "shared"


def service_of(kind: str, url: str) -> Any:
    if kind == "limpet":
        from limpet.adapters.adk import LimpetSessionService

        return LimpetSessionService(url)
    from google.adk.sessions.database_session_service import DatabaseSessionService

    return DatabaseSessionService(url)


@contextmanager
def pausing(kind: str) -> Iterator[None]:
    """ADK's own service stops before the next commit until it is told to go on."""
    if kind == "limpet":
        yield
        return
    from sqlalchemy.ext.asyncio import AsyncSession

    commit = AsyncSession.commit

    async def paused(self: AsyncSession) -> None:
        AsyncSession.commit = commit  # type: ignore[method-assign]
        print("read", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await commit(self)

    AsyncSession.commit = paused  # type: ignore[method-assign]
    yield


async def write(kind: str, url: str, me: str, rounds: int) -> None:
    async with service_of(kind, url) as service:
        own = await service.create_session(app_name=APP, user_id=me, session_id=me)
        for number in range(rounds):
            name = f"{me}{number}"
            shared = await service.get_session(app_name=APP, user_id=SHARED, session_id=SHARED)
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            with pausing(kind):
                await service.append_event(own, said("x", delta={f"app:{name}": 1}))
            while True:
                try:
                    await service.append_event(shared, said("x", delta={name: 1}))
                    break
                except StaleSessionError:
                    shared = await service.get_session(
                        app_name=APP, user_id=SHARED, session_id=SHARED
                    )
            print("acknowledged", flush=True)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
