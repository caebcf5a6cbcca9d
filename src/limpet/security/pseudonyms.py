"""Pseudonyms: the audit names users and sessions by keyed hashes, which erasing makes final.

A log cannot be edited, and an erased user must be forgotten. So the audit never holds a name: it
holds HMAC-SHA256(key, name), and key and name stand in a log of their own that belongs to the user
or the session and is erased with it. Until then the hash is opened and the name is shown; an
export can show that a name fits. Afterwards nobody can tell whose hash it was, not by trying names
either: the key is gone.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from secrets import token_hex
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import SessionDeleted, SessionErased, SessionExists, SessionNotFound
from limpet.model import Commit, FrozenDict, Key, prepare
from limpet.model.facts.creation import created
from limpet.model.keys import AUDIT_NAMES, audit_name_of
from limpet.store.protocol import Committed, Query, Store

CommitAll: TypeAlias = Callable[[Sequence[Commit]], Awaitable[tuple[Committed, ...]]]
SYSTEM: Final = "system:audit"
_HASH: Final = "hash"
_KEY_BYTES: Final = 32
_GONE: Final = (SessionErased, SessionDeleted)


class Opening(msgspec.Struct, frozen=True):
    """A name with the key of its hash: HMAC-SHA256(key, name) is the hash."""

    name: str
    key: str
    hash: str


class Pseudonyms:
    """The keyed hashes of names in one store."""

    def __init__(self, store: Store, commit: CommitAll, new_id: Callable[[], str]) -> None:
        self._store, self._commit, self._new_id = store, commit, new_id

    async def of_user(self, app: str, user: str) -> str:
        """Return the hash of a user of an app. One who was erased and comes back has another."""
        for number in count(1):
            key = audit_name_of(app, user, "user", str(number))
            if (hash := await self._hash(key, user)) is not None:
                return hash
        raise AssertionError("the loop has no end")

    async def of_part(self, app: str, user: str, kind: str, text: str) -> str:
        """Return the hash of the id of a session, or of another name that belongs to a user. After
        it was erased: a hash that nothing opens."""
        hash = await self._hash(audit_name_of(app, user, kind, text), text)
        return keyed_hash(token_hex(_KEY_BYTES), text) if hash is None else hash

    async def opened(self, hash: str) -> Opening | None:
        """Return the name of a hash; None if it was erased."""
        query = Query(app=AUDIT_NAMES, labels=FrozenDict({_HASH: hash}))
        page = await self._store.heads(query, cursor=None, limit=1, states=True)
        for state in page.states.values():
            return _opening(state)
        return None

    async def _hash(self, key: Key, name: str) -> str | None:
        """Return the hash that is kept here, made if there is none; None if it was erased."""
        try:
            loaded = await self._store.load(key, tail=0, scopes=False)
        except _GONE:
            return None
        except SessionNotFound:
            return await self._make(key, name)
        return _opening(loaded.fields).hash

    async def _make(self, key: Key, name: str) -> str | None:
        secret = token_hex(_KEY_BYTES)
        hash = keyed_hash(secret, name)
        fields = {"name": name, "key": secret, _HASH: hash}
        fact = created(key, labels={_HASH: hash}, fields=fields)
        draft = prepare(fact, id=self._new_id(), actor=SYSTEM)
        try:
            await self._commit((Commit(key, (draft,), 0),))
        except SessionExists:  # another was faster
            return await self._hash(key, name)
        except _GONE:
            return None
        return hash


def keyed_hash(key: str, name: str) -> str:
    """Return HMAC-SHA256 of a name, in hex."""
    return hmac.digest(bytes.fromhex(key), name.encode(), "sha256").hex()


def _opening(fields: Mapping[str, Any]) -> Opening:
    return Opening(fields["name"], fields["key"], fields[_HASH])
