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
from typing import TYPE_CHECKING, Final

import msgspec

from limpet.errors import ArchiveFailed, DocumentNotFound, LimpetError
from limpet.model import FrozenDict, Key, canonical
from limpet.session.documents import Internal
from limpet.session.history.checkpoint_policy import COLLECTION, STORE, StoredPolicy
from limpet.session.journal import Journal
from limpet.session.loggers import SESSION

if TYPE_CHECKING:
    from limpet.session.life.archive_storage import Archive
    from limpet.store.coding.files import FileSeal

_BYTES_MAX: Final = 2**30  # of an envelope: a state is bounded by its own limits


class CheckpointFile(msgspec.Struct, frozen=True):
    """The place of a checkpoint's file, if it is kept in a tier besides the store."""

    tier: str
    file: str
    base: str | None = None  # the file that this one is the difference to
    schema_version: str | None = None


class CheckpointTiers:
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
    ) -> CheckpointFile:
        """Write the file of a checkpoint of a state: its seq, schema version and fields. The
        session is named by key and uid.

        With a `base`, a file there and the state in it, only what changed since. Raises
        ArchiveFailed, SealUnavailable.
        """
        from limpet.model.diff.diff import diff
        from limpet.model.envelope import envelope
        from limpet.session.life.archive_storage import put_bytes

        seq, schema_version, fields = state
        if base is None:
            raw = envelope.encode(
                fields,
                schema_version=schema_version,
                state_version=seq,
                serialized_at_us=self._journal.now_us(),
                bytes_max=_BYTES_MAX,
            )
        else:
            raw = diff(base[1], fields).to_bytes()
        name = f"{_folder(of[0])}/{self._journal.new_id()}.checkpoint"
        seal = self._seal(of[1], name)
        await seal.ready()
        await put_bytes(self._archive(tier), name, seal.sealed(raw))
        return CheckpointFile(tier, name, None if base is None else base[0], schema_version)

    async def fields(self, of: tuple[Key, str], place: CheckpointFile) -> FrozenDict:
        """Return the state in a file of a session.

        Raises ArchiveFailed, ArchiveSealed, SealUnavailable; and IntegrityViolation,
        InvalidEnvelope or InvalidDiff if the file is damaged.
        """
        from limpet.model.diff.diff import Diff
        from limpet.model.envelope import envelope
        from limpet.session.life.archive_storage import fetch_bytes

        key, uid = of
        if not await self._is_ours(key, place.tier, place.file):
            reason = f"no policy of {key.app} has named it for this session"
            raise ArchiveFailed(place.tier, "read", reason)
        base: FrozenDict | None = None
        if place.base is not None:
            base = await self.fields(of, CheckpointFile(place.tier, place.base))
        packed = await fetch_bytes(self._archive(place.tier), place.file)
        seal = self._seal(uid, place.file)
        await seal.ready()
        raw = seal.opened(packed)
        if base is None:
            return FrozenDict(envelope.decode(raw, bytes_max=_BYTES_MAX).fields)
        changed: FrozenDict = Diff.from_bytes(raw).apply(base)
        return changed

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
        from limpet.session.life.archive_storage import folder_of

        for tier in await self._ever(app):
            folders = [_folder(Key(app, user, id)) for id in ids] or [folder_of(app, user)]
            for folder in folders:
                await self._archive(tier).remove_all(folder)

    async def _is_ours(self, key: Key, tier: str, file: str) -> bool:
        """True if the file is one that this store may have put there for this session."""
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
        tiers: dict[str, None] = {}
        try:
            while versions := await documents.history(app, before=before):
                read = [documents.decoded(e, StoredPolicy) for e in versions if not e.deleted]
                tiers |= dict.fromkeys([policy.tier for policy in read if policy is not None])
                before = versions[-1].version
        except DocumentNotFound:
            pass
        return [tier for tier in tiers if tier != STORE]

    def _seal(self, uid: str, file: str) -> FileSeal:
        from limpet.store.coding.files import file_seal

        return file_seal(self._journal.store, "checkpoint", uid, file)

    def _archive(self, tier: str) -> Archive:
        from limpet.session.life.archive_storage import open_archive

        archive = self._open.get(tier)
        if archive is None:
            archive = open_archive(tier)
            assert archive is not None, "a tier has a URL"
            self._open[tier] = archive
        return archive


def _folder(key: Key) -> str:
    """Return the folder of one session's files. The name says nothing about the user."""
    from limpet.session.life.archive_storage import folder_of

    own = sha256(canonical(["checkpoints", key.id])).hexdigest()[:32]
    return f"{folder_of(key.app, key.user)}/{own}"
