"""Semantic search: ranked as InMemoryStore ranks, by each index and on every store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

import limpet
from limpet.adapters.langgraph import LimpetStore, store as store_module
from limpet.adapters.langgraph.vectors import ListedVectors, PostgresVectors, SqliteVectors

WORDS = ("sea", "boat", "tide", "cat", "dog", "moon", "star", "tea")
ITEMS: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    (("notes", "ada"), "harbor", {"text": "sea boat tide", "stars": 4}),
    (("notes", "ada"), "pets", {"text": "cat dog", "stars": 2, "also": ["dog", "cat tea"]}),
    (("notes", "ada"), "night", {"text": "moon star sea", "stars": 5}),
    (("notes", "bob"), "tea", {"text": "tea cat moon", "stars": 1}),
    (("other",), "boat", {"text": "boat boat boat", "stars": 3}),
    (("notes", "x" * 300), "long", {"text": "sea sea tide", "stars": 9}),
    (("notes", "ada"), "blank", {"text": "nothing known", "stars": 0}),
)


def embed(texts: Sequence[str]) -> list[list[float]]:
    """How often each word occurs."""
    return [[float(text.count(word)) for word in WORDS] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


INDEX: dict[str, Any] = {"dims": len(WORDS), "embed": embed, "fields": ["text", "also[*]"]}


@pytest.fixture(params=["listed", "sqlite-vec"])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The index that this process has; without the package, the one in Python."""
    if request.param == "listed":
        monkeypatch.setitem(__import__("sys").modules, "sqlite_vec", None)
    return str(request.param)


@pytest.fixture
async def indexed(lp: limpet.Limpet, app: str, here: str) -> LimpetStore:
    return LimpetStore(lp, collection=app, index=INDEX)


async def fill(*stores: Any) -> None:
    for each in stores:
        for namespace, key, value in ITEMS:
            await each.aput(namespace, key, value)


def shown(items: Sequence[Any]) -> list[Any]:
    return [(i.namespace, i.key, None if i.score is None else round(i.score, 5)) for i in items]


async def same_answers(store: LimpetStore, theirs: InMemoryStore) -> None:
    for prefix in ((), ("notes",), ("notes", "ada"), ("notes", "x" * 300), ("nobody",)):
        for query in ("sea", "dog tea", "moon star", "nothing of these"):
            for wanted in (None, {"stars": {"$gt": 2}}):
                asked: dict[str, Any] = {"query": query, "filter": wanted, "limit": 50}
                ours = shown(await store.asearch(prefix, **asked))
                model = shown(await theirs.asearch(prefix, **asked))
                assert sorted(ours, key=str) == sorted(model, key=str)
                scores = [score for _, _, score in ours if score is not None]
                assert scores == sorted(scores, reverse=True)


async def test_a_query_ranks_as_their_store_does(indexed: LimpetStore) -> None:
    """The same items with the same scores, below every prefix, with and without a filter."""
    theirs = InMemoryStore(index=INDEX)
    await fill(indexed, theirs)
    await same_answers(indexed, theirs)
    await indexed.aput(("notes", "ada"), "harbor", {"text": "tea", "stars": 3})
    await theirs.aput(("notes", "ada"), "harbor", {"text": "tea", "stars": 3})
    await indexed.adelete(("other",), "boat")
    await theirs.adelete(("other",), "boat")
    await same_answers(indexed, theirs)


async def test_the_index_is_the_one_that_is_installed(indexed: LimpetStore, here: str) -> None:
    """sqlite-vec where it is installed, Python where it is not."""
    await indexed.asearch((), query="sea")
    expected = {"listed": ListedVectors, "sqlite-vec": SqliteVectors}[here]
    assert type(indexed._index) is expected


async def test_pages_go_through_the_items_once(indexed: LimpetStore) -> None:
    """Offset and limit cut one order: by score, then what has no vectors."""
    chance = random.Random(7)
    for number in range(80):
        text = " ".join(chance.choices(WORDS, k=5))
        await indexed.aput(("n",), f"{number:02}", {"text": text}, index=None)
    await indexed.aput(("n",), "plain", {"text": "sea"}, index=False)
    whole = shown(await indexed.asearch(("n",), query="sea tide", limit=100))
    assert len(whole) == 81
    assert whole[-1] == (("n",), "plain", None)
    pages = [
        await indexed.asearch(("n",), query="sea tide", limit=14, offset=at)
        for at in range(0, 84, 14)
    ]
    assert [each for page in pages for each in shown(page)] == whole


