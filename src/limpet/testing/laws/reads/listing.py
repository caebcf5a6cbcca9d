"""Listing: filters in every order, deleted sessions, and states with the heads."""

from __future__ import annotations

from itertools import product

import pytest

from limpet.errors import InvalidCursor, InvalidQuery
from limpet.model import EMPTY, Commit, FrozenDict, Head, limits
from limpet.model.facts.creation import created
from limpet.model.facts.phases import Phase
from limpet.store.protocol import Page, Query, Store, scope_fields
from limpet.testing.commits import add, create, draft, key, load, ready

GOLD = FrozenDict({"plan": "gold"})
PAGES_MAX = 300
# Every combination that an index serves.
SERVED = [
    Query(),
    Query(app="shop"),
    Query(app="shop", user="ada"),
    Query(app="shop", labels=GOLD),
    Query(app="shop", user="bob", labels=GOLD),
    Query(app="shop", order="updated"),
    Query(app="shop", user="ada", order="updated"),
    Query(phase="init"),
    Query(app="shop", phase="init"),
    Query(app="shop", user="ada", phase="active"),
    Query(app="shop", labels=GOLD, phase="init"),
]


async def _fill(store: Store) -> list[Head]:
    """Sessions of two apps, three users and three schemas, some labeled, last written in turn."""
    keys = [
        key(f"s{n:02}", app="shop" if n % 4 else "else", user=("ada", "bob", "eve")[n % 3])
        for n in range(16)
    ]
    for n, each in enumerate(keys):
        schema = (None, "1.0.0", "2.1.0")[n % 3 if n % 5 else 0]
        begins: Phase = "init" if n % 3 == 1 else "active"
        labels = GOLD if n % 2 else EMPTY
        first = created(each, labels=labels, schema_version=schema, phase=begins)
        await store.commit([Commit(each, (ready(first),), 0)])
    for each in (*keys[::3], *keys[1::4]):
        await add(store, each)
    return [(await load(store, each)).head for each in keys]


async def _pages(
    store: Store, query: Query, size: int = 5, *, states: bool = False
) -> list[Page[Head]]:
    """Every page, as long as there is a cursor, even after an empty page."""
    pages: list[Page[Head]] = []
    cursor = None
    for _ in range(PAGES_MAX):
        pages.append(await store.heads(query, cursor=cursor, limit=size, states=states))
        assert len(pages[-1].items) <= size
        cursor = pages[-1].cursor
        if cursor is None:
            return pages
    raise AssertionError("paging does not come to an end")


async def _all(store: Store, query: Query, size: int = 5) -> list[Head]:
    return [head for page in await _pages(store, query, size) for head in page.items]


def _expected(heads: list[Head], query: Query) -> list[Head]:
    """Return the answer that the protocol demands of a query."""
    chosen = [
        head
        for head in heads
        if query.app in (None, head.key.app)
        and query.user in (None, head.key.user)
        and query.labels.items() <= head.labels.items()
        and (query.created_after_us is None or head.created_us > query.created_after_us)
        and (query.updated_after_us is None or head.updated_us > query.updated_after_us)
        and query.schema_version in (None, head.schema_version)
        and query.phase in (None, head.phase)
    ]
    if query.order == "created":
        chosen.sort(key=lambda head: (head.created_us, heads.index(head)), reverse=query.reverse)
    else:
        chosen.sort(key=lambda head: (head.updated_us, heads.index(head)), reverse=query.reverse)
    return chosen


def _filtered(query: Query, heads: list[Head], *, reverse: bool) -> list[Query]:
    """The query with every combination of filters, at edges that some heads lie on."""
    edges = [None, heads[4].created_us, heads[9].updated_us]
    return [
        Query(
            app=query.app,
            user=query.user,
            labels=query.labels,
            order=query.order,
            reverse=reverse,
            created_after_us=created,
            updated_after_us=updated,
            schema_version=schema,
            phase=query.phase,
        )
        for created, updated, schema in product(edges, edges, (None, "1.0.0", "9.9.9"))
    ]


