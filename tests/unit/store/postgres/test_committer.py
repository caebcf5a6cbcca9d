"""The committer: how many of the queue a lane takes."""

from __future__ import annotations

from limpet.store.coding.codec import Codec
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.postgres.writing.committer import Committer
from limpet.store.postgres.writing.jobs import PostgresJob
from limpet.testing.commits import addition, key

CALLERS = 64
TAKES = 8  # after so many a crowd is forgotten


def taken(committer: Committer, queued: int) -> int:
    """How many a lane takes after so many were queued, while no other batch is on its way."""
    committer._waiting.extend([PostgresJob([addition(key(f"s{n}"))]) for n in range(queued)])
    flight = committer._take()
    return 0 if flight is None else len(flight.jobs)


async def test_each_of_two_lanes_takes_half_of_a_crowd() -> None:
    """Also when one half comes back before the other lane has looked: halves of halves would cost a
    flush each. A crowd that is gone is forgotten, and the next queue is shared again."""
    committer = Committer([], PostgresReader(Codec(), b""), ServerClock(), lambda: None)
    assert taken(committer, CALLERS) == CALLERS // 2
    assert taken(committer, 0) == CALLERS // 2
    assert taken(committer, 0) == 0
    assert taken(committer, CALLERS // 2) == CALLERS // 2
    assert [taken(committer, 1) for _ in range(TAKES)] == [1] * TAKES
    assert taken(committer, CALLERS // 2) == CALLERS // 4
