"""Seals: what a store promises to one, and what a seal promises to a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, get_args, get_type_hints

import msgspec
import pytest

from limpet.errors import SealUnavailable, SessionErased
from limpet.model import Key
from limpet.store.coding.files import file_seal
from limpet.store.protocol import Committed, Feed, KeyOwner, Place, Query, Seal, Store
from limpet.testing.commits import ALL, add, create, draft, key, load, log, picture
from limpet.testing.seals import WatchedSeal

A, B = key("a"), key("b", user="bob")
_SECONDS_MAX: Final = 60  # for what happens at once, or never
STATE: Final = {"n": 0, "text": "x" * 2_000, "app:a": [1], "user:u": {"x": 1}}


class SealedStore(Store, Feed, Protocol):
    """A store with a feed that was opened with a seal."""


OpenSealed = Callable[[Seal], Awaitable[SealedStore]]
NewSeal = Callable[[], Seal]
_READS: Final[dict[str, Callable[[SealedStore], Awaitable[object]]]] = {
    "load": lambda store: load(store, A),
    "read": lambda store: log(store, A),
    "pending": lambda store: store.pending_inputs(A, limit=ALL),
    "states": lambda store: store.heads(Query(), cursor=None, limit=ALL, states=True),
    "changes": lambda store: store.changes(None, app=None, key=None, limit=ALL),
    "verify": lambda store: store.verify(None),
    "repeat": lambda store: add(store, A, draft(id="first")),
}


async def unreachable(owners: Sequence[KeyOwner]) -> None:
    """Fail as a key service that is down does."""
    raise ConnectionError("the key service does not answer")


async def filled(store: Store) -> None:
    """Two sessions with state, shared names, an input and an event whose id was given."""
    for each in (A, B):
        await create(store, each, STATE)
        await add(store, each, draft("user.said", {"text": "hi"}), draft(id="first", inc={"n": 1}))
        await add(store, each, draft(add={"app:a": [2]}))


class SealedLaws:
    """For stores that seal. `open_sealed` opens the suite's store, empty at first, as another
    process would; `new_seal` makes a seal on the same keys."""

    @pytest.mark.parametrize("read", _READS)
    async def test_keys_are_ready_before_anything_is_sealed_or_opened(
        self, open_sealed: OpenSealed, new_seal: NewSeal, read: str
    ) -> None:
        """By the process that wrote it, and by one that has no key at hand yet."""
        first, second = WatchedSeal(new_seal()), WatchedSeal(new_seal())
        store = await open_sealed(first)
        await filled(store)
        other = await open_sealed(second)
        assert _plain(await _READS[read](other)) == _plain(await _READS[read](store))
        assert first.early == second.early == []
        assert second.asked

    async def test_values_that_are_read_late_have_their_keys(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """app: and user: names are opened when somebody looks at them, and nobody waits then."""
        await filled(await open_sealed(new_seal()))
        watched = WatchedSeal(new_seal())
        loaded = await load(await open_sealed(watched), A)
        assert loaded.scopes["app:a"].value == [1, 2]
        assert loaded.scopes["user:u"].value == {"x": 1}
        assert watched.early == []

    async def test_a_session_of_another_process_is_written_with_its_keys(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """Its uid is learnt while the commit is planned; it is recorded once."""
        await filled(await open_sealed(new_seal()))
        watched = WatchedSeal(new_seal())
        other = await open_sealed(watched)
        drafts = [add(other, each, draft(inc={"n": 1})) for each in (A, B, A, B)]
        assert sorted([made.head.version for made in await asyncio.gather(*drafts)]) == [5, 5, 6, 6]
        assert (await load(other, A)).fields["n"] == 3
        assert watched.early == []

    async def test_an_owner_that_is_ready_is_not_asked_for_again(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """A new session is asked for by the id of its first event, and costs nothing after that."""
        watched = WatchedSeal(new_seal())
        store = await open_sealed(watched)
        made = await create(store, A)
        assert watched.asked == [made.head.uid] == [made.events[0].id]
        for _ in range(3):
            await add(store, A)
            await load(store, A)
            await log(store, A)
        assert watched.asked == [made.head.uid]

    async def test_the_files_of_its_sessions_are_sealed_with_the_same_keys(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """The store lends its sealer to archives and tiers, which would be in plain text else."""
        watched = WatchedSeal(new_seal())
        file = file_seal(await open_sealed(watched), "archive", "uid", "a/b")
        await file.ready()
        assert (file.seals, watched.asked) == (True, ["uid"])
        assert file.opened(file.sealed(b"text")) == b"text" != file.sealed(b"text")

    async def test_without_keys_nothing_is_written(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """The error says so and why; when the keys are back the same draft is recorded, once."""
        store = await open_sealed(new_seal())
        await filled(store)
        before = await picture(store)
        watched = WatchedSeal(new_seal())
        other = await open_sealed(watched)
        watched.before_ready = unreachable
        note = draft(id="mine", inc={"n": 1})
        for attempt in (add(other, A, note), create(other, key("new"), STATE)):
            with pytest.raises(SealUnavailable, match=r"key service does not answer.*nothing was"):
                await attempt
        assert await picture(store) == before
        watched.before_ready = WatchedSeal(new_seal()).before_ready
        assert [(await add(other, A, note)).head.version for _ in range(2)] == [5, 5]
        assert (await store.verify(None)).ok

    @pytest.mark.parametrize("read", [name for name in _READS if name != "repeat"])
    async def test_without_keys_nothing_is_taken_for_damage(
        self, open_sealed: OpenSealed, new_seal: NewSeal, read: str
    ) -> None:
        """The read fails as a whole, and is whole when the keys are back."""
        store = await open_sealed(new_seal())
        await filled(store)
        watched = WatchedSeal(new_seal())
        other = await open_sealed(watched)
        usual, watched.before_ready = watched.before_ready, unreachable
        with pytest.raises(SealUnavailable):
            await _READS[read](other)
        watched.before_ready = usual
        assert await _READS[read](other) == await _READS[read](store)

    async def test_nobody_waits_for_the_keys_of_another(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """While keys are fetched no lock is held and no transaction is open."""
        store = await open_sealed(new_seal())
        await filled(store)
        late = (await load(store, A)).head.uid
        asked, answered = asyncio.Event(), asyncio.Event()

        async def wait(owners: Sequence[KeyOwner]) -> None:
            if late in owners:
                asked.set()
                await answered.wait()

        watched = WatchedSeal(new_seal())
        watched.before_ready = wait
        other = await open_sealed(watched)
        slow = asyncio.ensure_future(add(other, A, draft(inc={"n": 1})))
        async with asyncio.timeout(_SECONDS_MAX):
            await asked.wait()
        for writer in (other, store):
            await add(writer, B)
            await create(writer, key(f"new-{id(writer)}"))
        await add(store, A)
        assert not slow.done()
        answered.set()
        assert (await slow).head.version == 6

    async def test_erase_forgets_the_keys_first(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """While they are destroyed the session is still there; then its rows go."""
        watched = WatchedSeal(new_seal())
        store = await open_sealed(watched)
        await filled(store)
        uid = (await load(store, A)).head.uid
        seen: list[int | None] = []

        async def look(owners: Sequence[KeyOwner]) -> None:
            assert list(owners) == [uid]
            seen.append(await _version(store, A))

        watched.before_forget = look
        proof = await store.erase(A)
        assert seen[0] == 4
        assert set(watched.forgotten) == {uid}
        assert await store.erase(A) == proof is not None
        assert (await load(store, B)).damaged == ()
        assert (await store.verify(None)).ok

    async def test_keys_that_a_racing_writer_had_made_are_forgotten_too(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """Somebody writes between the destruction of the keys and the removal of the rows."""
        watched = _RacedSeal(new_seal())
        watched.store = store = await open_sealed(watched)
        uid = (await create(store, A)).head.uid
        assert await store.erase(A) is not None
        assert watched.forgotten == [uid, uid]
        assert watched.asked == [uid, uid]

    async def test_a_deleted_session_is_forgotten_too(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """Its tombstone knows whose keys they are."""
        watched = WatchedSeal(new_seal())
        store = await open_sealed(watched)
        made = await create(store, A)
        await store.delete(A)
        assert watched.forgotten == []
        assert await store.erase(A) is not None
        assert made.head.uid in watched.forgotten

    async def test_keys_that_cannot_be_forgotten_keep_the_session(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """Nothing is erased, and the next attempt erases it."""
        watched = WatchedSeal(new_seal())
        store = await open_sealed(watched)
        await filled(store)
        usual, watched.before_forget = watched.before_forget, unreachable
        before = await picture(store)
        with pytest.raises(SealUnavailable, match="nothing was erased"):
            await store.erase(A)
        assert await picture(store) == before
        watched.before_forget = usual
        assert await store.erase(A) is not None

    async def test_an_erasure_that_was_cut_short_is_done_again(
        self, open_sealed: OpenSealed, new_seal: NewSeal
    ) -> None:
        """Keys gone and rows still there: no body opens, and erase comes to its end."""
        seal = new_seal()
        store = await open_sealed(seal)
        await filled(store)
        uid = (await load(store, A)).head.uid
        await seal.forget(uid)
        other = await open_sealed(seal)
        assert all([event.damage for event in await log(other, A)])
        assert not any([event.damage for event in await log(other, B)])
        assert await other.erase(A) is not None
        with pytest.raises(SessionErased):
            await load(other, A)


class _RacedSeal(WatchedSeal):
    """Has a session written to as soon as its keys are destroyed for the first time."""

    store: Store

    async def forget(self, owner: KeyOwner) -> None:
        await super().forget(owner)
        if len(self.forgotten) == 1:
            await add(self.store, A)


async def _version(store: Store, of: Key) -> int | None:
    """The session's version; None once it is erased."""
    try:
        return (await store.load(of, tail=0, scopes=False)).head.version
    except SessionErased:
        return None


