"""The contract suite: every guarantee of the store protocol, as tests that any store can run.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def store(self):
            store = await MyStore.open(…)
            yield store
            await store.close()

`store` returns an empty store for each test. Add `TimeLaws` for a store that takes a clock,
`DurableLaws` with a fixture `reopen` for one that outlives its process, `SharedLaws` with a fixture
`other` for one that several processes may open, `FeedLaws` for one with a feed, `LiveLaws` for one
with a live channel, `WorkLaws`, `SetBackLaws` and `DeadlineLaws` for one with leases,
`SharedWorkLaws` if that one is shared, `OverviewLaws` for one that lists open requests and counts
sessions, and `SealedLaws` with the fixtures `open_sealed` and
`new_seal` for one that seals bodies. `SealLaws` are for a seal. `DocumentLaws`, `BlobLaws` and
`MarkLaws` are for a store with reserved apps, blobs and marks; `DurableBlobLaws`, `SharedBlobLaws`,
`DurableMarkLaws` and `SharedMarkLaws` are what the last two add for the kinds of stores above.
Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import pytest

from limpet.store.protocol import Store
from limpet.testing.clock import FakeClock
from limpet.testing.laws.deadlines import DeadlineLaws
from limpet.testing.laws.deletion import EndLaws
from limpet.testing.laws.durable import DurableLaws, Reopen
from limpet.testing.laws.forks import ForkLaws
from limpet.testing.laws.history import HistoryLaws
from limpet.testing.laws.log import (
    AdoptLaws,
    CommitLaws,
    FactLaws,
    InputLaws,
    RaceLaws,
    RepeatLaws,
    ReuseLaws,
    ScopeLimitLaws,
    TimeLaws,
)
from limpet.testing.laws.overview import OverviewLaws
from limpet.testing.laws.reads import (
    FeedLaws,
    HeadLaws,
    ListLaws,
    LiveLaws,
    LookupLaws,
    PageLaws,
    ReadLaws,
    SnapshotLaws,
)
from limpet.testing.laws.resources import (
    BlobLaws,
    DocumentLaws,
    DurableBlobLaws,
    DurableMarkLaws,
    MarkLaws,
    NameLaws,
    ScopeLaws,
    SharedBlobLaws,
    SharedLaws,
    SharedMarkLaws,
    UserLaws,
)
from limpet.testing.laws.sealed import NewSeal, OpenSealed, SealedLaws, SealLaws
from limpet.testing.laws.work import Leap, SetBackLaws, SharedWorkLaws, WorkLaws
from limpet.testing.leases import Age

__all__ = [
    "Age",
    "BlobLaws",
    "DeadlineLaws",
    "DocumentLaws",
    "DurableBlobLaws",
    "DurableLaws",
    "DurableMarkLaws",
    "FeedLaws",
    "Leap",
    "LiveLaws",
    "MarkLaws",
    "NewSeal",
    "OpenSealed",
    "OverviewLaws",
    "Reopen",
    "SealLaws",
    "SealedLaws",
    "SetBackLaws",
    "SharedBlobLaws",
    "SharedLaws",
    "SharedMarkLaws",
    "SharedWorkLaws",
    "StoreContract",
    "TimeLaws",
    "WorkLaws",
]


class StoreContract(
    CommitLaws,
    RepeatLaws,
    ScopeLaws,
    NameLaws,
    ScopeLimitLaws,
    ReadLaws,
    PageLaws,
    HeadLaws,
    ListLaws,
    FactLaws,
    EndLaws,
    RaceLaws,
    ForkLaws,
    HistoryLaws,
    AdoptLaws,
    ReuseLaws,
    SnapshotLaws,
    LookupLaws,
    InputLaws,
    UserLaws,
):
    """The tests for every store. Subclass it with a name that pytest collects."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that tests move by hand, for stores that take a Clock."""
        return FakeClock()

    @pytest.fixture
    def store(self) -> Store:
        """An empty store. Override it."""
        raise NotImplementedError("the suite's class must provide the fixture `store`")