class ListLaws:
    # --- filters -------------------------------------------------------------------------------

    @pytest.mark.parametrize("query", SERVED, ids=str)
    @pytest.mark.parametrize("walk_max", [limits.WALK_MAX, 3])
    async def test_filters_select_exactly_in_every_order(
        self, store: Store, query: Query, walk_max: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Times and schema versions, alone and combined, for any page bound."""
        heads = await _fill(store)
        monkeypatch.setattr(limits, "WALK_MAX", walk_max)
        for asked in (
            *_filtered(query, heads, reverse=True)[::2],
            *_filtered(query, heads, reverse=False)[1::3],
        ):
            assert await _all(store, asked, 2) == _expected(heads, asked)

    async def test_a_page_looks_at_no_more_than_its_bound(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A filter that skips many gives a short or empty page, and a cursor."""
        heads = await _fill(store)
        monkeypatch.setattr(limits, "WALK_MAX", 4)
        pages = await _pages(store, Query(schema_version="9.9.9"), 2)
        assert [page.items for page in pages] == [()] * (len(heads) // 4 + 1)
        first = await store.heads(Query(schema_version="2.1.0"), cursor=None, limit=3)
        assert first.cursor is not None
        assert list(first.items) == _expected(heads[-4:], Query(schema_version="2.1.0"))

    async def test_what_no_index_serves_is_named(self, store: Store) -> None:
        """The error says which combinations are not supported."""
        for query in (Query(order="updated"), Query(app="a", labels=GOLD, order="updated")):
            with pytest.raises(InvalidQuery, match="everything, nor with labels"):
                await store.heads(query, cursor=None, limit=2)

    # --- deleted sessions ----------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2, 50])
    @pytest.mark.parametrize("walk_max", [limits.WALK_MAX, 3])
    @pytest.mark.parametrize("reverse", [True, False])
    async def test_deleted_sessions_are_listed_by_whose_they_are(
        self,
        store: Store,
        size: int,
        walk_max: int,
        monkeypatch: pytest.MonkeyPatch,
        *,
        reverse: bool,
    ) -> None:
        """For the store, an app or a user, by key; no live and no erased sessions."""
        heads = await _fill(store)
        gone = [head.key for head in heads[::2]]
        for each in gone:
            await store.delete(each)
        await store.erase(gone.pop(1))
        await store.erase(heads[1].key)
        monkeypatch.setattr(limits, "WALK_MAX", walk_max)
        for app, user in ((None, None), ("shop", None), ("shop", "ada"), ("none", None)):
            query = Query(app=app, user=user, deleted=True, reverse=reverse)
            met = [head.key for head in await _all(store, query, size)]
            of = [k for k in gone if app in (None, k.app) and user in (None, k.user)]
            assert met == sorted(of, reverse=reverse)

    async def test_a_tombstone_tells_what_is_kept(self, store: Store) -> None:
        """Key, uid, version, link, its times and when it was deleted, and nothing else."""
        (head,) = [each for each in await _fill(store) if each.key.id == "s01"]
        await add(store, head.key, draft("user.said"))
        last = (await load(store, head.key)).head
        await store.delete(head.key)
        ((tomb,),) = [page.items for page in await _pages(store, Query(deleted=True))]
        assert tomb.deleted_us is not None
        assert tomb.deleted_us >= last.updated_us
        assert tomb == Head(
            last.key,
            last.uid,
            last.version,
            last.link,
            last.created_us,
            last.updated_us,
            last.active_us,
            deleted_us=tomb.deleted_us,
            ending="deleted",
        )
        assert tomb.deleted_at is not None
        assert last.deleted_at is None

    async def test_deleted_sessions_are_found_and_erased(self, store: Store) -> None:
        """Erasing listed sessions does not affect later pages, and finally none is listed."""
        for head in await _fill(store):
            await store.delete(head.key)
        cursor, erased = None, 0
        for _ in range(PAGES_MAX):
            page = await store.heads(Query(deleted=True), cursor=cursor, limit=3)
            for head in page.items:
                erased += await store.erase(head.key) is not None
            cursor = page.cursor
            if cursor is None:
                break
        assert erased == 16
        assert await _all(store, Query(deleted=True)) == []

    async def test_deleted_sessions_are_filtered_by_their_times(self, store: Store) -> None:
        """A tombstone keeps both times; filters on anything else are refused."""
        heads = await _fill(store)
        for head in heads:
            await store.delete(head.key)
        edge = heads[7].created_us
        query = Query(deleted=True, created_after_us=edge)
        met = {head.key for head in await _all(store, query)}
        assert met == {head.key for head in heads if head.created_us > edge}
        for wrong in (
            Query(app="shop", deleted=True, labels=GOLD),
            Query(deleted=True, schema_version="1.0.0"),
            Query(deleted=True, phase="init"),
            Query(app="shop", deleted=True, order="updated"),
        ):
            with pytest.raises(InvalidQuery):
                await store.heads(wrong, cursor=None, limit=2)

    async def test_a_cursor_of_the_living_is_none_of_the_deleted(self, store: Store) -> None:
        """Each is refused by the other query, and so is a malformed cursor."""
        heads = await _fill(store)
        for head in heads[:6]:
            await store.delete(head.key)
        living = (await store.heads(Query(), cursor=None, limit=2)).cursor
        deleted = (await store.heads(Query(deleted=True), cursor=None, limit=2)).cursor
        assert living is not None
        assert deleted is not None
        asked = Query(deleted=True)
        for query, cursor in ((asked, living), (Query(), deleted), (asked, "x"), (asked, "")):
            with pytest.raises(InvalidCursor):
                await store.heads(query, cursor=cursor, limit=2)

    # --- states --------------------------------------------------------------------------------

    async def test_states_are_what_a_load_gives(self, store: Store) -> None:
        """Own fields, the app's names and the user's, each session's own; none unless asked for."""
        heads = await _fill(store)
        for n, head in enumerate(heads):
            names = {f"app:{n % 2}": n, "user:n": n, "own": {"n": [n]}}
            await add(store, head.key, draft(set=names))
        await add(store, heads[3].key, draft(delete=["user:n"]), draft(inc={"app:0": 5}))
        for page in await _pages(store, Query(), 5, states=True):
            assert list(page.states) == [head.key for head in page.items]
            assert page.damaged == ()
            for of, state in page.states.items():
                loaded = await load(store, of)
                assert state == {**loaded.fields, **scope_fields(loaded.scopes)}
        assert (await store.heads(Query(), cursor=None, limit=5)).states == {}

    @pytest.mark.parametrize("query", SERVED, ids=str)
    async def test_states_come_in_every_order_and_with_filters(
        self, store: Store, query: Query
    ) -> None:
        """The page is the same as without states."""
        heads = await _fill(store)
        for asked in (query, *_filtered(query, heads, reverse=False)[3:20:5]):
            plain = await _pages(store, asked, 3)
            full = await _pages(store, asked, 3, states=True)
            assert [page.items for page in full] == [page.items for page in plain]
            assert [page.cursor for page in full] == [page.cursor for page in plain]
            assert all([*page.states] == [head.key for head in page.items] for page in full)

    async def test_states_read_after_snapshots_are_whole(self, store: Store) -> None:
        """Long logs with a snapshot and short ones, on one page."""
        for n in range(3):
            await create(store, key(f"s{n}"), {"n": n})
        for turn in range(12):
            await add(store, key("s1"), draft(set={"big": f"{turn}" * 20_000}, inc={"n": 1}))
        page = await store.heads(Query(), cursor=None, limit=9, states=True)
        assert page.states[key("s1")] == {"n": 13, "big": "11" * 20_000}
        assert page.states[key("s2")] == {"n": 2}