_PLACE: Final = Place("event", "owner", "id", "note.made")
_ELSEWHERE: Final = [
    *[Place(kind, "owner", "id", "note.made") for kind in get_args(get_type_hints(Place)["kind"])],
    Place("event", "other", "id", "note.made"),
    Place("event", "owner", "other", "note.made"),
    Place("event", "owner", "id", "note.read"),
    Place("event", "owner", "idnote", ".made"),
]


class SealLaws:
    """For seals. `new_seal` makes one on keys that it shares with the others."""

    @pytest.mark.parametrize("plain", [b"", b"x", b"x" * 100_000], ids=len)
    async def test_what_is_sealed_opens_in_its_place(self, new_seal: NewSeal, plain: bytes) -> None:
        """With the seal that sealed it, and with another on the same keys."""
        one, other = new_seal(), new_seal()
        for seal in (one, other):
            await seal.ready([_PLACE.owner])
            await seal.ready([_PLACE.owner])
        sealed = one.seal(plain, _PLACE)
        assert one.open(sealed, _PLACE) == other.open(sealed, _PLACE) == plain

    @pytest.mark.parametrize("place", [p for p in _ELSEWHERE if p != _PLACE], ids=str)
    async def test_bytes_sealed_for_one_place_open_nowhere_else(
        self, new_seal: NewSeal, place: Place
    ) -> None:
        """Not as another kind, not for another owner, id or type."""
        seal = new_seal()
        await seal.ready([_PLACE.owner, place.owner])
        sealed = seal.seal(b"text", _PLACE)
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever a seal raises
            seal.open(sealed, place)

    async def test_a_changed_byte_does_not_open(self, new_seal: NewSeal) -> None:
        """Wherever it is: format, key number, nonce or text."""
        seal = new_seal()
        await seal.ready([_PLACE.owner])
        sealed = seal.seal(b"text", _PLACE)
        for at in range(len(sealed)):
            changed = bytearray(sealed)
            changed[at] ^= 1
            with pytest.raises(Exception):  # noqa: B017, PT011  # whatever a seal raises
                seal.open(bytes(changed), _PLACE)

    async def test_the_same_text_is_never_sealed_alike(self, new_seal: NewSeal) -> None:
        """Equal bodies cannot be told from their bytes."""
        seal = new_seal()
        await seal.ready([_PLACE.owner])
        assert len({seal.seal(b"text", _PLACE) for _ in range(100)}) == 100

    async def test_what_was_forgotten_opens_no_more(self, new_seal: NewSeal) -> None:
        """Also after a new key was made; others' bytes do, and forgetting twice is fine."""
        seal, other = new_seal(), Place("event", "other", "id")
        await seal.ready([_PLACE.owner, other.owner])
        sealed, theirs = seal.seal(b"text", _PLACE), seal.seal(b"text", other)
        await seal.forget(_PLACE.owner)
        await seal.forget(_PLACE.owner)
        await seal.ready([_PLACE.owner])
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever a seal raises
            seal.open(sealed, _PLACE)
        assert seal.open(theirs, other) == b"text"
        assert seal.open(seal.seal(b"new", _PLACE), _PLACE) == b"new"


def _plain(answer: Any) -> Any:
    """An answer without the token of its commit, which is each commit's own."""
    if isinstance(answer, Committed):
        return msgspec.structs.replace(answer, token="")
    return answer
