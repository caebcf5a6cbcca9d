"""A flight: a batch on its way, and what may be planned on top of it before its answer is there.

While the server works on one batch, the next is planned as if every job of the first will hold, and
sent as soon as it is known that they did. If one did not, the plan is dropped: its jobs wait until
the first batch is settled, so that no commit overtakes an earlier one of its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from limpet.model import Key
from limpet.store.cache import CachedSession
from limpet.store.postgres.writing.batch import PostgresBatch
from limpet.store.postgres.writing.jobs import PostgresJob, TouchedKey


class Flight:
    """Jobs that one lane serves. `after` is the flight that they were planned on top of."""

    __slots__ = ("_batch", "after", "ended", "followed", "held", "jobs", "touched")

    def __init__(self, jobs: Sequence[PostgresJob], after: Flight | None = None) -> None:
        self.jobs, self.after = jobs, after
        self.touched: set[TouchedKey] = {thing for job in jobs for thing in job.touches}
        self._batch: PostgresBatch | None = None
        self.followed = False  # another waits to know whether this one holds
        loop = asyncio.get_running_loop()
        self.held: asyncio.Future[bool] = loop.create_future()  # whether all of them did, at once
        self.ended: asyncio.Future[None] = loop.create_future()  # every job has its answer

    def leaves(self) -> Mapping[Key, CachedSession]:
        """The sessions as they will be if all holds; none of them, as long as nobody can say."""
        if self._batch is None or self.held.done():
            return {}
        return self._batch.leaves()

    async def holds(self) -> bool:
        """For who planned on top of it: whether all jobs held, at once."""
        self.followed = True
        return await self.held

    def plan(self, batch: PostgresBatch) -> None:
        """The batch is about to be sent. A second attempt makes another: nothing holds at once."""
        if self._batch is not None:
            self.answer(held=False)
        self._batch = batch

    def answer(self, *, held: bool) -> None:
        """The server has answered, and what it recorded is durable."""
        if not self.held.done():
            self.held.set_result(held)

    def end(self) -> None:
        self.answer(held=False)
        self.after = None  # or each would keep the one before it
        if not self.ended.done():  # cancelled with the lane that waited for it
            self.ended.set_result(None)