async def test_a_put_without_vectors_leaves_none_behind(indexed: LimpetStore) -> None:
    """index=False takes an item out of the ranking; index=[…] names its own fields."""
    await indexed.aput(("n",), "k", {"text": "sea", "title": "moon"})
    await indexed.aput(("n",), "k", {"text": "sea", "title": "moon"}, index=False)
    assert shown(await indexed.asearch(("n",), query="sea")) == [(("n",), "k", None)]
    await indexed.aput(("n",), "k", {"text": "sea", "title": "moon"}, index=["title"])
    assert shown(await indexed.asearch(("n",), query="moon")) == [(("n",), "k", 1.0)]
    assert shown(await indexed.asearch(("n",), query="sea")) == [(("n",), "k", 0.0)]


async def test_a_search_sees_what_others_put_and_delete(
    lp: limpet.Limpet, app: str, here: str
) -> None:
    """Two stores on one collection: each has its own index, and both see every change."""
    one = LimpetStore(lp, collection=app, index=INDEX)
    two = LimpetStore(lp, collection=app, index={**INDEX, "embed": aembed})
    await one.aput(("n",), "a", {"text": "sea"})
    assert shown(await two.asearch(("n",), query="sea")) == [(("n",), "a", 1.0)]
    await one.aput(("n",), "b", {"text": "moon"})
    await one.aput(("n",), "a", {"text": "moon tea"})
    found = shown(await two.asearch(("n",), query="moon"))
    assert [key for _, key, _ in found] == ["b", "a"]
    await one.adelete(("n",), "b")
    assert [key for _, key, _ in shown(await two.asearch(("n",), query="moon"))] == ["a"]
    await one.aput(("n",), "b", {"text": "tea"})
    assert shown(await two.asearch(("n",), query="tea"))[0][:2] == (("n",), "b")


async def test_a_store_without_an_index_does_not_leave_old_scores(
    lp: limpet.Limpet, app: str, here: str
) -> None:
    """An item that was put without vectors since has no score, rather than that of its past."""
    indexed, plain = LimpetStore(lp, collection=app, index=INDEX), LimpetStore(lp, collection=app)
    await indexed.aput(("n",), "k", {"text": "sea"})
    await plain.aput(("n",), "k", {"text": "moon"})
    assert shown(await indexed.asearch(("n",), query="sea")) == [(("n",), "k", None)]
    await plain.adelete(("n",), "k")
    assert await indexed.asearch(("n",), query="sea") == []


async def test_deleting_and_sweeping_take_the_vectors_along(
    lp: limpet.Limpet, app: str, here: str
) -> None:
    """The second collection has nothing left of an item that is gone."""
    now = [1_000_000.0]
    store = LimpetStore(lp, collection=app, index=INDEX, clock=lambda: now[0])
    await store.aput(("n",), "gone", {"text": "sea"})
    await store.aput(("n",), "old", {"text": "tide"}, ttl=1)
    await store.adelete(("n",), "gone")
    now[0] += 61
    assert await store.asearch(("n",), query="sea") == []
    assert await store.sweep_ttl() == 1
    vectors = [each async for each in lp.documents(f"{app}-vectors").each()]
    assert [each.value for each in vectors] == [None]


async def test_bad_vectors_are_refused_and_nothing_is_put(lp: limpet.Limpet, app: str) -> None:
    """A model of other dimensions, one that is not finite, and too few of them."""
    for bad, match in (
        (lambda texts: [[1.0]] * len(texts), "dims=8"),
        (lambda texts: [[float("nan")] * 8] * len(texts), "finite"),
        (lambda _: [], "0 vectors for 1"),
    ):
        store = LimpetStore(lp, collection=app, index={**INDEX, "embed": bad})
        with pytest.raises(limpet.InvalidInput, match=match):
            await store.aput(("n",), "k", {"text": "sea"})
        assert await store.aget(("n",), "k") is None


