"""Keys before bytes: a seal's owners are made ready before anything of theirs is sealed or opened.

A seal's keys may come from far away, so they are awaited where nobody waits for us: outside every
lock and every transaction. Who meets an owner that is not ready raises Unready, which ends the
transaction with nothing done; the store's entry point awaits the keys and does the call again.
Without a seal nothing of this costs anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from limpet.errors import SealUnavailable
from limpet.model import CREATED, Commit, Head, Key, scope_of
from limpet.store.protocol import KeyOwner, Place, Seal

OWNERS_MAX: Final = 65_536  # that are remembered as ready; then each is asked for once more

T = TypeVar("T")


class Awaited(Exception):  # no error of the tree: it never leaves the store
    """The seal has to be asked for something first. Raised before anything is changed."""


_OPEN_TO_WRITE: Final = "Open it with limpet.open(url, keys=…) to write"


def refuse_locked(where: str) -> None:
    """Raise SealUnavailable for a write to a store that is sealed and was opened without keys."""
    raise SealUnavailable([where], "it was opened without keys", advice=_OPEN_TO_WRITE)


class Unready(Awaited):
    """Keys of these owners are needed."""

    def __init__(self, owners: Iterable[KeyOwner]) -> None:
        self.owners = tuple(owners)
        super().__init__("keys are not ready")


class KeyRenewed(Exception):  # no error of the tree: a MarkingSeal says it to its Sealer
    """The keys of the owner have to be fetched: another process made one, or they were forgotten
    since they were ready."""


class Unforgotten(Awaited):
    """Owners are about to be erased, and their keys are still there."""

    def __init__(self, owners: Iterable[KeyOwner]) -> None:
        self.owners = tuple(owners)
        super().__init__("keys are not forgotten")


class Unavailable(Awaited):
    """Keys were needed during a read and are not available."""

    def __init__(self, error: SealUnavailable) -> None:
        self.error = error
        super().__init__(str(error))


class Sealer:
    """A seal, or none, and the owners whose keys it has at hand.

    `ready` and `forget` belong to the event loop; the rest may be called from any thread.
    """

    __slots__ = ("_lapsed", "_ready", "_seal")

    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal
        self._ready: set[KeyOwner] = set()
        # Of a MarkingSeal: the owners that it wants to be asked for again.
        self._lapsed: Callable[[], Sequence[KeyOwner]] | None = getattr(seal, "lapsed", None)

    @property
    def seals(self) -> bool:
        return self._seal is not None

    # --- before a transaction ------------------------------------------------------------------

    async def ready(self, owners: Iterable[KeyOwner]) -> None:
        """Await the keys of those that are not ready. Raises SealUnavailable."""
        if self._seal is None:
            return
        wanted = self.missing(owners)
        if not wanted:
            return
        try:
            await self._seal.ready(wanted)
        except Exception as error:  # a seal, which is not ours, may fail with anything
            raise SealUnavailable(wanted, repr(error)) from error
        if len(self._ready) + len(wanted) > OWNERS_MAX:
            self._ready.clear()
        self._ready.update(wanted)

    def doubt(self, owners: Iterable[KeyOwner] | None = None) -> None:
        """Have the keys of these owners, or of all, fetched once more before they are used: other
        processes may have renewed them. Does nothing unless the seal is a MarkingSeal."""
        if self._lapsed is not None:
            doubted = tuple(self._ready if owners is None else owners)
            self._seal.doubt(doubted)  # type: ignore[union-attr]  # it marks
            self._ready.difference_update(doubted)

    async def opening(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that may meet owners who are not ready: made again until none is."""
        while True:
            try:
                return await call()
            except Unready as needed:
                await self.ready(needed.owners)

    async def erasing(self, erase: Callable[[frozenset[KeyOwner]], Awaitable[T]]) -> T:
        """Forget first, then erase. `erase` is given the owners whose keys are gone, and raises
        Unforgotten if there is another."""
        gone: frozenset[KeyOwner] = frozenset()
        while True:
            try:
                erasure = await erase(gone)
            except Unforgotten as wanted:
                for owner in wanted.owners:
                    await self.forget(owner)
                gone |= {*wanted.owners}
                continue
            # A writer that raced may have had a key made; what it wrote went with the rest. The key
            # of a user stays: one who is back already writes with it. A session does not come back.
            for owner in gone:
                if not is_scope_owner(owner):
                    with suppress(SealUnavailable):
                        await self.forget(owner)
            return erasure

    async def forget(self, owner: KeyOwner) -> None:
        """Destroy the keys of an owner. Raises SealUnavailable."""
        assert self._seal is not None
        self._ready.discard(owner)
        try:
            await self._seal.forget(owner)
        except Exception as error:
            raise SealUnavailable([owner], repr(error), "destroy") from error
        finally:
            self._ready.discard(owner)  # a writer that raced found its keys at hand

    # --- inside one ----------------------------------------------------------------------------

    def missing(self, owners: Iterable[KeyOwner]) -> list[KeyOwner]:
        """Return those whose keys have to be awaited first."""
        if self._seal is None:
            return []
        ready = self._ready
        if self._lapsed is not None:
            ready.difference_update(self._lapsed())
        return [owner for owner in dict.fromkeys(owners) if owner not in ready]

    def is_ready(self, owner: KeyOwner) -> bool:
        """True if the keys of an owner are at hand."""
        return owner in self._ready

    def check(self, owner: KeyOwner) -> None:
        """Raise Unready unless the keys of an owner are at hand."""
        if owner not in self._ready:
            self._lack((owner,))

    def require_forgotten(self, owners: Iterable[KeyOwner], gone: frozenset[KeyOwner]) -> None:
        """Raise Unforgotten for those whose keys have not been destroyed yet, all at once."""
        left = [owner for owner in dict.fromkeys(owners) if owner not in gone]
        if self._seal is not None and left:
            raise Unforgotten(left)

    def require(self, owners: Iterable[KeyOwner]) -> None:
        """Raise Unready for those that are not ready, all at once."""
        if missing := self.missing(owners):
            self._lack(missing)

    def seal(self, plain: bytes, place: Place) -> bytes:
        """Seal a body. Raises what the seal raises, and Unready if the keys of the owner were
        forgotten since it was ready: see `check`."""
        assert self._seal is not None
        try:
            return self._seal.seal(plain, place)
        except KeyRenewed:
            self._renew(place.owner)
            return self._seal.seal(plain, place)

    def open(self, sealed: bytes, place: Place) -> bytes:
        """Open what `seal` sealed. Raises Unready if the owner has a key by now that is not at
        hand."""
        assert self._seal is not None
        try:
            return self._seal.open(sealed, place)
        except KeyRenewed:
            self._renew(place.owner)
            return self._seal.open(sealed, place)

    def mac(self, head: Head) -> bytes:
        """Return the MAC of a MarkingSeal. The session must be ready: see `check`. Raises Unready
        as `seal` does."""
        seal: Any = self._seal
        try:
            made: bytes = seal.mac(head)
        except KeyRenewed:
            self._renew(head.uid)
            made = seal.mac(head)
        return made

    def holds(self, head: Head, mac: bytes | None) -> bool:
        """True if `mac` made this MAC. Raises Unready if the session has a key by now that is
        not at hand."""
        seal: Any = self._seal
        try:
            return bool(seal.holds(head, mac))
        except KeyRenewed:
            self._renew(head.uid)
            return bool(seal.holds(head, mac))

    def _renew(self, owner: KeyOwner) -> None:
        self._ready.discard(owner)
        self._lack((owner,))

    def refuses_plain(self, place: Place) -> bool:
        """True if a plain body at this place is damage. The owner must be ready: see `check`.
        Raises Unready as `seal` does."""
        allows = getattr(self._seal, "allows_plain", None)  # of a MarkingSeal
        if allows is None:
            return False
        try:
            return not allows(place)
        except KeyRenewed:
            self._renew(place.owner)
            return not allows(place)

    def _lack(self, owners: Sequence[KeyOwner]) -> None:
        raise Unready(owners)


