"""Laws of histories: a log that begins on a state goes on as the whole one would, an adopted log is
the one it was, and any version is what its events make of it. On memory and on SQLite."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from limpet import Draft, InvalidInput, Key, LimpetError, SessionConflict, SessionNotFound
from limpet.model.commit import Commit
from limpet.model.events import Prepared, prepare
from limpet.model.fold import Fold, replay
from limpet.model.head import blank
from limpet.store.memory import MemoryStore
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, creation, draft, load, log
from limpet.testing.histories import adoption, fork, plain, recorded
from tests.property.strategies import drafts
from tests.support.examples import examples

ACTOR = "test:histories"
WHOLE, PARENT, CHILD, GRANDCHILD = (Key("shop", "ada", id) for id in "wpcg")
STORES = pytest.mark.parametrize("kind", ["memory", "sqlite"])
logs = st.lists(drafts(temp=False), min_size=1, max_size=12)
numbers = st.integers(0, 100)


def on(kind: str, law: Callable[[Any], Awaitable[None]]) -> None:
    """Hold an empty store to a law."""

    async def run() -> None:
        if kind == "memory":
            await law(MemoryStore())
            return
        with tempfile.TemporaryDirectory() as folder:
            store = await SQLiteStore.open(Path(folder) / "a.db", sync="off")
            try:
                await law(store)
            finally:
                await store.close()

    asyncio.run(run())


def prepared(made: list[dict[str, Any]]) -> list[Prepared]:
    """Drafts that may be recorded more than once, in different sessions, and write no names that
    sessions share: these are one for all of them."""
    found = []
    for number, each in enumerate(made):
        try:
            ready = prepare(Draft(**each), id=f"auto-{number}", actor=ACTOR)
        except LimpetError:
            continue
        if not ready.scoped:
            found.append(ready)
    return found


async def told(store: Any, of: Key, steps: list[Prepared]) -> list[Prepared]:
    """Record each step that the state admits; those that were."""
    kept = []
    for step in steps:
        try:
            if not (await add(store, of, step)).repeated:
                kept.append(step)
        except InvalidInput:
            continue
    return kept


def split(steps: list[Prepared], at: int) -> tuple[list[Prepared], list[Prepared]]:
    place = at % (len(steps) + 1)
    return steps[:place], steps[place:]


@STORES
@examples(60)
@given(made=logs, one=numbers, two=numbers)
def test_a_state_and_what_follows_it_fold_as_the_whole_log(
    kind: str, made: list[dict[str, Any]], one: int, two: int
) -> None:
    """However the log is divided between a session, its fork, and a fork of that."""

    async def law(store: Any) -> None:
        await create(store, WHOLE)
        steps = await told(store, WHOLE, prepared(made))
        mine, rest = split(steps, one)
        theirs, last = split(rest, two)
        await create(store, PARENT)
        await told(store, PARENT, mine)
        floor = 1 + len(mine)
        await fork(store, CHILD, PARENT, floor)
        assert await told(store, CHILD, theirs) == theirs
        await fork(store, GRANDCHILD, CHILD, floor + 1 + len(theirs))
        assert await told(store, GRANDCHILD, last) == last
        assert await told(store, CHILD, last) == last
        whole = await load(store, WHOLE)
        for of, more in ((CHILD, 1), (GRANDCHILD, 2)):
            found = await load(store, of)
            assert found.fields == whole.fields
            assert found.head.version == whole.head.version + more
            own = [event for event in await log(store, of) if event.type != "session.forked"]
            assert [event.data for event in own[1:]] == [step.data for step in steps]
        assert (await store.verify(None)).findings == ()

    on(kind, law)


@STORES
@examples(60)
@given(
    made=logs,
    pieces=st.lists(st.tuples(numbers, st.integers(0, 6), st.booleans()), max_size=8),
)
def test_an_adopted_log_is_the_one_it_was(
    kind: str, made: list[dict[str, Any]], pieces: list[tuple[int, int, bool]]
) -> None:
    """In pieces, repeated, overlapping, out of order: each is taken as it is or refused whole, so
    there is never anything but a beginning of the source, and in the end all of it."""

    async def law(store: Any) -> None:
        source = MemoryStore()
        await source.commit([creation(WHOLE, {"n": 0, "app:n": 1})])
        for each in made:
            try:
                await add(source, WHOLE, prepare(Draft(**each), id=draft().id, actor=ACTOR))
            except InvalidInput:
                continue
        records = await recorded(source, WHOLE)
        whole, have = plain(await log(source, WHOLE)), 0
        for start, size, backwards in pieces:
            begin = start % len(records)
            piece = records[begin : begin + size][:: -1 if backwards else 1]
            if not piece:
                continue
            try:
                (answer,) = await store.commit([adoption(WHOLE, piece)])
                have = max(have, answer.head.version)
            except (SessionConflict, SessionNotFound):
                assert begin > have or backwards
            if have:
                assert plain(await log(store, WHOLE)) == whole[:have]
        await store.commit([adoption(WHOLE, records)])
        assert await recorded(store, WHOLE) == records
        was, now = await load(source, WHOLE), await load(store, WHOLE)
        assert (now.head, now.fields, now.versions) == (was.head, was.fields, was.versions)
        assert now.scopes == {}
        assert (await store.verify(None)).findings == ()

    on(kind, law)


@STORES
@examples(60)
@given(made=logs, pins=st.sets(st.integers(0, 12), max_size=4))
def test_any_version_is_what_its_events_make_of_it(
    kind: str, made: list[dict[str, Any]], pins: set[int]
) -> None:
    """With pinned snapshots anywhere on the way, and after the store forgot all it knew."""

    async def law(store: Any) -> None:
        head = (await create(store, WHOLE)).head
        for number, each in enumerate(prepared(made)):
            try:
                pin = number if number in pins else None
                await store.commit([Commit(WHOLE, (each,), pin=pin)])
            except InvalidInput:
                continue
        fold = Fold(blank(WHOLE, head.uid, head.created_us))
        for event in await log(store, WHOLE):
            fold = replay(fold, event)
            assert await store.fold_at(WHOLE, event.seq) == fold
        now = await load(store, WHOLE)
        assert (now.head, now.fields, now.versions) == (fold.head, fold.fields, fold.versions)

    on(kind, law)
