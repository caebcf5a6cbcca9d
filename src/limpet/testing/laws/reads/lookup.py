"""Reads by id, of many sessions, in the order of keys; and apps that are not users' own."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.errors import (
    InvalidCursor,
    InvalidQuery,
    LimpetError,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import Key
from limpet.store.leases import LeaseStore
from limpet.store.protocol import Query, Store
from limpet.testing.commits import add, create, creation, draft, key, load, log
from limpet.testing.laws.reads.feed import FeedStore
from limpet.testing.leases import claim

A, B, C = key("a"), key("b"), key("c")
IDS = ("a", "a1", "a2", "aé", "b", "ba", "B", "\U0001f600", "~", "a\U0010ffff", "a\U0010ffffx")


async def listed(store: Store, query: Query, size: int) -> list[Key]:
    """The keys of all pages."""
    keys: list[Key] = []
    cursor = None
    while True:
        page = await store.heads(query, cursor=cursor, limit=size)
        keys += [head.key for head in page.items]
        cursor = page.cursor
        if cursor is None:
            return keys


class LookupLaws:
    # --- by id ---------------------------------------------------------------------------------

    async def test_events_are_read_by_their_ids(self, store: Store) -> None:
        """In the order of the ids, without those that the session does not have."""
        begun = await create(store, A)
        made = await add(store, A, draft(id="x"), draft("user.said", id="y"), draft())
        await create(store, B)
        await add(store, B, draft(id="z"))
        ids = ["y", "never", "x", "z", made.events[2].id, begun.head.uid]
        events = await store.read_ids(A, ids)
        assert events == (made.events[1], made.events[0], made.events[2], begun.events[0])
        assert await store.read_ids(A, []) == ()
        await add(store, A, draft("session.processed", {"seqs": [3]}))
        (said,) = await store.read_ids(A, ["y"])
        assert said == (await log(store, A))[2]
        assert said.processed == 5

    @pytest.mark.parametrize(
        ("ending", "error"),
        [("none", SessionNotFound), ("delete", SessionDeleted), ("erase", SessionErased)],
    )
    async def test_ids_of_what_is_not_there_are_refused(
        self, store: Store, ending: str, error: type[LimpetError]
    ) -> None:
        """As a load is."""
        if ending != "none":
            await create(store, A)
            await (store.delete(A) if ending == "delete" else store.erase(A))
        with pytest.raises(error):
            await store.read_ids(A, ["x"])

    # --- many ----------------------------------------------------------------------------------

    async def test_many_sessions_are_loaded_as_each_is(self, store: Store) -> None:
        """In the order of the keys, twice where a key is given twice, None where none is living."""
        await create(store, A, {"n": 1, "app:a": 1})
        await create(store, B, {"user:u": 2})
        await add(store, B, draft(inc={"n": 1}), draft())
        for of, end in ((C, store.delete), (key("d"), store.erase)):
            await create(store, of)
            await end(of)
        keys = [B, key("never"), A, C, B, key("d")]
        sessions = await store.load_many(keys, tail=2)
        one, two = [await store.load(of, tail=2) for of in (A, B)]
        assert sessions == (two, None, one, None, two, None)
        assert await store.load_many([], tail=2) == ()

    # --- in the order of keys ------------------------------------------------------------------

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("size", [1, 3, 100])
    async def test_heads_come_in_the_order_of_their_keys(
        self, store: Store, size: int, *, reverse: bool
    ) -> None:
        """By code points, whatever the order in which they were created."""
        keys = [key(id, user=user) for user in ("bob", "ada", "Eve") for id in IDS]
        await store.commit([creation(of) for of in keys[::-1]])
        await create(store, key("a", app="other"))
        ours = sorted(keys, reverse=reverse)
        query = Query(app="shop", order="key", reverse=reverse)
        assert await listed(store, query, size) == ours
        query = Query(app="shop", user="ada", order="key", reverse=reverse)
        assert await listed(store, query, size) == [of for of in ours if of.user == "ada"]

    @pytest.mark.parametrize("prefix", ["", "a", "aé", "a\U0010ffff", "b", "B", "\U0001f600", "zz"])
    async def test_a_prefix_selects_exactly(self, store: Store, prefix: str) -> None:
        """Those ids that begin so, to the last code point, and no others."""
        await store.commit([creation(key(id)) for id in IDS])
        await create(store, key("a", user="bob"))
        query = Query(app="shop", user="ada", order="key", reverse=False, prefix=prefix)
        expected = sorted(id for id in IDS if id.startswith(prefix))
        assert [of.id for of in await listed(store, query, 2)] == expected

    async def test_order_of_keys_goes_with_the_other_filters(self, store: Store) -> None:
        """Times select from the range that is read, a cursor is of its query alone."""
        for id in "abc":
            await create(store, key(id))
        times = [(await load(store, key(id))).head.created_us for id in "abc"]
        query = Query(app="shop", order="key", reverse=False, created_after_us=times[0] - 1)
        assert [of.id for of in await listed(store, query, 2)] == ["a", "b", "c"]
        query = Query(app="shop", order="key", created_before_us=times[0])
        assert await listed(store, query, 2) == []
        page = await store.heads(Query(app="shop", order="key"), cursor=None, limit=1)
        with pytest.raises(InvalidCursor):
            await store.heads(Query(app="shop"), cursor=page.cursor, limit=1)

    @pytest.mark.parametrize(
        "query",
        [
            Query(order="key"),
            Query(app="shop", order="key", labels={"plan": "gold"}),  # type: ignore[arg-type]
            Query(app="shop", prefix="a"),
            Query(app="shop", order="key", prefix="a"),
            Query(app="shop", user="ada", order="created", prefix="a"),
        ],
        ids=str,
    )
    async def test_an_order_of_keys_that_no_index_serves_is_refused(
        self, store: Store, query: Query
    ) -> None:
        """It needs an app, and a prefix needs a user."""
        with pytest.raises(InvalidQuery):
            await store.heads(query, cursor=None, limit=1)

    async def test_created_before_excludes_the_time_it_names(self, store: Store) -> None:
        """With created_after it bounds a range, in either direction and for every owner."""
        for id in "abcd":
            await create(store, key(id))
        times = [(await load(store, key(id))).head.created_us for id in "abcd"]
        for more in ({}, {"app": "shop"}, {"app": "shop", "user": "ada"}):
            whose: dict[str, Any] = more
            for at in times:
                query = Query(created_before_us=at, reverse=False, **whose)
                met = await listed(store, query, 1)
                assert [of.id for of in met] == [
                    i for i, t in zip("abcd", times, strict=True) if t < at
                ]
            query = Query(created_after_us=times[0] - 1, created_before_us=times[-1] + 1, **whose)
            assert [of.id for of in await listed(store, query, 3)] == list("dcba")

    # --- reserved apps -------------------------------------------------------------------------

    async def test_reserved_apps_are_listed_only_if_named(self, store: Store) -> None:
        """By their name, or with `reserved`; deleted ones likewise."""
        ours, theirs = key("x"), Key("$docs", "shop/ada", "x")
        edges = [key("x", app="#"), key("x", app="%"), Key("$", "u", "x")]
        for of in (ours, theirs, *edges):
            await create(store, of)
        seen = {ours, edges[0], edges[1]}
        assert {*await listed(store, Query(), 2)} == seen
        assert {*await listed(store, Query(reserved=True), 2)} == seen | {theirs, edges[2]}
        assert await listed(store, Query(app="$docs"), 2) == [theirs]
        assert await listed(store, Query(app="$docs", order="key"), 2) == [theirs]
        for of in (ours, theirs):
            await store.delete(of)
        assert await listed(store, Query(deleted=True), 2) == [ours]
        assert {*await listed(store, Query(deleted=True, reserved=True), 2)} == {ours, theirs}

    async def test_reserved_apps_are_claimed_only_if_named(self, store: LeaseStore) -> None:
        """A worker of everything does not run documents."""
        ours, theirs = key("x"), Key("$docs", "shop/ada", "x")
        for of in (theirs, ours):
            await create(store, of)
            await add(store, of, draft("user.said"))
        assert [lease.key for lease in await claim(store)] == [ours]
        assert [lease.key for lease in await claim(store, app="$docs")] == [theirs]

    async def test_reserved_apps_are_in_the_feed_only_if_named(self, store: FeedStore) -> None:
        """By app or by key."""
        ours, theirs = key("x"), Key("$docs", "shop/ada", "x")
        for of in (ours, theirs):
            await create(store, of)
        asked: list[tuple[str | None, Key | None, Key]] = [
            (None, None, ours),
            ("$docs", None, theirs),
            (None, theirs, theirs),
        ]
        for app, named, expected in asked:
            entries, _ = await store.changes(None, app=app, key=named, limit=9)
            assert [entry.key for entry in entries] == [expected]
