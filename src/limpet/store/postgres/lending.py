"""Connections of a pool, lent for one call and given back as they were.

No call may leave behind what the next one would meet: an open transaction, a cursor, a setting. A
call that comes to its end leaves nothing, and giving back costs no round trip. A call that is cut
short is followed by a reset, and if that fails the pool closes the connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from limpet.errors import LimpetError


class Pooled(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that knows whether its last call came to its end."""

    cut_short = False

    def itself(self) -> Pooled:
        """What stands behind the pool's proxy, which is another one for each call."""
        return self


@asynccontextmanager
async def lent(pool: Any) -> AsyncIterator[Any]:
    """A connection of the pool for one call.

    A call that returns, or that we refuse, has had all its answers. One that is cancelled, or
    fails in another way, may leave a transaction open, even one that the driver does not know of:
    between the preparation of a statement and its execution the server is in one.
    """
    async with pool.acquire() as conn:
        held = conn.itself()
        try:
            yield conn
        except LimpetError:
            raise
        except BaseException:
            held.cut_short = True
            raise


async def reset(conn: Any, restore: Callable[[], Awaitable[None]]) -> None:
    """Called before a connection goes back to its pool. `restore` sets what a new one has set."""
    if conn.cut_short:
        await conn.reset()  # ends transactions, closes cursors, sets everything back
        await restore()
        conn.cut_short = False
