"""What every suite may ask for: one PostgreSQL server for a whole run, begun when needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres


@pytest.fixture(scope="session")
def any_postgres() -> Iterator[postgres.Server | postgres.Elsewhere]:
    """Without fsync: a test may crash the server, but nobody pulls this machine's plug."""
    with postgres.running(fsync="off") as server:
        yield server


@pytest.fixture
async def postgres_url(any_postgres: postgres.Server | postgres.Elsewhere) -> str:
    """A database without our schema."""
    await postgres.empty(any_postgres.url)
    return any_postgres.url


@pytest.fixture
async def postgres_server(
    any_postgres: postgres.Server | postgres.Elsewhere, postgres_url: str
) -> postgres.Server:
    """The same, where the server itself has to be ours: to stop it, to kill in it."""
    if isinstance(any_postgres, postgres.Elsewhere):
        pytest.skip(f"{postgres.ENVIRONMENT} names a server that is not ours to stop")
    return any_postgres
