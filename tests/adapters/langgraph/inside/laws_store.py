"""What the store promises, beside LangGraph's own store in memory."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore

import limpet
from limpet.adapters.langgraph import LimpetStore

ITEMS: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    (("users", "ada"), "likes", {"kind": "food", "score": 5, "deep": {"a": [1, 2]}}),
    (("users", "ada"), "dislikes", {"kind": "noise", "score": 2}),
    (("users", "adam"), "likes", {"kind": "food", "score": 4.5}),
    (("users", "ada", "notes"), "a/b.c%2F", {"kind": "note", "score": None}),
    (("docs",), "1", {"kind": "report", "score": 9}),
)
FILTERS: tuple[Any, ...] = (
    None,
    {"kind": "food"},
    {"score": {"$gt": 4.5}},
    {"score": {"$gte": 2, "$lt": 5}},
    {"kind": {"$ne": "food"}},
    {"kind": {"$eq": "note"}},
    {"deep": {"a": [1, 2]}},
)
NAMESPACES: tuple[Any, ...] = (
    {},
    {"prefix": ("users",)},
    {"suffix": ("notes",)},
    {"prefix": ("users", "*")},
    {"max_depth": 1},
    {"prefix": ("users",), "max_depth": 2, "limit": 1, "offset": 1},
)


async def test_it_answers_as_their_store_does(store: LimpetStore) -> None:
    """Items, filters and namespaces are those of InMemoryStore, in every combination."""
    theirs = InMemoryStore()
    for each in (store, theirs):
        for namespace, key, value in ITEMS:
            await each.aput(namespace, key, value)
    for namespace, key, value in ITEMS:
        found = await store.aget(namespace, key)
        assert found is not None
        assert (found.namespace, found.key, found.value) == (namespace, key, value)
    for prefix in ((), ("users",), ("users", "ada"), ("nobody",)):
        for wanted in FILTERS:
            if wanted and "score" in wanted:  # theirs cannot compare None
                prefix = ("users", "adam")
            ours = {(i.namespace, i.key) for i in await store.asearch(prefix, filter=wanted)}
            assert ours == {
                (i.namespace, i.key) for i in await theirs.asearch(prefix, filter=wanted)
            }
    for how in NAMESPACES:
        assert await store.alist_namespaces(**how) == await theirs.alist_namespaces(**how)


STRANGE = (
    "line\nbreak",
    " padded ",
    "\ttab\x01control\x7f",
    "x" * 300,
    "%2F%!%~u0041",
    "%!bang",
    "%~tilde",
    "a/b",
    "\u3000wide\u3000",
    "half \ud800 pair",
    "n\n" * 200,
)


@pytest.mark.parametrize("text", STRANGE)
async def test_labels_and_keys_are_any_text(store: LimpetStore, text: str) -> None:
    """Of any length and with any character: they are found, searched and listed as they are."""
    theirs = InMemoryStore()
    items = [
        ((text,), "key"),
        ((text, "below"), text),
        (("above", text), text),
        (("above",), text),
        (("other",), "key"),
    ]
    for namespace, key in items:
        value = {"of": [*map(repr, namespace), repr(key)]}
        for each in (store, theirs):
            await each.abatch([PutOp(namespace, key, value)])
    for namespace, key in items:
        found = await store.aget(namespace, key)
        assert found is not None
        assert (found.namespace, found.key) == (namespace, key)
        assert found.value == {"of": [*map(repr, namespace), repr(key)]}
    for prefix in ((), (text,), ("above",), ("above", text), (text, "below"), ("other",)):
        ours = {(item.namespace, item.key) for item in await store.asearch(prefix)}
        assert ours == {(item.namespace, item.key) for item in await theirs.asearch(prefix)}
    for how in ({}, {"prefix": (text,)}, {"suffix": (text,)}, {"max_depth": 1}):
        assert await store.alist_namespaces(**how) == await theirs.alist_namespaces(**how)
    for namespace, key in items:
        await store.adelete(namespace, key)
        assert await store.aget(namespace, key) is None
    assert await store.asearch(()) == []


async def test_a_search_gives_the_last_updated_first_and_pages(store: LimpetStore) -> None:
    """Offset and limit go through the items once, by the time of their last put."""
    for number in range(7):
        await store.aput(("n",), str(number), {"number": number})
    await store.aput(("n",), "0", {"number": 0})
    pages = [await store.asearch(("n",), limit=3, offset=at) for at in (0, 3, 6)]
    found = [item.value["number"] for page in pages for item in page]
    assert found == [0, 6, 5, 4, 3, 2, 1]


async def test_a_put_keeps_the_time_of_creation_and_a_delete_ends_it(store: LimpetStore) -> None:
    """An item is created once, updated often, and gone when deleted."""
    await store.aput(("n",), "k", {"v": 1})
    first = await store.aget(("n",), "k")
    await store.aput(("n",), "k", {"v": 2})
    second = await store.aget(("n",), "k")
    assert first is not None
    assert second is not None
    assert second.created_at == first.created_at
    assert second.updated_at >= first.updated_at
    await store.adelete(("n",), "k")
    assert await store.aget(("n",), "k") is None


async def test_a_batch_is_one_commit(store: LimpetStore) -> None:
    """A batch with a value that cannot be stored changes nothing."""
    good, bad = PutOp(("n",), "a", {"v": 1}), PutOp(("n",), "b", {"v": object()})
    with pytest.raises(limpet.InvalidInput):
        await store.abatch([good, bad])
    assert await store.aget(("n",), "a") is None
    found = await store.abatch([good, GetOp(("n",), "a")])
    assert found == [None, None]  # reads see what was there before


async def test_an_item_expires_and_a_read_keeps_it(lp: limpet.Limpet, app: str) -> None:
    """The time to live begins again with a read that refreshes, and ends without one."""
    now = [1_000_000.0]
    store = LimpetStore(lp, collection=app, clock=lambda: now[0])
    await store.aput(("n",), "k", {"v": 1}, ttl=10)
    await store.aput(("n",), "kept", {"v": 1})
    now[0] += 9 * 60
    assert await store.aget(("n",), "k") is not None
    now[0] += 9 * 60
    assert await store.aget(("n",), "k", refresh_ttl=False) is not None
    now[0] += 2 * 60
    assert await store.aget(("n",), "k") is None
    assert [item.key for item in await store.asearch(("n",))] == ["kept"]


@pytest.mark.parametrize("ttl", ["an hour", float("inf"), float("nan"), True])
async def test_a_time_to_live_is_a_number_of_minutes(store: LimpetStore, ttl: Any) -> None:
    """Anything else is refused, and nothing is put."""
    with pytest.raises(limpet.InvalidInput, match="minutes"):
        await store.aput(("n",), "k", {"v": 1}, ttl=ttl)
    assert await store.aget(("n",), "k") is None


async def test_a_sweep_takes_out_what_expired_and_nothing_else(lp: limpet.Limpet, app: str) -> None:
    """The content of expired items goes; an item that was put again stays."""
    now = [1_000_000.0]
    store = LimpetStore(lp, collection=app, ttl={"default_ttl": 1}, clock=lambda: now[0])
    for key in ("old", "again"):
        await store.aput(("n",), key, {"v": 1})
    now[0] += 61
    await store.aput(("n",), "again", {"v": 2})
    assert await store.sweep() == 1
    assert [item.key for item in await store.asearch(("n",))] == ["again"]
    assert await store.sweep() == 0
    await store.aput(("n",), "old", {"v": 3})
    assert len(await store.asearch(("n",))) == 2


async def test_an_item_put_during_a_sweep_stays(url: str, app: str) -> None:
    """Between the look at an expired item and its removal another process puts it again."""
    if not url.startswith("sqlite"):
        pytest.skip("one store that two processes can open is enough")

    def clock() -> float:
        if armed:
            armed.clear()
            with LimpetStore.from_url(url, collection=app, clock=lambda: 1_000.0) as other:
                other.put(("n",), "k", {"v": "again"})
        return 1_000.0

    armed: list[int] = []
    async with LimpetStore.from_url(url, collection=app, clock=clock) as store:
        await store.aput(("n",), "k", {"v": 1}, ttl=-1)
        armed.append(1)
        assert await store.sweep() == 0
        found = await store.aget(("n",), "k")
        assert found is not None
        assert found.value == {"v": "again"}
