"""Shared names by their owners: going through them, and writing those of another key's owner."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet.errors import SessionConflict
from limpet.model import Commit, Key
from limpet.model.facts.creation import created
from limpet.model.facts.documents import copied, names_key
from limpet.store.protocol import Names, Store
from limpet.testing.commits import add, create, draft, load, ready, refused

ADA, BOB, SHOP = Key("bank", "ada", "1"), Key("bank", "bob", "1"), Key("shop", "ada", "1")


def listing_names(store: Store) -> Names:
    """The store, if it can go through its names."""
    if not isinstance(store, Names):
        pytest.skip("this store does not list its names")
    return store


def carrying(app: str, user: str, values: dict[str, Any]) -> Commit:
    """The commit by which a copy begins to write names of an owner."""
    key = names_key(app, user)
    drafts = (ready(created(key)), ready(copied(app, user, values)))
    guards = dict.fromkeys(values, 0)
    return Commit(key, drafts, 0, guards=guards, names_of=(app, user))


class NameLaws:
    async def test_owners_of_names_are_met_once_and_in_order(self, store: Store) -> None:
        """In pages of any size; of one app or of all; also after their sessions are gone."""
        names = listing_names(store)
        await create(store, ADA, {"app:a": 1, "user:a": 1, "own": 1})
        await create(store, BOB, {"user:b": 1})
        await create(store, SHOP, {"user:s": 1})
        await store.delete(BOB)
        whole = (("bank", ""), ("bank", "ada"), ("bank", "bob"), ("shop", "ada"))
        for size in (1, 2, 9):
            owners: list[tuple[str, str]] = []
            while page := await names.owners(
                None, after=owners[-1] if owners else None, limit=size
            ):
                owners += page
            assert tuple(owners) == whole
        assert await names.owners("bank", after=None, limit=9) == whole[:3]
        assert await names.owners("bank", after=("bank", "bob"), limit=9) == ()
        assert await names.owners("none", after=None, limit=9) == ()

    async def test_an_owner_has_its_own_names_and_no_others(self, store: Store) -> None:
        """The newest version of each, deleted ones too."""
        names = listing_names(store)
        await create(store, ADA, {"app:a": [1], "user:a": 1, "user:gone": 1, "own": 1})
        await add(store, ADA, draft(add={"app:a": [2]}), draft(delete=["user:gone"]))
        await add(store, ADA, draft(add={"app:a": ["x" * 9_000]}), draft(add={"app:a": [3]}))
        app, user = await names.names_of("bank", ""), await names.names_of("bank", "ada")
        assert {name: scope.value for name, scope in app.items()} == {
            "app:a": [1, 2, "x" * 9_000, 3]
        }
        assert (app["app:a"].version, set(user)) == (4, {"user:a", "user:gone"})
        assert (user["user:a"].value, user["user:gone"].deleted) == (1, True)
        assert await names.names_of("bank", "nobody") == {}

    async def test_a_commit_writes_the_names_of_the_owner_it_says(self, store: Store) -> None:
        """They are those of that app and user, and none of its own key's."""
        names = listing_names(store)
        await store.commit([carrying("bank", "ada", {"user:a": {"k": 1}})])
        await store.commit([carrying("bank", "", {"app:a": 2})])
        loaded = await create(store, ADA)
        assert {n: s.value for n, s in loaded.scopes.items()} == {"app:a": 2, "user:a": {"k": 1}}
        assert await names.owners("$names", after=None, limit=9) == ()
        assert (await store.verify(None)).findings == ()

    async def test_a_commit_that_creates_compares_its_guards_too(self, store: Store) -> None:
        """A name that is there by now refuses it whole."""
        await create(store, ADA, {"user:a": 1})
        commit = carrying("bank", "ada", {"user:a": 2, "user:b": 2})
        async with refused(store, SessionConflict) as info:
            await store.commit([commit])
        assert info.value.name == "user:a"  # type: ignore[attr-defined]
        seen = msgspec.structs.replace(commit, guards={"user:a": 1, "user:b": 0})
        await store.commit([seen])
        assert (await load(store, ADA)).scopes["user:a"].value == 2
        assert (await store.verify(None)).findings == ()
