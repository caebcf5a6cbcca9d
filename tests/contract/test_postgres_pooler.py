"""PostgreSQL behind a pooler in transaction mode against the contract.

Through a relay of our own, and through PgBouncer where it is installed. The laws about repeats,
races, the feed and work are in the suite; all of them in the torture tier. Those about partials
need a LISTEN, which a pooler does not give: they are held by a store that goes past it for that.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from limpet.testing.contract import FeedLaws, LiveLaws, SharedLaws, SharedWorkLaws
from limpet.testing.laws.log.races import RaceLaws
from limpet.testing.laws.log.repeats import RepeatLaws
from tests.contract import test_postgres as straight
from tests.support import pooler, postgres


class ThroughPooler(straight.OnServer):
    """What the laws ask for, by way of a relay that swaps the server's sessions."""

    way = staticmethod(pooler.relaying)
    past = False  # whether the URL also names the server itself

    @pytest.fixture
    async def url(  # type: ignore[override]  # it has an end
        self, direct: str, any_postgres: postgres.Server | postgres.Elsewhere
    ) -> AsyncIterator[str]:
        if isinstance(any_postgres, postgres.Elsewhere):
            pytest.skip(f"{postgres.ENVIRONMENT} names a server whose socket is not ours")
        async with self.way(any_postgres) as through:
            yield f"{through}&direct={quote(direct)}" if self.past else through
            assert await pooler.left_behind(through) == set()


class ThroughPgBouncer(ThroughPooler):
    """The same, by way of PgBouncer itself."""

    way = staticmethod(pooler.bouncing)

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        if shutil.which("pgbouncer") is None:
            pytest.skip("pgbouncer is not installed: only the relay stands in for it")


class TestPostgresPooler(ThroughPooler, RepeatLaws, RaceLaws, FeedLaws, SharedLaws, SharedWorkLaws):
    pass


class TestPostgresPastPooler(ThroughPooler, LiveLaws):
    past = True


@pytest.mark.torture
class TestPostgresPoolerWhole(ThroughPooler, straight.WithoutPartials):
    pass


class TestPgBouncer(ThroughPgBouncer, RaceLaws):
    pass


@pytest.mark.torture
class TestPgBouncerWhole(ThroughPgBouncer, straight.WithoutPartials):
    pass
