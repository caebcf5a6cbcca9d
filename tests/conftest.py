"""What every suite may ask for: one PostgreSQL server for a whole run, begun when needed.

And how properties are tried: on the same examples every time, as many as it takes, however slow
the machine is; on new ones when fresh seeds are asked for.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import limpet
from tests.support import examples, postgres, processes, scratch, seeds, tiers

gc.disable()  # until the tests are collected
processes.heed_interrupts()
scratch.prefer_memory()
# What a runner asks of its own output is not for the commands under test.
for name in ("FORCE_COLOR", "PY_COLORS", "NO_COLOR", "GITHUB_ACTIONS", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

settings.register_profile(
    "limpet",
    max_examples=examples.count(),
    deadline=None,
    derandomize=not seeds.fresh(),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("limpet")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: some test always waits for a lease or another process.

    `make quick` has none of these.
    """
    if examples.in_a_hurry() or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 1 + len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with its tier: `-m quick`, `-m stores`, `-m world`.

    And leave out the argument checks that were tried on memory already.
    """
    for item in items:
        item.add_marker(tiers.tier(item))
        if tiers.goes_deeper(item):
            item.add_marker("deeper")
    if dropped := [*tiers.repeated_arguments(items), *tiers.left_to_torture(items)]:
        config.hook.pytest_deselected(items=dropped)
        gone = set(dropped)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Take the tests themselves out of what the garbage collector goes through.

    They are half a million objects that stay for the whole run; every full collection would visit
    each of them, while they are collected as well as afterwards.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


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


@pytest.fixture(scope="session")
def keeper(any_postgres: postgres.Server | postgres.Elsewhere) -> Iterator[postgres.Keeper]:
    found = postgres.Keeper(any_postgres.url)
    yield found
    found.close()


@pytest.fixture
def postgres_store_url(
    any_postgres: postgres.Server | postgres.Elsewhere, keeper: postgres.Keeper
) -> str:
    """A database with our schema and nothing in it."""
    keeper.clear()
    return any_postgres.url


@pytest.fixture(params=["memory", "sqlite", "files", "postgresql", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store, empty. Without an fsync for each commit: disks are the fault suite's business.

    A server is started only when one is needed. Over HTTP it is a memory store: see `tiers`.
    """
    if request.param == "memory":
        return "memory://"
    if request.param == "http":
        served: str = request.getfixturevalue("served_url")
        return served
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    if request.param == "files":
        return f"files:///{tmp_path}/support"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
def served_url() -> Iterator[str]:
    """The URL of a server with an empty store in memory, on an event loop of its own."""
    from tests.support.served import served_elsewhere

    with served_elsewhere() as url:
        yield url


@pytest.fixture
async def lp(url: str) -> AsyncIterator[limpet.Limpet]:
    """Limpet on every store."""
    async with limpet.open(url) as opened:
        yield opened


@pytest.fixture
async def postgres_server(
    any_postgres: postgres.Server | postgres.Elsewhere, postgres_url: str
) -> postgres.Server:
    """The same, where the server itself has to be ours: to stop it, to kill in it."""
    if isinstance(any_postgres, postgres.Elsewhere):
        pytest.skip(f"{postgres.ENVIRONMENT} names a server that is not ours to stop")
    return any_postgres
