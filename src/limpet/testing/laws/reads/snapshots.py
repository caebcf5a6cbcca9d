"""Snapshots: any version is folded as it was, with snapshots on disk or without; and pins."""

from __future__ import annotations

import msgspec
import pytest

from limpet.errors import (
    InvalidInput,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
)
from limpet.model import Fold, Key, blank, replay
from limpet.store.protocol import Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load, refused
from limpet.testing.laws.log.facts import processed, timer

A = key("a")


async def long(store: Store) -> None:
    """Forty events of a few kilobytes, with labels, timers and inputs among them."""
    await store.commit([creation(A, {"n": 0, "log": []}, {"plan": "gold"})])
    for place in range(12):
        text = f"{place} " * 1_200
        await add(store, A, draft("tool.ran", {"text": text}, inc={"n": 1}, add={"log": [text]}))
        await add(store, A, draft("user.said"), timer(f"t{place % 3}", 5 + place))
        if place % 4 == 3:
            last = await store.pending_inputs(A, limit=2)
            await add(store, A, processed(*(event.seq for event in last)))


async def replayed(store: Store, of: Key) -> list[Fold]:
    """The fold after every event, from the log alone."""
    head = (await load(store, of, 0)).head
    fold = Fold(blank(of, head.uid, head.created_us))
    folds = [fold]
    for event in await store.read(of, after=0, limit=1_000, reverse=False, types=None):
        fold = replay(fold, event)
        folds.append(fold)
    return folds


class SnapshotLaws:
    async def test_any_version_is_folded_as_it_was(self, store: Store) -> None:
        """Fields, versions and facts after each event are those that the log has until there."""
        await long(store)
        folds = await replayed(store, A)
        for seq in range(1, len(folds)):
            assert await store.fold_at(A, seq) == folds[seq]
        last = (await load(store, A)).head
        assert folds[-1].head == last

    async def test_a_lease_is_of_now_and_not_of_then(self, store: Store) -> None:
        """A folded version says nothing about who runs the session."""
        await create(store, A)
        await add(store, A)
        assert (await store.fold_at(A, 1)).head.worker is None

    @pytest.mark.parametrize("seq", [0, -1, 3, 2**40])
    async def test_what_is_not_in_the_log_cannot_be_folded(self, store: Store, seq: int) -> None:
        """Neither before its first event nor after its last."""
        await create(store, A)
        await add(store, A)
        with pytest.raises(InvalidInput):
            await store.fold_at(A, seq)

    async def test_folding_what_is_gone_is_told(self, store: Store) -> None:
        """As a load is."""
        with pytest.raises(SessionNotFound):
            await store.fold_at(A, 1)
        await create(store, A)
        await store.delete(A)
        with pytest.raises(SessionDeleted):
            await store.fold_at(A, 1)
        await store.erase(A)
        with pytest.raises(SessionErased):
            await store.fold_at(A, 1)

    async def test_a_pin_is_written_with_its_commit(self, store: Store) -> None:
        """It changes nothing that can be read; a refused commit leaves none, and a number may be
        used for a later version."""
        await long(store)
        before = await load(store, A)
        pinned = msgspec.structs.replace(addition(A, draft(inc={"n": 1})), pin=1)
        (made,) = await store.commit([pinned])
        assert (made.head.version, made.fields["n"]) == (before.head.version + 1, 13)
        async with refused(store, SessionConflict):
            await store.commit([msgspec.structs.replace(addition(A, expect=1), pin=2)])
        await store.commit([msgspec.structs.replace(addition(A, draft(inc={"n": 1})), pin=1)])
        assert (await load(store, A)).fields["n"] == 14
        assert (await store.fold_at(A, made.head.version)).fields == made.fields
        folds = await replayed(store, A)
        assert [(await store.fold_at(A, seq)).fields["n"] for seq in (1, 20, len(folds) - 1)] == [
            folds[seq].fields["n"] for seq in (1, 20, len(folds) - 1)
        ]
        assert (await store.verify(None)).findings == ()

    async def test_pins_end_with_their_session(self, store: Store) -> None:
        """Deleted or erased: nothing of it is left to be found fault with."""
        for of, erase in ((A, False), (key("b"), True)):
            await store.commit([creation(of, {"n": 1})])
            await store.commit([msgspec.structs.replace(addition(of), pin=3)])
            await (store.erase(of) if erase else store.delete(of))
        assert (await store.verify(None)).findings == ()
