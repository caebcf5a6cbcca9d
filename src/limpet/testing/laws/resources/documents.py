"""Documents: what a store does with logs of reserved apps, which are not users' sessions."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.errors import SessionDeleted, SessionExists
from limpet.model import Commit, Key, owner_of
from limpet.model.facts.documents import document_created, document_deleted, document_put
from limpet.store.leases import LeaseStore
from limpet.store.protocol import Query
from limpet.testing.commits import ALL, create, draft, key, load, ready
from limpet.testing.laws.reads.feed import FeedStore
from limpet.testing.leases import claim, due

A = key("a")


class DocumentStore(FeedStore, LeaseStore):
    """A store with a feed and leases, as all of ours are."""


def of(name: str, *, app: str = "$agents", user: str = "*") -> Key:
    return Key(app, user, name)


def made(at: Key, value: Any, *, reuse: bool = False) -> Commit:
    first = ready(document_created(at, value, actor="user:ada"))
    return Commit(at, (first,), 0, reuse=reuse)


def put(at: Key, value: Any, expect: int | None = None) -> Commit:
    return Commit(at, (ready(document_put(value, actor="user:ada")),), expect)


class DocumentLaws:
    """For stores with a feed and leases."""

    async def test_a_put_keeps_the_value_once(self, store: DocumentStore) -> None:
        """State takes it from the data of the event, which is what the log keeps."""
        value = {"text": "x" * 5_000}
        for commit in (made(of("a"), value), put(of("a"), value)):
            (answer,) = await store.commit([commit])
            assert answer.fields == {"value": value, "actor": "user:ada"}
            assert len(commit.drafts[0].raw) < 6_000
        assert (await load(store, of("a"))).head.version == 2

    async def test_reserved_apps_are_left_out_unless_named(self, store: DocumentStore) -> None:
        """Of lists, of deleted sessions, of the feed and of claims; named, they are there."""
        await due(store, A)
        await store.commit([made(of("a"), 1), made(of("gone"), 1)])
        await store.commit([Commit(of("a"), (draft("user.said"),))])
        await store.delete(of("gone"))
        heads = (await store.heads(Query(), cursor=None, limit=ALL)).items
        assert [head.key for head in heads] == [A]
        every = (await store.heads(Query(reserved=True), cursor=None, limit=ALL)).items
        assert {head.key for head in every} == {A, of("a")}
        named = (await store.heads(Query(app="$agents"), cursor=None, limit=ALL)).items
        assert [head.key for head in named] == [of("a")]
        dead = Query(deleted=True)
        assert (await store.heads(dead, cursor=None, limit=ALL)).items == ()
        assert {lease.key for lease in await claim(store)} == {A}
        assert {lease.key for lease in await claim(store, app="$agents")} == {of("a")}

    async def test_the_feed_has_documents_only_if_asked(self, store: DocumentStore) -> None:
        """Without an app it has none of them, by its app or its key it has all."""
        await store.commit([made(of("a"), 1)])
        await create(store, A)
        await store.commit([put(of("a"), 2)])
        asked: list[tuple[str | None, Key | None, list[Key]]] = [
            (None, None, [A]),
            ("$agents", None, [of("a")] * 2),
            (None, of("a"), [of("a")] * 2),
        ]
        for app, one, expected in asked:
            keys: list[Key] = []
            after = None
            while len(keys) < len(expected):
                entries, after = await store.changes(after, app=app, key=one, limit=ALL)
                keys += [entry.key for entry in entries]
            assert keys == expected

    async def test_names_are_listed_in_order_by_prefix(self, store: DocumentStore) -> None:
        """With their values, from one instant, page by page."""
        names = ["b/2", "a", "b/1", "b", "c", "é", "B"]
        await store.commit([made(of(name), name.upper()) for name in names])
        await store.commit([made(of("b/0", user=owner_of("shop", "ada")), 1)])

        async def listed(prefix: str) -> list[tuple[str, Any]]:
            query = Query(app="$agents", user="*", order="key", reverse=False, prefix=prefix)
            met: list[tuple[str, Any]] = []
            cursor = None
            while True:
                page = await store.heads(query, cursor=cursor, limit=2, states=True)
                met += [(h.key.id, page.states[h.key]["value"]) for h in page.items]
                cursor = page.cursor
                if cursor is None:
                    return met

        assert [name for name, _ in await listed("")] == sorted(names)
        assert await listed("b/") == [("b/1", "B/1"), ("b/2", "B/2")]
        assert await listed("x") == []

    async def test_a_name_is_used_again_after_a_delete(self, store: DocumentStore) -> None:
        """If asked to; a living one is never replaced by it."""
        for turn in range(3):
            await store.commit([made(of("a"), turn, reuse=True), made(of(f"b{turn}"), 1)])
            with pytest.raises(SessionExists):
                await store.commit([made(of("a"), "late", reuse=True)])
            await store.commit([put(of("a"), turn)])
            assert (await load(store, of("a"))).head.version == 2
            await store.delete(of("a"))
            with pytest.raises(SessionDeleted):
                await store.commit([put(of("a"), 1)])
            with pytest.raises(SessionDeleted):
                await store.commit([made(of("a"), 1)])
        assert (await store.verify(None)).ok

    async def test_a_deletion_is_an_event_that_leaves_no_fields(self, store: DocumentStore) -> None:
        """Its log stays, a page of states shows it empty, and the next put goes on after it."""
        await store.commit([made(of("a"), 1)])
        gone = ready(document_deleted(actor="user:ada"))
        (answer,) = await store.commit([Commit(of("a"), (gone,), 1)])
        assert answer.fields == {}
        query = Query(app="$agents", user="*", order="key", reverse=False)
        page = await store.heads(query, cursor=None, limit=ALL, states=True)
        assert [(head.version, page.states[head.key]) for head in page.items] == [(2, {})]
        await store.commit([put(of("a"), 2, 2)])
        assert (await load(store, of("a"))).fields["value"] == 2
        assert (await store.verify(None)).ok

    async def test_a_put_and_an_event_are_one_commit(self, store: DocumentStore) -> None:
        """If one of the two is refused, so is the other."""
        await create(store, A)
        note = Commit(A, (draft(),))
        await store.commit([note, made(of("a"), 1)])
        for refused in ([note, made(of("a"), 2)], [note, put(of("b"), 2)]):
            with pytest.raises((SessionExists, LookupError)):
                await store.commit(refused)
        assert (await load(store, A)).head.version == 2
        assert (await load(store, of("a"))).fields["value"] == 1

    async def test_a_user_is_erased_with_what_that_user_owns(self, store: DocumentStore) -> None:
        """Documents of other users, of other apps and of the whole store stay."""
        mine = of("x", app="$memory", user=owner_of("shop", "ada"))
        others = [
            of("x", app="$memory", user=owner_of(*pair))
            for pair in (("shop", "bob"), ("shop/ada", "x"), ("other", "ada"))
        ]
        others.append(of("x", app="$memory"))
        await store.commit([made(at, "tea") for at in (mine, *others)])
        await store.commit([made(of("y", user=mine.user), 1)])
        erasures = await store.erase_user("shop", "ada")
        assert (len(erasures.sessions), len(erasures.logs)) == (0, 2)
        every = (await store.heads(Query(reserved=True), cursor=None, limit=ALL)).items
        assert {head.key for head in every} == set(others)
        assert (await store.verify(None)).ok
