"""The receiving side of a move: what a store has of a session, and adopting more of it.

Everything that arrives, from a file or from another store, passes here and then the journal. A
piece is a row of events of one session that follow what the store has; the planner computes every
link again and refuses what does not follow. Pieces are bounded, so a move of any size is a row of
small commits, each of which leaves a whole log that is only shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from limpet.errors import (
    InvalidInput,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionNotFound,
)
from limpet.model import Base, Commit, Head, Key, Prepared, ScopeValue, is_input
from limpet.model.adopt import adopted
from limpet.model.chain import body_digest, header_digest, link
from limpet.model.facts.creation import created
from limpet.model.facts.documents import copied, names_key
from limpet.model.head import check_present
from limpet.session.journal import Journal
from limpet.store.blobs import Blob, Blobs, KeepsBlobs
from limpet.store.protocol import ChainedEvent, Committed, Names, Owner, Query, Records

PIECE_EVENTS: Final = 2_000  # of one commit, unless the last body exceeds PIECE_BYTES
PIECE_BYTES: Final = 4 * 2**20
PIECE_SESSIONS: Final = 250
COPIER: Final = "system:copy"


class Newest(msgspec.Struct, frozen=True, gc=False):
    """The last event that a store has of a session; seq 0 if it has none."""

    seq: int = 0
    link: bytes = b""


class Adopter:
    """A store that adopts sessions."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def is_empty(self) -> bool:
        """True if this store has no session at all, so that nobody need ask for each."""
        query = Query(reserved=True)
        return not (await self.journal.store.heads(query, cursor=None, limit=1)).items

    async def newest(self, key: Key) -> Newest:
        """Return where the session ends in this store. Raises SessionDeleted, SessionErased."""
        try:
            last = await self._read(key, after=0, reverse=True)
        except SessionNotFound:
            return Newest()
        except SessionArchived:  # what stands for it here may be a copy of what stands there
            head = (await self.journal.store.load(key, tail=0, scopes=False)).head
            return Newest(head.version, head.link)
        return last

    async def check_prefix(self, key: Key, seq: int, link: bytes) -> None:
        """Raise SessionConflict unless this store's event `seq` of the session has this link."""
        events = await self._read(key, after=seq - 1, reverse=False)
        if events.link != link:
            raise SessionConflict(key, "log", seq - 1, events.seq)

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Record all of the commits or none."""
        return await self.journal.commit(commits)

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        """The shared names of one owner that this store has, deleted ones too."""
        return await names_in(self.journal).names_of(app, user)

    async def write_names(self, owner: Owner, values: Mapping[str, Any]) -> None:
        """Set shared names of an owner that this store never had. Raises SessionConflict if it has
        one by now; SessionExists if the log of such copies was begun a moment ago."""
        key = names_key(*owner)
        fresh = not (await self.newest(key)).seq
        facts = [created(key)] if fresh else []
        facts.append(copied(*owner, values))
        drafts = tuple([self.journal.prepare(fact, COPIER) for fact in facts])
        guards = dict.fromkeys(values, 0)
        expect = 0 if fresh else None
        await self.commit((Commit(key, drafts, expect, guards=guards, names_of=owner),))

    async def has_blob(self, key: Key, hash: str) -> bool:
        """True if the session itself has a blob with this content here."""
        return await self._blobs().find(key, hash, own=True) is not None

    async def put_chunk(self, key: Key, upload: str, blob: Blob, number: int, data: bytes) -> str:
        """Add the next chunk of a blob; with the last one it is there. The upload to go on with."""
        upload = upload or self.journal.new_id()
        if number == blob.chunks - 1:
            await self._blobs().finish(key, upload, blob, data, at=blob.version)
        else:
            await self._blobs().put_chunk(key, upload, number, data)
        return upload

    def _blobs(self) -> Blobs:
        store = self.journal.store
        if not isinstance(store, KeepsBlobs):
            raise InvalidInput("this store does not keep blobs. Copy to another one.")
        return store.blobs

    async def _read(self, key: Key, *, after: int, reverse: bool) -> Newest:
        store = self.journal.store
        events = await store.read(key, after=after, limit=1, reverse=reverse, types=None)
        return Newest(events[0].seq, events[0].link) if events else Newest()


def piece(key: Key, records: Iterable[ChainedEvent], base: Base | None = None) -> Commit:
    """The commit that adopts these events. `base` is needed if the log begins with them on one.

    Raises SessionCorrupt if a body is not one, though its checksum is right.
    """
    return Commit(key, tuple([_draft(key, each) for each in records]), base=base)


def _draft(key: Key, each: ChainedEvent) -> Prepared:
    assert each.raw is not None, "the caller has looked"
    try:
        return adopted(each.event, each.raw, each.salt, each.compressed)
    except msgspec.MsgspecError as error:
        raise SessionCorrupt(key, f"event {each.event.seq} cannot be read ({error})") from error


def records_in(journal: Journal) -> Records:
    """The store of a journal, for reading logs as they were recorded."""
    store = journal.store
    if not isinstance(store, Records):
        raise InvalidInput("this store does not hand out its records. Copy from another one.")
    return store


def names_in(journal: Journal) -> Names:
    """The store of a journal, for going through its shared names."""
    store = journal.store
    if not isinstance(store, Names):
        raise InvalidInput("this store does not list its app: and user: names. Use another one.")
    return store


def check_whole(key: Key, records: tuple[ChainedEvent, ...], after: int) -> None:
    """Raise SessionCorrupt unless these follow `after` without a gap, each with its body."""
    if not records:
        raise SessionCorrupt(key, f"event {after + 1} is missing")
    for seq, each in enumerate(records, after + 1):
        if each.event.seq != seq:
            raise SessionCorrupt(key, f"event {seq} is missing")
        if each.raw is None:
            reason = "was removed" if each.event.removed else each.event.damage
            raise SessionCorrupt(key, f"event {seq} {reason or 'cannot be read'}")


def follows(previous: bytes, each: ChainedEvent) -> bool:
    """True if the link of an event leads on from the one before it."""
    event = each.event
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    marked = event.processed is not None and not is_input(event.type)
    header = header_digest((*names, event.correlation_id, event.wake_id), marked=marked)
    return link(previous, event.seq, event.at_us, header, each.digest) == event.link


async def refuse_gone(journal: Journal, head: Head) -> None:
    """Raise SessionArchived, SessionDeleted or the like if the session went while its events were
    read: then what is missing of them is not damage."""
    loaded = await journal.store.load(head.key, tail=0, scopes=False)
    check_present(loaded.head, head.uid)


def check_bodies(key: Key, records: tuple[ChainedEvent, ...]) -> None:
    """Raise SessionCorrupt unless each body is the one that was recorded: a file that holds another
    could be imported nowhere. Whoever adopts them sees it by their links."""
    for each in records:
        if each.raw is not None and body_digest(each.salt, each.raw) != each.digest:
            raise SessionCorrupt(key, f"event {each.event.seq} has another body than was recorded")
