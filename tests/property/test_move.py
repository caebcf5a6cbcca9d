"""adopt(export(x)) == x, for any log: through a file, from store to store, in pieces."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import limpet
from limpet import Draft, Key, Limpet, LimpetError
from limpet.session.move import adopter, import_export as files, transfer
from limpet.testing.histories import fork, recorded
from tests.property.strategies import drafts
from tests.support.examples import examples

A, FORK = Key("shop", "ada", "1"), Key("shop", "bob", "fork")
logs = st.lists(st.tuples(drafts(temp=False), st.booleans()), max_size=12)


async def begun(lp: Limpet, log: Sequence[tuple[dict[str, Any], bool]]) -> None:
    """A session with these events, as many as fit, and a fork of it."""
    s = await lp.create("shop", "ada", "1", state={"n": 1, "app:n": 2}, labels={"plan": "gold"})
    for made, is_input in log:
        draft = Draft(**{**made, "input": is_input, "actor": "test:move"})
        try:
            await s.append_many([draft])
        except LimpetError:
            continue
    await fork(lp._journal.store, FORK, A, max(1, s.version - 2))
    await lp.session(FORK).append("note.made", actor="test:move", set={"own": 1})


async def picture(lp: Limpet, key: Key) -> tuple[object, ...]:
    """All that a store says of a session, but for shared names."""
    store = lp._journal.store
    loaded = await store.load(key, tail=99, scopes=False)
    pending = await store.pending_inputs(key, limit=99)
    return loaded, await recorded(store, key), pending, (await store.verify(key)).findings


async def moved(log: Sequence[tuple[dict[str, Any], bool]], at: Path) -> None:
    url = f"sqlite:///{at}/there.db?sync=normal"
    async with (
        limpet.open("memory://") as one,
        limpet.open(url) as two,
        limpet.open("memory://") as three,
        limpet.open(f"sqlite:///{at}/file.db?sync=normal") as four,
    ):
        await begun(one, log)
        assert (await one.copy(to=two)).ok
        assert (await two.copy(to=three)).ok
        for key in (A, FORK):
            await two.export(key, at / f"{key.id}.limpet")
            assert await four.import_(at / f"{key.id}.limpet") == key
            assert await four.import_(at / f"{key.id}.limpet") == key
            was = await picture(one, key)
            for lp in (two, three, four):
                assert await picture(lp, key) == was
            again = at / f"{key.id}.again"
            await four.export(key, again)
            assert again.read_bytes() == (at / f"{key.id}.limpet").read_bytes()
        assert (await one.copy(to=two)).events == 0
        names = [await lp._journal.store.load(A, tail=0) for lp in (one, two, three)]
        values = [{n: v.value for n, v in n_.scopes.items() if not v.deleted} for n_ in names]
        assert values[0] == values[1] == values[2]


@examples(60)
@given(log=logs, size=st.integers(1, 5))
def test_what_was_moved_is_what_it_was(log: list[Any], size: int) -> None:
    """Memory to SQLite to memory, and through files into SQLite, in pieces of any size."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as at:
        for module in (adopter, files, transfer):
            patch.setattr(module, "PIECE_EVENTS", size)
        asyncio.run(moved(log, Path(at)))
