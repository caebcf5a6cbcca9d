"""Delete and erase: no late writer can undo them."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import LimpetError, SessionDeleted, SessionErased
from limpet.store.protocol import Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load, refused

A, B = key("a"), key("b")


async def _end(store: Store, ending: str) -> None:
    await (store.delete(A) if ending == "delete" else store.erase(A))


ENDINGS = pytest.mark.parametrize(
    ("ending", "error"), [("delete", SessionDeleted), ("erase", SessionErased)]
)


class EndLaws:
    async def test_delete_says_whether_there_was_something(self, store: Store) -> None:
        """True for a live session, False for one that is gone or never existed."""
        await create(store, A)
        assert await store.delete(A) is True
        assert await store.delete(A) is False
        assert await store.delete(B) is False

    @ENDINGS
    async def test_a_late_write_is_an_error(
        self, store: Store, ending: str, error: type[LimpetError]
    ) -> None:
        """No append, retry or creation brings a session back, on any condition."""
        await create(store, A)
        await add(store, A, draft(id="x"))
        await _end(store, ending)
        for late in (
            addition(A),
            addition(A, draft(id="x")),
            addition(A, expect=2),
            addition(A, expect=7),
            creation(A),
        ):
            async with refused(store, error):
                await store.commit([late])

    @ENDINGS
    async def test_a_commit_with_one_ended_session_records_nothing(
        self, store: Store, ending: str, error: type[LimpetError]
    ) -> None:
        """The live sessions of the commit stay unchanged."""
        await create(store, A)
        await create(store, B)
        await _end(store, ending)
        async with refused(store, error):
            await store.commit([addition(B, draft(set={"app:a": 1})), addition(A)])

    @ENDINGS
    async def test_an_end_concerns_one_key(
        self, store: Store, ending: str, error: type[LimpetError]
    ) -> None:
        """The same id under another user or app lives on and can be created."""
        other = key("a", user="bob")
        await create(store, A)
        await create(store, other)
        await _end(store, ending)
        assert (await load(store, other)).head.version == 1
        assert (await create(store, key("a", app="else"))).head.version == 1

    async def test_erase_leaves_a_certificate(self, store: Store) -> None:
        """It has the session's last version, and erasing again returns it again."""
        await create(store, A)
        head = (await add(store, A)).head
        certificate = await store.erase(A)
        assert certificate is not None
        assert (certificate.version, certificate.link) == (2, head.link)
        assert certificate.erased_us >= head.updated_us
        assert await store.erase(A) == certificate
        assert await store.erase(B) is None
        assert await store.delete(A) is False

    async def test_a_deleted_session_can_still_be_erased(self, store: Store) -> None:
        """Erasing after deleting gives the same certificate as erasing directly."""
        await create(store, A)
        head = (await add(store, A)).head
        await store.delete(A)
        certificate = await store.erase(A)
        assert certificate is not None
        assert (certificate.version, certificate.link) == (2, head.link)
        with pytest.raises(SessionErased):
            await load(store, A)

    async def test_certificates_of_different_sessions_differ(self, store: Store) -> None:
        """A certificate belongs to one key."""
        await create(store, A)
        await create(store, B)
        one, two = await store.erase(A), await store.erase(B)
        assert one is not None
        assert two is not None
        assert one.key_hash != two.key_hash

    async def test_a_commit_racing_a_delete_is_before_it_or_refused(self, store: Store) -> None:
        """However they race, each commit is answered, and afterwards the session is gone."""
        for turn in range(10):
            of = key(f"race{turn}")
            await create(store, of)
            *commits, deleted = await asyncio.gather(
                *(add(store, of) for _ in range(turn)),
                store.delete(of),
                return_exceptions=True,
            )
            assert deleted is True
            for answer in commits:
                assert not isinstance(answer, BaseException) or type(answer) is SessionDeleted
            with pytest.raises(SessionDeleted):
                await load(store, of)

    async def test_one_of_racing_deletes_wins(self, store: Store) -> None:
        """Exactly one caller learns that it deleted the session."""
        await create(store, A)
        answers = await asyncio.gather(*(store.delete(A) for _ in range(5)))
        assert sorted(answers) == [False] * 4 + [True]

    async def test_ended_sessions_verify(self, store: Store) -> None:
        """Tombstones and certificates are not findings and are not counted as sessions."""
        for of in (A, B, key("c")):
            await create(store, of)
        await store.delete(A)
        await store.erase(B)
        report = await store.verify(None)
        assert report.ok
        assert (report.sessions, report.events) == (1, 1)
