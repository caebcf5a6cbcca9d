"""Forgetting a user: all sessions, deleted ones too, and every version of the user's names."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import SessionErased, SessionNotFound
from limpet.model import Key, owner_of
from limpet.store.protocol import Query, Store
from limpet.testing.commits import add, addition, create, draft, key, load, log, picture
from limpet.testing.histories import fork

A, B = key("a"), key("b")
BOB = key("a", user="bob")
ELSEWHERE = key("a", app="other")


async def two_users(store: Store) -> None:
    """Ada has sessions, a deleted one and names; Bob and another app have some too."""
    await create(store, A, {"user:lang": "en", "app:n": 1})
    await add(store, A, draft(set={"user:lang": "fr", "user:gone": 1}))
    await add(store, A, draft(delete=["user:gone"]))
    await create(store, B)
    await create(store, key("deleted"), {"x": 1})
    await store.delete(key("deleted"))
    await create(store, BOB, {"user:lang": "de"})
    await create(store, ELSEWHERE, {"user:lang": "it"})


class UserLaws:
    async def test_everything_of_a_user_is_forgotten(self, store: Store) -> None:
        """Sessions, tombstones and names; those of others, and what it wrote to app:, stay."""
        await two_users(store)
        before = {of: await load(store, of) for of in (BOB, ELSEWHERE)}
        done = await store.erase_user("shop", "ada")
        assert len(done.sessions) == done.user.version == 3
        assert (done.names, done.forks, done.user.forks_kept) == (2, (), 0)
        for of in (A, B, key("deleted")):
            with pytest.raises(SessionErased):
                await load(store, of)
            with pytest.raises(SessionErased):
                await store.commit([addition(of)])
        for of, was in before.items():
            assert await load(store, of) == was
        page = await store.heads(Query(app="shop", deleted=True), cursor=None, limit=9)
        assert page.items == ()
        assert (await load(store, BOB)).scopes["app:n"].value == 1
        assert (await store.verify(None)).findings == ()

    async def test_names_begin_again(self, store: Store) -> None:
        """A new session of the same user finds none, and their versions count from one."""
        await two_users(store)
        await store.erase_user("shop", "ada")
        made = await create(store, key("new"))
        assert {name for name in made.scopes if name.startswith("user:")} == set()
        made = await add(store, key("new"), draft(set={"user:lang": "x"}), guards={"user:lang": 0})
        assert made.scopes["user:lang"].version == 1
        assert (await store.verify(None)).findings == ()

    async def test_the_certificates_are_those_of_erased_sessions(self, store: Store) -> None:
        """Each session's own is what erasing it gives; the user's covers them."""
        await two_users(store)
        heads = [(await load(store, of)).head for of in (A, B)]
        done = await store.erase_user("shop", "ada")
        links = {certificate.link for certificate in done.sessions}
        assert {head.link for head in heads} < links
        assert await store.erase(A) in done.sessions
        assert done.user.key_hash not in {each.key_hash for each in done.sessions}

    async def test_forgetting_again_is_harmless(self, store: Store) -> None:
        """Nothing is left to forget: the certificate is the first one, until there is more."""
        await two_users(store)
        first = await store.erase_user("shop", "ada")
        again = await store.erase_user("shop", "ada")
        assert (again.user, again.sessions, again.names) == (first.user, (), 0)
        await create(store, key("new"), {"user:lang": "en"})
        more = await store.erase_user("shop", "ada")
        assert (len(more.sessions), more.names) == (1, 1)
        assert more.user != first.user
        assert (await store.verify(None)).findings == ()

    async def test_a_user_without_anything_has_a_certificate_too(self, store: Store) -> None:
        """Its certificate says that nothing was there."""
        done = await store.erase_user("shop", "nobody")
        assert (done.user.version, done.sessions, done.names) == (0, (), 0)
        assert (await store.erase_user("shop", "nobody")).user == done.user
        await create(store, key("a", user="nobody"))

    async def test_forks_of_others_keep_their_state(self, store: Store) -> None:
        """They are named; below their floor nothing is left to read."""
        await two_users(store)
        mine, theirs = key("fork"), key("fork", user="bob")
        await fork(store, mine, A, 2)
        await fork(store, theirs, A, 2, draft(set={"n": 1}))
        done = await store.erase_user("shop", "ada")
        assert (done.forks, done.user.forks_kept) == ((theirs,), 1)
        assert [event.removed for event in await log(store, theirs)] == [True] * 2 + [False] * 2
        assert (await load(store, theirs)).fields == {"n": 1}
        with pytest.raises(SessionErased):
            await load(store, mine)
        assert (await store.verify(None)).findings == ()

    async def test_documents_of_a_user_go_too(self, store: Store) -> None:
        """Those that reserved apps keep for this user, and no others."""
        await create(store, A)
        mine = Key("$memory", owner_of("shop", "ada"), "m")
        others = [Key("$memory", owner_of("shop", "bob"), "m"), Key("$memory", "ada", "m")]
        for of in (mine, *others):
            await create(store, of)
        done = await store.erase_user("shop", "ada")
        assert (len(done.sessions), len(done.logs), done.user.version) == (1, 1, 1)
        with pytest.raises(SessionErased):
            await load(store, mine)
        for of in others:
            assert (await load(store, of)).head.version == 1

    async def test_a_racing_writer_is_before_it_or_refused(self, store: Store) -> None:
        """Afterwards nothing that was acknowledged before the end is there."""
        await create(store, A)
        answers = await asyncio.gather(
            *(add(store, A, draft(set={"user:n": n})) for n in range(5)),
            store.erase_user("shop", "ada"),
            *(add(store, A, draft(set={"user:n": n})) for n in range(5)),
            return_exceptions=True,
        )
        for answer in answers:
            assert not isinstance(answer, BaseException) or type(answer) is SessionErased
        with pytest.raises(SessionErased):
            await load(store, A)
        assert await picture(store) == ()
        made = await create(store, B)
        assert made.scopes == {}
        assert (await store.verify(None)).findings == ()

    async def test_what_never_was_is_not_found_afterwards(self, store: Store) -> None:
        """A key that the user never had is as free as before."""
        await two_users(store)
        await store.erase_user("shop", "ada")
        with pytest.raises(SessionNotFound):
            await load(store, key("never"))
