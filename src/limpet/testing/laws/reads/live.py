"""The live channel: partial events from one end to the others, in order, or not at all."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from limpet.model import Event, Key, freeze
from limpet.model.limits import PARTIAL_BYTES_MAX
from limpet.store.protocol import Channel, Live, Partial, Store
from limpet.testing.commits import create, key

A, B = key("a"), key("b", app="other")
SOON = 60.0  # seconds; what is awaited comes at once, or the test has failed


class LiveStore(Store, Live, Protocol):
    """A store with a live channel, as all of ours are."""


def partial(of: Key = A, text: str = "x", uid: str = "uid", **more: Any) -> Partial:
    """A partial event with every member set."""
    names: dict[str, Any] = {
        "id": "final",
        "type": "agent.message",
        "actor": "agent:a",
        "at_us": 1_700_000_000_000_000,
        "data": freeze({"text": text, "parts": [1, None, {"é": 0.5}]}),
        "cause": "c",
        "invocation_id": "i",
        "correlation_id": "k",
        "wake_id": "w",
        "attempt": 2,
    }
    return Partial(of, uid, 7, Event(**{"seq": 0, "partial": True, **names, **more}))


@asynccontextmanager
async def ends(store: LiveStore, elsewhere: LiveStore) -> AsyncIterator[tuple[Channel, Channel]]:
    """One end that publishes and one that is subscribed."""
    here, there = store.channel(), elsewhere.channel()
    try:
        await there.subscribe(lambda: None)
        yield here, there
    finally:
        await here.close()
        await there.close()


async def taken(channel: Channel, count: int, of: Key | None = None) -> list[Partial]:
    """The next so many partials, of one session or of all."""
    partials: list[Partial] = []
    async with asyncio.timeout(SOON):
        while len(partials) < count:
            partials += channel.received(lambda key: of is None or key == of)
            await asyncio.sleep(0)
    return partials


class LiveLaws:
    """For stores with a live channel. Override `elsewhere` with another instance on the store."""

    @pytest.fixture
    def elsewhere(self, store: LiveStore) -> LiveStore:
        return store

    async def test_partials_arrive_whole_and_in_order(
        self, store: LiveStore, elsewhere: LiveStore
    ) -> None:
        """Every member of each, as it was published."""
        uid = (await create(store, A)).head.uid
        sent = [partial(text=str(n), id=f"id-{n % 3}", uid=uid) for n in range(300)]
        async with ends(store, elsewhere) as (here, there):
            await here.publish(sent[:1])
            await here.publish(sent[1:])
            assert await taken(there, 300) == sent

    async def test_no_end_hears_itself(self, store: LiveStore, elsewhere: LiveStore) -> None:
        """Two that are subscribed and publish each receive what the other said."""
        async with ends(store, elsewhere) as (here, there):
            await here.subscribe(lambda: None)
            await here.publish([partial(text="from here")])
            await there.publish([partial(text="from there")])
            assert await taken(there, 1) == [partial(text="from here")]
            assert await taken(here, 1) == [partial(text="from there")]

    async def test_only_sessions_that_are_wanted_come(
        self, store: LiveStore, elsewhere: LiveStore
    ) -> None:
        """The others are passed over, and do not come later."""
        async with ends(store, elsewhere) as (here, there):
            await here.publish([partial(A, "1"), partial(B, "2"), partial(A, "3")])
            assert await taken(there, 2, of=A) == [partial(A, "1"), partial(A, "3")]
            await here.publish([partial(B, "4")])
            assert await taken(there, 1) == [partial(B, "4")]

    async def test_a_large_partial_crosses_and_a_larger_one_is_dropped(
        self, store: LiveStore, elsewhere: LiveStore
    ) -> None:
        """Up to the bound, whether it can be compressed or not; its neighbours come anyway."""
        noise = "".join(random.Random(1).choices(string.printable, k=PARTIAL_BYTES_MAX // 2))
        sent = [partial(text=text) for text in ("a", noise, "b" * (PARTIAL_BYTES_MAX - 500), "c")]
        large = partial(text="x" * PARTIAL_BYTES_MAX)
        async with ends(store, elsewhere) as (here, there):
            await here.publish([*sent[:2], large, *sent[2:]])
            assert await taken(there, 4) == sent

    async def test_nothing_comes_from_before_or_after_a_subscription(
        self, store: LiveStore, elsewhere: LiveStore
    ) -> None:
        """An end receives what is published between subscribe and unsubscribe."""
        async with ends(store, elsewhere) as (here, there):
            late = elsewhere.channel()
            await here.publish([partial(text="before")])
            await taken(there, 1)
            await late.subscribe(lambda: None)
            await here.publish([partial(text="between")])
            assert await taken(late, 1) == [partial(text="between")]
            await late.unsubscribe()
            await here.publish([partial(text="after")])
            await taken(there, 2)
            assert late.received(lambda _: True) == ()
            await late.close()

    async def test_an_end_may_be_closed_at_any_time(
        self, store: LiveStore, elsewhere: LiveStore
    ) -> None:
        """Unused, subscribed or closed before; others go on."""
        async with ends(store, elsewhere) as (here, there):
            unused = store.channel()
            await unused.close()
            await unused.close()
            brief = store.channel()
            await brief.subscribe(lambda: None)
            await brief.close()
            await here.publish([partial()])
            assert await taken(there, 1) == [partial()]
