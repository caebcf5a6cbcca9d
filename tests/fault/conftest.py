"""What the suites about a server ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest


@pytest.fixture
async def admin(postgres_store_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's."""
    conn = await asyncpg.connect(postgres_store_url)
    yield conn
    await conn.close()
