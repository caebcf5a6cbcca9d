"""A process is killed with SIGKILL between decisions and answers: what it answered is recorded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import limpet
from tests.support.examples import tries
from tests.support.postgres import without_clients
from tests.support.processes import Child
from tests.support.seeds import seed


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/refused.db"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


async def test_a_denial_that_was_answered_is_in_the_audit(url: str) -> None:
    """Whenever the process dies, and the chain is whole."""
    chance = random.Random(seed("audit_kill"))
    answered = 0
    for _ in range(tries(3, 20)):
        with Child("tests.support.refused", url, answered) as child:
            said = child.killed_after(chance.randrange(1, 8), chance.uniform(0, 5_000))
        answered += len(said)
        if url.startswith("postgresql"):
            await without_clients(url)
        async with limpet.open(url) as lp:
            assert (await lp.maintenance.verify()).ok
            found = {record.resource for record in (await lp.audit(limit=1_000)).items}
        assert found >= {f"kill/ada/s{number}" for number in range(answered)}
