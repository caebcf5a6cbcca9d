"""Scopes: app: and user: names, shared by sessions, versioned one by one, never lost."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import OpPathUnknown, OpTypeMismatch, SessionConflict
from limpet.model import Key, ScopeValue, ops
from limpet.store.protocol import Store, scope_fields
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, refused

ADA1, ADA2 = key("1", user="ada"), key("2", user="ada")
BOB1 = key("1", user="bob")
ELSE1 = key("1", app="else", user="ada")


async def _seen(store: Store, of: Key) -> dict[str, object]:
    return scope_fields((await load(store, of)).scopes)


class ScopeLaws:
    async def test_app_names_are_shared_by_an_app_and_user_names_by_a_user(
        self, store: Store
    ) -> None:
        """Every session sees its app's and its user's names and nobody else's."""
        for each in (ADA1, ADA2, BOB1, ELSE1):
            await create(store, each)
        await add(store, ADA1, draft(set={"app:a": 1, "user:u": 2, "own": 3}))
        assert await _seen(store, ADA1) == {"app:a": 1, "user:u": 2}
        assert await _seen(store, ADA2) == {"app:a": 1, "user:u": 2}
        assert await _seen(store, BOB1) == {"app:a": 1}
        assert await _seen(store, ELSE1) == {}
        assert (await load(store, ADA2)).fields == {}

    async def test_scopes_are_no_session_fields(self, store: Store) -> None:
        """Fields and their versions belong to the session alone."""
        made = await create(store, ADA1, {"app:a": 1, "user:u": 2, "own": 3})
        assert (made.fields, made.versions) == ({"own": 3}, {"own": 1})

    async def test_a_new_session_finds_what_is_there(self, store: Store) -> None:
        """A creation is answered with every name the session sees, its own included."""
        await create(store, BOB1, {"app:a": 1, "user:u": "bob"})
        made = await create(store, ADA1, {"user:u": "ada"})
        assert scope_fields(made.scopes) == {"app:a": 1, "user:u": "ada"}

    async def test_a_commit_answers_with_the_names_it_changed(self, store: Store) -> None:
        """A later commit returns its own changes with their versions, and no others."""
        await create(store, ADA1, {"app:a": 1, "user:u": 1})
        made = await add(store, ADA1, draft(inc={"app:a": 1}))
        assert made.scopes == {"app:a": ScopeValue(2, 2)}

    async def test_different_names_never_overwrite_each_other(self, store: Store) -> None:
        """Writers of different names in one scope are merged per name."""
        await create(store, ADA1)
        await create(store, BOB1)
        await asyncio.gather(
            *(
                add(store, of, draft(set={f"app:{of.user}{n}": n}))
                for n in range(10)
                for of in (ADA1, BOB1)
            )
        )
        assert len(await _seen(store, ADA1)) == 20

    async def test_no_increment_of_a_shared_name_is_lost(self, store: Store) -> None:
        """Racing sessions of racing users add up."""
        keys = [key(str(n), user=f"u{n % 3}") for n in range(6)]
        for each in keys:
            await create(store, each)
        await asyncio.gather(
            *(add(store, of, draft(inc={"app:n": 1, "user:n": 1})) for of in keys * 5)
        )
        for each in keys:
            scopes = (await load(store, each)).scopes
            assert scopes["app:n"] == ScopeValue(30, 30)
            assert scopes["user:n"] == ScopeValue(10, 10)

    async def test_every_write_is_one_version(self, store: Store) -> None:
        """Versions count writes of the name, by whichever session, from 1."""
        await create(store, ADA1, {"user:u": 0})
        await create(store, ADA2)
        await add(store, ADA2, draft(set={"user:u": 5}))
        await add(store, ADA1, draft(inc={"user:u": 1}), draft(inc={"user:u": 1}))
        assert (await load(store, ADA2)).scopes == {"user:u": ScopeValue(4, 7)}

    async def test_ops_reach_into_a_shared_value(self, store: Store) -> None:
        """Paths and every kind of op work on app: and user: names as on fields."""
        await create(store, ADA1, {"app:plan": {"steps": [1, 2, 3]}})
        await add(
            store,
            ADA1,
            draft(ops=[ops.Cut(("app:plan", "steps"), 0, 1), ops.Add(("app:plan", "steps"), [4])]),
            draft(merge={"app:plan": {"done": False}}),
        )
        assert await _seen(store, ADA1) == {"app:plan": {"steps": [2, 3, 4], "done": False}}

    async def test_an_op_is_checked_on_the_newest_shared_value(self, store: Store) -> None:
        """Another session's write decides whether an op still fits."""
        await create(store, ADA1, {"app:n": 1})
        await create(store, BOB1)
        await add(store, BOB1, draft(set={"app:n": "text"}))
        async with refused(store, OpTypeMismatch):
            await add(store, ADA1, draft(set={"own": 1}), draft(inc={"app:n": 1}))

    async def test_a_deleted_name_is_gone_and_keeps_counting(self, store: Store) -> None:
        """Deletion is a version like any other; setting the name again continues the count."""
        await create(store, ADA1, {"user:u": 5})
        made = await add(store, ADA1, draft(delete=["user:u"]))
        assert made.scopes == {"user:u": ScopeValue(2, None, True)}
        assert await _seen(store, ADA1) == {}
        async with refused(store, OpPathUnknown):
            await add(store, ADA1, draft(delete=["user:u"]))
        again = await add(store, ADA1, draft(inc={"user:u": 1}))
        assert again.scopes == {"user:u": ScopeValue(3, 1)}

    async def test_a_none_is_a_value(self, store: Store) -> None:
        """Setting None stores None; only delete removes a name."""
        await create(store, ADA1, {"app:a": None, "own": None})
        loaded = await load(store, ADA1)
        assert scope_fields(loaded.scopes) == {"app:a": None}
        assert loaded.fields == {"own": None}

    async def test_temporary_names_are_never_stored(self, store: Store) -> None:
        """temp: names are in neither state, scopes nor the log."""
        await create(store, ADA1, {"temp:t": 1, "own": 1})
        await add(store, ADA1, draft(set={"temp:t": 2}))
        loaded = await load(store, ADA1)
        assert (loaded.fields, loaded.scopes) == ({"own": 1}, {})
        assert [op.path for event in await log(store, ADA1) for op in event.ops] == [("own",)]

    @pytest.mark.parametrize("ending", ["delete", "erase"])
    async def test_shared_names_outlive_their_writer(self, store: Store, ending: str) -> None:
        """Shared names keep a session's writes after the session is deleted."""
        await create(store, ADA1, {"app:a": 1, "user:u": 2})
        await create(store, ADA2)
        await (store.delete(ADA1) if ending == "delete" else store.erase(ADA1))
        assert await _seen(store, ADA2) == {"app:a": 1, "user:u": 2}
        made = await add(store, ADA2, draft(inc={"app:a": 1}))
        assert made.scopes == {"app:a": ScopeValue(2, 2)}

    async def test_a_guard_admits_the_version_it_names(self, store: Store) -> None:
        """0 stands for a name never written; a deletion counts as a version."""
        await create(store, ADA1)
        write = draft(set={"app:a": 1})
        await add(store, ADA1, write, guards={"app:a": 0, "user:u": 0})
        await add(store, ADA1, draft(delete=["app:a"]), guards={"app:a": 1})
        assert (await add(store, ADA1, guards={"app:a": 2})).head.version == 4

    @pytest.mark.parametrize("name", ["app:a", "user:a"])
    @pytest.mark.parametrize("version", [0, 1, 3])
    async def test_a_guard_refuses_any_other_version(
        self, store: Store, name: str, version: int
    ) -> None:
        """A name written by another session of the scope fails the guard."""
        await create(store, ADA1, {name: 1})
        await create(store, ADA2)
        await add(store, ADA2, draft(inc={name: 1}))
        async with refused(store, SessionConflict) as info:
            await add(store, ADA1, draft(set={name: 9}), guards={name: version})
        assert isinstance(info.value, SessionConflict)
        assert (info.value.name, info.value.expected, info.value.actual) == (name, version, 2)

    async def test_a_guard_looks_at_its_own_scope(self, store: Store) -> None:
        """Other names, other users and other apps do not disturb it."""
        for each in (ADA1, BOB1, ELSE1):
            await create(store, each)
        await add(store, BOB1, draft(set={"user:u": 1, "app:other": 1}))
        await add(store, ELSE1, draft(set={"app:a": 1, "user:u": 1}))
        made = await add(store, ADA1, guards={"user:u": 0, "app:a": 0})
        assert made.head.version == 2

    async def test_commits_of_one_call_see_each_others_shared_names(self, store: Store) -> None:
        """The second commit's ops, guards and creation see what the first one wrote."""
        await create(store, ADA1)
        await create(store, BOB1)
        _, second, third = await store.commit(
            [
                addition(ADA1, draft(inc={"app:n": 1})),
                addition(BOB1, draft(inc={"app:n": 1}), guards={"app:n": 1}),
                creation(ADA2),
            ]
        )
        assert second.scopes == {"app:n": ScopeValue(2, 2)}
        assert third.scopes == {"app:n": ScopeValue(2, 2)}
