"""A store behind a server in the same event loop, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