def test_a_store_without_await_ranks_too(url: str, app: str) -> None:
    """`with` opens its own loop; an embedding that has to be awaited runs there."""
    with LimpetStore.from_url(url, collection=app, index={**INDEX, "embed": aembed}) as store:
        store.batch([PutOp(("n",), "a", {"text": "sea"}), PutOp(("n",), "b", {"text": "moon"})])
        assert [item.key for item in store.search(("n",), query="moon", limit=1)] == ["b"]


# --- pgvector -------------------------------------------------------------------------------------


@pytest.fixture
async def vector_url(url: str) -> str:
    """A server with the extension."""
    if not url.startswith("postgresql"):
        pytest.skip("pgvector is an extension of PostgreSQL")
    conn = await asyncpg.connect(url)
    try:
        await conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except asyncpg.PostgresError as error:
        pytest.skip(f"this server does not have pgvector: {error}")
    finally:
        await conn.close()
    return url


async def test_pgvector_ranks_where_it_is_installed(vector_url: str, app: str) -> None:
    """One index for all processes, with the same answers; what is deleted leaves its table."""
    theirs = InMemoryStore(index=INDEX)
    async with (
        LimpetStore.from_url(vector_url, collection=app, index=INDEX) as one,
        LimpetStore.from_url(vector_url, collection=app, index=INDEX) as two,
    ):
        await fill(one, theirs)
        await same_answers(two, theirs)
        assert type(two._index) is PostgresVectors
        await asyncio.gather(
            *[each.aput(("n",), "k", {"text": "tea", "stars": 3}) for each in (one, two)]
        )
        await theirs.aput(("n",), "k", {"text": "tea", "stars": 3})
        await two.adelete(("other",), "boat")
        await theirs.adelete(("other",), "boat")
        await same_answers(one, theirs)
        conn = await asyncpg.connect(vector_url)
        query = "SELECT name FROM limpet_langgraph.vectors WHERE collection = $1"
        names = [row["name"] for row in await conn.fetch(query, app)]
        assert "notes.bob/tea" in names
        assert "other/boat" not in names
        await conn.close()


async def test_an_index_that_lost_its_place_is_built_again(vector_url: str, app: str) -> None:
    """A position that the feed does not know leads to the same answers."""
    async with LimpetStore.from_url(vector_url, collection=app, index=INDEX) as store:
        await store.aput(("n",), "k", {"text": "tea"})
        await store.asearch(("n",), query="tea")
        conn = await asyncpg.connect(vector_url)
        await conn.execute(
            "UPDATE limpet_langgraph.positions SET position = 'elsewhere' WHERE collection = $1",
            app,
        )
        await conn.execute("DELETE FROM limpet_langgraph.vectors WHERE collection = $1", app)
        await conn.close()
        assert shown(await store.asearch(("n",), query="tea")) == [(("n",), "k", 1.0)]


async def test_pgvector_that_is_asked_for_and_not_there_is_an_error(
    url: str, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than another index without a word."""
    if not url.startswith("postgresql"):
        pytest.skip("pgvector is an extension of PostgreSQL")

    async def missing(url: str, collection: str) -> None:
        return None

    monkeypatch.setattr(store_module.PostgresVectors, "open", missing)
    async with LimpetStore.from_url(url, collection=app, index=INDEX, pgvector=True) as store:
        with pytest.raises(limpet.InvalidInput, match="CREATE EXTENSION"):
            await store.asearch(("n",), query="tea")
    async with LimpetStore.from_url(url, collection=app, index=INDEX) as store:
        assert await store.asearch(("n",), query="tea") == []


# --- the sweeper ----------------------------------------------------------------------------------


async def test_the_sweeper_sweeps_until_the_store_is_closed(url: str, app: str) -> None:
    """Started by the configuration; ended with the block."""
    swept = asyncio.Event()
    config: Any = {"default_ttl": -1, "sweep_interval_minutes": 1e-9}
    async with LimpetStore.from_url(url, collection=app, ttl=config) as store:
        sweep = store.sweep

        async def noted() -> int:
            if count := await sweep():
                swept.set()
            return count

        store.sweep = noted  # type: ignore[method-assign]
        await store.aput(("n",), "k", {"v": 1})
        async with asyncio.timeout(30):
            await swept.wait()
        running = await store.start_ttl_sweeper()
    assert running.done()
