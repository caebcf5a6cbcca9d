"""A store behind a server in the same event loop, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import limpet
from limpet.server.serve import serving
from limpet.store.protocol import Store
from limpet.store.remote.store import open_remote


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[str]:
    """Serve an open store; the URL."""
    async with limpet.Limpet("served", store=store) as lp, serving(lp, dev=True) as url:
        yield url


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Store]:
    """A store that is a client of the server at this URL."""
    store = await open_remote(url)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def served_elsewhere() -> Iterator[str]:
    """Serve a store in memory from a thread of its own; the URL."""
    server = limpet.open_sync("memory://")
    stack = AsyncExitStack()

    async def begin() -> str:
        return await stack.enter_async_context(serving(server._of, dev=True))

    try:
        yield server._loop.call(begin)
        server._loop.call(stack.aclose)
    finally:
        server.close()
