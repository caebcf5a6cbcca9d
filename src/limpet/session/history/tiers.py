"""Tiers: where checkpoints are kept besides the store, if a policy names a directory or a bucket.

Each checkpoint then has a file there: its state as an envelope, or, of an incremental one, the diff
from the full one before it. A file is durable before its checkpoint is recorded, and its name is
never used again. It is read where the store cannot give the state that a checkpoint names. Files go
with their checkpoints, and with their session and its user. The log of an imported session says
where its files are, and whoever made it may have written anything there: only what lies in the
session's own folder, in a tier that a policy of this store has named, is read or removed. With a
seal a file is sealed with the keys of its session, and opens as that file of that session only.

Most stores have no tiers, so what makes and reads files is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from limpet.errors import ArchiveFailed, DocumentNotFound, LimpetError
from limpet.model import FrozenDict, Key, canonical
from limpet.session.documents import Internal
from limpet.session.history.policy import COLLECTION, STORE, StoredPolicy
from limpet.session.history.refs import Place
from limpet.session.journal import Journal
from limpet.session.logs import SESSION

if TYPE_CHECKING:
    from limpet.session.life.archives import Archive
    from limpet.store.coding.files import FileSeal


class Tiers:
    """The directories and buckets that policies name, as one process uses them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: dict[str, Archive] = {}
        self._named: dict[str, set[str]] = {}  # by the policies of an app, now or before

    async def put(
        self,
        tier: str,
        of: tuple[Key, str],
        state: tuple[int, str | None, FrozenDict],
        base: tuple[str, FrozenDict] | None,
    ) -> Place:
        """Write the file of a checkpoint of a state: its seq, schema version and fields. The
        session is named by key and uid.

        With a `base`, a file there and the state in it, only what changed since. Raises
        ArchiveFailed, SealUnavailable.
        """
        from limpet.session.history.payloads import payload
        from limpet.session.life.archives import put_bytes

        name = f"{_folder(of[0])}/{self._journal.new_id()}.checkpoint"
        raw = payload(*state, self._journal.now_us(), None if base is None else base[1])
        seal = self._seal(of[1], name)
        await seal.ready()
        await put_bytes(self._archive(tier), name, seal.sealed(raw))
        return Place(tier, name, None if base is None else base[0], state[1])

    async def fields(self, of: tuple[Key, str], place: Place) -> FrozenDict:
        """The state in a file of a session. Raises ArchiveFailed, ArchiveSealed, SealUnavailable,
        and what a damaged file raises."""
        from limpet.session.history.payloads import fields_in
        from limpet.session.life.archives import fetch_bytes

        key, uid = of
        if not await self._is_ours(key, place.tier, place.file):
            reason = f"no policy of {key.app} has named it for this session"
            raise ArchiveFailed(place.tier, "read", reason)
        base = None if place.base is None else await self.fields(of, Place(place.tier, place.base))
        raw = await fetch_bytes(self._archive(place.tier), place.file)
        seal = self._seal(uid, place.file)
        await seal.ready()
        return fields_in(seal.opened(raw), base)

    async def remove(self, key: Key, tier: str, files: Iterable[str]) -> None:
        """Remove files that nobody needs. What cannot be removed only takes space."""
        for file in files:
            try:
                if await self._is_ours(key, tier, file):
                    await self._archive(tier).remove(file)
            except LimpetError as error:
                text = "checkpoint file not removed: error=%s tier=%s file=%s"
                SESSION.warning(text, error.code, tier, file)

    async def forget(self, app: str, user: str, *ids: str) -> None:
        """Remove all files of sessions, or without ids of a user, in every tier that the policy of
        the app ever named. Raises ArchiveFailed."""
        for tier in await self._ever(app):
            folders = [_folder(Key(app, user, id)) for id in ids] or [_of_user(app, user)]
            for folder in folders:
                await self._archive(tier).remove_all(folder)

    async def _is_ours(self, key: Key, tier: str, file: str) -> bool:
        """Whether the file is one that this store may have put there for this session."""
        folder, _, name = file.rpartition("/")
        if folder != _folder(key) or name in ("", ".", ".."):
            return False
        named = self._named.setdefault(key.app, set())
        if tier not in named:
            named.update(await self._ever(key.app))
        return tier in named

    async def _ever(self, app: str) -> list[str]:
        """The tiers that the policy of an app names, or has named."""
        documents, before = Internal(self._journal, COLLECTION), None
        found: dict[str, None] = {}
        try:
            while versions := await documents.history(app, before=before):
                read = [documents.decoded(e, StoredPolicy) for e in versions if not e.deleted]
                found |= dict.fromkeys([policy.tier for policy in read if policy is not None])
                before = versions[-1].version
        except DocumentNotFound:
            pass
        return [tier for tier in found if tier != STORE]

    def _seal(self, uid: str, file: str) -> FileSeal:
        from limpet.store.coding.files import file_seal

        return file_seal(self._journal.store, "checkpoint", uid, file)

    def _archive(self, tier: str) -> Archive:
        from limpet.session.life.archives import open_archive

        found = self._open.get(tier)
        if found is None:
            found = open_archive(tier)
            assert found is not None, "a tier has a URL"
            self._open[tier] = found
        return found


def _folder(key: Key) -> str:
    """Where the files of one session are. The name says nothing about the user."""
    own = sha256(canonical(["checkpoints", key.id])).hexdigest()[:32]
    return f"{_of_user(key.app, key.user)}/{own}"


def _of_user(app: str, user: str) -> str:
    from limpet.session.life.archives import folder_of

    return folder_of(app, user)
