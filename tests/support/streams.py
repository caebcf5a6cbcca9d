"""Writers that write until they are told to stop, and a ledger of what they were promised."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from limpet.model.events import Event
from limpet.model.keys import Key
from limpet.store.protocol import Store
from limpet.testing.commits import add, draft, load

PATIENCE_SECONDS = 60.0


class Stream:
    """Tasks that append to sessions through stores, each event under an id of its own."""

    def __init__(self, stores: Sequence[Store], keys: Sequence[Key], writers: int) -> None:
        self._stores, self._keys, self._writers = stores, keys, writers
        self.acknowledged: dict[Key, list[Event]] = {key: [] for key in keys}
        self.sent = 0
        self._stop = False

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def __aenter__(self) -> Stream:
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(self._writers)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop = True
        answers = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        assert not failed, failed

    async def more(self, count: int) -> None:
        """Wait until so many more were acknowledged: the writers go on."""
        wanted, deadline = self.count + count, time.monotonic() + PATIENCE_SECONDS
        while self.count < wanted:
            assert time.monotonic() < deadline, "the writers have come to a halt"
            assert not any(task.done() for task in self._tasks), "a writer has failed"
            await asyncio.sleep(0.005)

    async def _write(self, number: int) -> None:
        key = self._keys[number % len(self._keys)]
        store = self._stores[number % len(self._stores)]
        while not self._stop:
            self.sent += 1
            made = await add(store, key, draft(inc={"n": 1, "app:n": 1}))
            self.acknowledged[key] += made.events


async def whole_log(store: Store, key: Key) -> list[Event]:
    """Every event of a session, page by page."""
    events: list[Event] = []
    while page := await store.read(key, after=len(events), limit=500, reverse=False, types=None):
        events += page
    return events


async def check(store: Store, stream: Stream) -> None:
    """Acknowledged is recorded, once, as it was told; nothing else is; all folds agree."""
    total = 0
    for key, told in stream.acknowledged.items():
        events = await whole_log(store, key)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len({event.id for event in events}) == len(events)
        recorded = {event.id: event for event in events}
        assert [recorded.get(event.id) for event in told] == told
        assert len(events) - 1 == len(told), "something was recorded that nobody was told of"
        assert (await load(store, key, 1)).fields["n"] == len(told)
        total += len(told)
    assert (await load(store, key, 1)).scopes["app:n"].value == total
    assert (await store.verify(None)).findings == ()
