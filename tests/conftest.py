"""What every suite may ask for: one PostgreSQL server for a whole run, begun when needed.

And how properties are tried: on the same examples every time, as many as it takes, however slow
the machine is; on new ones when fresh seeds are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import postgres, processes, seeds

processes.heed_interrupts()

settings.register_profile(
    "limpet",
    deadline=None,
    derandomize=not seeds.fresh(),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("limpet")


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