class WaitingSealer(Sealer):
    """A sealer for a thread beside the event loop, which may wait for keys.

    Not for one that holds a lock: it would keep others waiting for the keys too.
    """

    __slots__ = ("_asked", "_loop")

    def __init__(self, asked: Sealer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(asked._seal)
        self._ready, self._asked, self._loop = asked._ready, asked, loop

    def _lack(self, owners: Sequence[KeyOwner]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._asked.ready(owners), self._loop).result()
        except SealUnavailable as error:
            raise Unavailable(error) from error


@runtime_checkable
class Sealing(Protocol):
    """A store that may have a seal, which the files outside of it are sealed with too."""

    sealer: Sealer


async def forget_keys(store: object, owners: Iterable[KeyOwner]) -> None:
    """Destroy the keys of owners whose rows are about to be removed. Raises SealUnavailable."""
    if isinstance(store, Sealing) and store.sealer.seals:
        for owner in owners:
            await store.sealer.forget(owner)


# --- owners --------------------------------------------------------------------------------------


def scope_owner(app: str, user: str) -> KeyOwner:
    """The owner of app: names (no user) or of one user's user: names."""
    return msgspec.json.encode((app, user)).decode()


def is_scope_owner(owner: KeyOwner) -> bool:
    """True if it is that of names: the owner of a session's own is its uid."""
    return owner.startswith("[")


def owners_of(commits: Sequence[Commit], uid_of: Callable[[Key], str | None]) -> set[KeyOwner]:
    """Return the owners of what commits will write, as far as they are known before the plan.

    `uid_of` knows the uids of some sessions. A new one has the id of its first event. Whoever is
    missed here is met later, and costs one attempt more.
    """
    owners: set[KeyOwner] = set()
    for commit in commits:
        uid = uid_of(commit.key)
        if uid is None and commit.drafts[:1]:
            first = commit.drafts[0]
            uid = first.id if first.type == CREATED or commit.base is not None else None
        if uid is not None:
            owners.add(uid)
        for draft in commit.drafts:
            if draft.scoped:
                owners |= _scopes_of(commit.key, [str(op.path[0]) for op in draft.plain_ops])
    return owners


def _scopes_of(key: Key, names: list[str]) -> set[KeyOwner]:
    kinds = {scope_of(name) for name in names}
    owners = {"app": scope_owner(key.app, ""), "user": scope_owner(key.app, key.user)}
    return {owner for kind, owner in owners.items() if kind in kinds}
