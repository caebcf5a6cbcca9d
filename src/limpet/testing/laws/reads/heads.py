"""Heads: pages of live sessions, by app, user and label, in order of creation or update."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from limpet.errors import (
    InvalidCursor,
    InvalidQuery,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import FrozenDict, Head, Key
from limpet.model.facts.isolation import Isolation
from limpet.store.protocol import Query, SingleHeads, Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load

GOLD = FrozenDict({"plan": "gold"})
PAGES_MAX = 100


async def _fill(store: Store) -> list[Key]:
    """Twelve sessions of two apps and three users, every second one with a label."""
    keys = [
        key(f"s{n}", app="shop" if n % 4 else "else", user=("ada", "bob", "eve")[n % 3])
        for n in range(12)
    ]
    for n, each in enumerate(keys):
        labels = {"plan": "gold", "n": str(n % 4)} if n % 2 else {}
        await store.commit([creation(each, labels=labels)])
    return keys


async def _all(store: Store, query: Query, size: int = 5) -> list[Head]:
    """Everything that paging returns. Every page before the last is full."""
    met: list[Head] = []
    cursor = None
    for _ in range(PAGES_MAX):
        page = await store.heads(query, cursor=cursor, limit=size)
        met += page.items
        cursor = page.cursor
        if cursor is None:
            return met
        assert len(page.items) == size
    raise AssertionError("paging does not come to an end")


async def _lend(store: Store) -> set[str]:
    """Sessions of ada, bob and eve in two apps. Returns the ids of those that are eve's to meet:
    her own, those that name her, and those of everybody in the app."""
    of_eve = set()
    for n in range(24):
        app, user = ("shop", "else")[n % 8 == 7], ("ada", "bob", "eve")[n % 3]
        isolation = (None, Isolation(users=("zoe", "eve")), Isolation("global"), None)[n % 4]
        made = creation(
            key(f"s{n:02}", app=app, user=user),
            {"n": n},
            labels={"plan": "gold"} if n % 2 else {},
            isolation=isolation,
        )
        await store.commit([made])
        if app == "shop" and (user == "eve" or isolation is not None):
            of_eve.add(f"s{n:02}")
    return of_eve


def _ids(heads: list[Head]) -> list[str]:
    return [head.key.id for head in heads]


class HeadLaws:
    async def test_the_head_of_one_session_is_that_of_load(self, store: Store) -> None:
        """Also beside ids that begin with it; what is not there raises as load does."""
        if not isinstance(store, SingleHeads):
            pytest.skip("this store does not read single heads")
        for id in ("s1", "s", "s10", "s1-", "t"):
            await store.commit([creation(key(id))])
        await add(store, key("s1"))
        for id in ("s1", "s", "s10"):
            assert await store.head(key(id)) == (await load(store, key(id))).head
        with pytest.raises(SessionNotFound):
            await store.head(key("s2"))
        await store.delete(key("s1"))
        with pytest.raises(SessionDeleted):
            await store.head(key("s1"))
        await store.erase(key("s1"))
        with pytest.raises(SessionErased):
            await store.head(key("s1"))

    @pytest.mark.parametrize("size", [1, 2, 3, 11, 12, 13])
    @pytest.mark.parametrize("reverse", [True, False])
    async def test_pages_meet_every_session_once_in_order_of_creation(
        self, store: Store, size: int, *, reverse: bool
    ) -> None:
        """Newest or oldest first, for every page size, without an empty last page."""
        ids = [each.id for each in await _fill(store)]
        met = await _all(store, Query(reverse=reverse), size)
        assert _ids(met) == (ids[::-1] if reverse else ids)

    @pytest.mark.parametrize(
        ("query", "places"),
        [
            (Query(app="shop"), [11, 10, 9, 7, 6, 5, 3, 2, 1]),
            (Query(app="else"), [8, 4, 0]),
            (Query(app="shop", user="ada"), [9, 6, 3]),
            (Query(app="else", user="ada"), [0]),
            (Query(app="shop", labels=GOLD), [11, 9, 7, 5, 3, 1]),
            (Query(app="shop", user="bob", labels=GOLD), [7, 1]),
            (Query(app="shop", labels=FrozenDict({"plan": "gold", "n": "3"})), [11, 7, 3]),
            (Query(app="shop", labels=FrozenDict({"plan": "silver"})), []),
            (Query(app="shop", labels=FrozenDict({"gold": "plan"})), []),
            (Query(app="else", labels=GOLD), []),
            (Query(app="SHOP"), []),
            (Query(app="sho%"), []),
            (Query(app="shop", user="a_a"), []),
        ],
        ids=str,
    )
    async def test_a_query_selects_exactly(
        self, store: Store, query: Query, places: list[int]
    ) -> None:
        """App, user and every label must match, and nothing else matters."""
        await _fill(store)
        for size in (1, 2, 50):
            assert _ids(await _all(store, query, size)) == [f"s{n}" for n in places]

    async def test_a_head_is_the_one_that_load_gives(self, store: Store) -> None:
        """A listed head has everything that the session's own head has."""
        keys = await _fill(store)
        await add(store, keys[3], draft("user.said"), draft())
        for head in await _all(store, Query()):
            assert head == (await load(store, head.key)).head

    @pytest.mark.parametrize("reverse", [True, False])
    @pytest.mark.parametrize("user", [None, "bob"])
    async def test_order_of_update_is_by_time_of_the_last_event(
        self, store: Store, user: str | None, *, reverse: bool
    ) -> None:
        """Pages by update are sorted and meet each session once while nobody writes."""
        keys = await _fill(store)
        for each in (keys[7], keys[1], keys[10]):
            await add(store, each)
        query = Query(app="shop", user=user, order="updated", reverse=reverse)
        for size in (1, 2, 50):
            met = await _all(store, query, size)
            times = [head.updated_us for head in met]
            assert times == sorted(times, reverse=reverse)
            assert sorted(_ids(met)) == sorted(
                each.id for each in keys if each.app == "shop" and user in (None, each.user)
            )

    @pytest.mark.parametrize("reverse", [True, False])
    async def test_paging_by_creation_is_undisturbed_by_writers(
        self, store: Store, *, reverse: bool
    ) -> None:
        """Sessions that exist throughout are returned once, while others come, go and change."""
        keys = await _fill(store)
        staying = {each.id for n, each in enumerate(keys) if n % 5}
        met: list[str] = []
        cursor = None
        for turn in range(100):
            page = await store.heads(Query(reverse=reverse), cursor=cursor, limit=2)
            met += [head.key.id for head in page.items]
            cursor = page.cursor
            if cursor is None:
                break
            await create(store, key(f"new{turn}"))
            await add(store, keys[1], draft())
            if turn in (0, 2):
                await store.delete(keys[turn * 5])
        assert len(met) == len(set(met))
        assert staying <= set(met)

    async def test_labels_are_found_as_they_are_now(self, store: Store) -> None:
        """A changed label is found only under its new value, a removed one not at all."""
        one, two = key("1"), key("2")
        await store.commit([creation(one, labels=GOLD), creation(two, labels=GOLD)])
        await add(store, one, draft("session.labeled", {"labels": {"plan": "free", "x": "y"}}))
        await add(store, two, draft("session.labeled", {"labels": {"plan": None}}))
        by_label = {
            value: _ids(await _all(store, Query(app="shop", labels=FrozenDict({"plan": value}))))
            for value in ("gold", "free")
        }
        assert by_label == {"gold": [], "free": ["1"]}
        assert (await load(store, two)).head.labels == {}

    async def test_only_living_sessions_are_listed(self, store: Store) -> None:
        """Deleted and erased sessions are on no page and under no label."""
        keys = await _fill(store)
        await store.delete(keys[1])
        await store.erase(keys[3])
        for query in (
            Query(),
            Query(app="shop"),
            Query(app="shop", user="bob"),
            Query(app="shop", labels=GOLD),
            Query(app="shop", order="updated"),
        ):
            assert not {"s1", "s3"} & set(_ids(await _all(store, query)))

    async def test_after_means_strictly_after(self, store: Store) -> None:
        """created_after and updated_after exclude the microsecond they name."""
        for each in await _fill(store):
            await add(store, each)
        heads = await _all(store, Query())
        for edge in heads[::5]:
            created = await _all(store, Query(created_after_us=edge.created_us))
            assert created == [h for h in heads if h.created_us > edge.created_us]
            query = Query(app="shop", order="updated", updated_after_us=edge.updated_us)
            assert set(_ids(await _all(store, query))) == {
                h.key.id for h in heads if h.key.app == "shop" and h.updated_us > edge.updated_us
            }

    async def test_a_cursor_serves_only_its_own_query(self, store: Store) -> None:
        """A malformed cursor, or one of another query, is refused."""
        await _fill(store)
        cursor = (await store.heads(Query(), cursor=None, limit=2)).cursor
        assert cursor is not None
        for query in (
            Query(app="shop"),
            Query(reverse=False),
            Query(created_after_us=1),
        ):
            with pytest.raises(InvalidCursor):
                await store.heads(query, cursor=cursor, limit=2)
        for wrong in ("", "x", "e30", cursor[:-4], cursor[::-1], "\ud800", "é"):
            with pytest.raises(InvalidCursor):
                await store.heads(Query(), cursor=wrong, limit=2)

    @pytest.mark.parametrize(
        "query",
        [
            Query(user="ada"),
            Query(labels=GOLD),
            Query(order="updated"),
            Query(app="shop", labels=GOLD, order="updated"),
            Query(app="shop", order="size"),  # type: ignore[arg-type]  # wrong on purpose
        ],
        ids=str,
    )
    async def test_what_no_index_serves_is_refused(self, store: Store, query: Query) -> None:
        """A query that would read everything is an error, not a slow answer."""
        with pytest.raises(InvalidQuery):
            await store.heads(query, cursor=None, limit=2)

    async def test_a_page_is_of_one_instant(self, store: Store) -> None:
        """Sessions that are always committed together are listed at one version."""
        one, two = key("1"), key("2")
        await store.commit([creation(one), creation(two)])

        async def both() -> None:
            await store.commit([addition(one), addition(two)])

        writing = asyncio.gather(*(both() for _ in range(20)))
        while not writing.done():
            page = await store.heads(Query(app="shop"), cursor=None, limit=5)
            assert len({head.version for head in page.items}) == 1
            await asyncio.sleep(0)
        await writing

    async def test_what_is_lent_to_a_user_is_listed_with_its_own(self, store: Store) -> None:
        """In each order, from either end, for each size of page: each session once, in its place,
        and nothing else."""
        of_eve = await _lend(store)
        whole = await _all(store, Query(app="shop"), size=50)
        for order in ("created", "updated", "key"):
            for reverse in (True, False):
                expected = [
                    head.key.id
                    for head in await _all(
                        store, Query(app="shop", order=order, reverse=reverse), size=50
                    )
                    if head.key.id in of_eve
                ]
                lent = Query(app="shop", user="eve", lent=True, order=order, reverse=reverse)
                for size in (1, 2, 5, 50):
                    assert _ids(await _all(store, lent, size=size)) == expected, (order, size)
        own = _ids(await _all(store, Query(app="shop", user="eve")))
        assert {h.key.id for h in whole if h.key.user == "eve"} == set(own) < of_eve
        of_zoe = await _all(store, Query(app="shop", user="zoe", lent=True))
        assert {head.key.user for head in of_zoe} == {"ada", "bob", "eve"}
        nobody = await _all(store, Query(app="shop", user="mia", lent=True))
        assert all(head.facts["isolation"]["model"] == "global" for head in nobody)
        assert await _all(store, Query(app="elsewhere", user="eve", lent=True)) == []

    async def test_what_is_lent_is_filtered_and_read_like_the_rest(self, store: Store) -> None:
        """By labels, times, phase, status; with states; and an ended session leaves the list."""
        of_eve = await _lend(store)
        lent = Query(app="shop", user="eve", lent=True)
        met = await _all(store, lent, size=50)
        gold = Query(app="shop", user="eve", lent=True, labels=GOLD)
        assert {head.key.id for head in await _all(store, gold)} == {
            id for id in of_eve if int(id[1:]) % 2
        }
        edge = met[len(met) // 2]
        later = msgspec.structs.replace(lent, created_after_us=edge.created_us)
        after = [head for head in met if head.created_us > edge.created_us]
        assert await _all(store, later) == after
        for more in ({"phase": "active"}, {"status": "idle"}, {"ready": "idle"}):
            query = msgspec.structs.replace(lent, **more)
            assert await _all(store, query, size=50) == met
        page = await store.heads(lent, cursor=None, limit=50, states=True)
        states = {each.id: state["n"] for each, state in page.states.items()}
        assert states == {id: int(id[1:]) for id in of_eve}
        gone = next(head.key for head in met if head.key.user != "eve")
        await store.delete(gone)
        assert gone.id not in _ids(await _all(store, lent))
