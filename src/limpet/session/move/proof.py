"""The proof of a bundle: its logs folded and linked again from the beginning, its blobs hashed.

What its checkpoints say is compared with the states that the session's log gives.

It does what adopting will do and records nothing, so a file that is not whole, or that a store
would refuse halfway, is refused before anything was written. Every event is checked as a commit of
our own is: its form, its bounds, and what follows from it for the head. The chain is not a
signature: whoever can write a file can write another session. What is proven is that this one is
whole, that it can be adopted, and that nobody who reads it afterwards meets anything else than what
our own commits leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

import msgspec

from limpet.errors import LimpetError, SessionConflict
from limpet.model import (
    BLOB_CHUNK_BYTES,
    CREATED,
    MEDIA_TYPE_CHARS_MAX,
    Fold,
    Key,
    based,
    blank,
    checkpoints_of,
    checksum,
    encode,
    processed_by,
    unfit,
)
from limpet.model.adopt import UNFIT, proven
from limpet.model.facts import checkpoints as checkpoint_facts
from limpet.model.facts import documents as document_facts
from limpet.model.facts.forks import FORKED
from limpet.session.life.memory import memory_key
from limpet.session.move.adopter import Newest
from limpet.session.move.bundle import BundleReader, Entry
from limpet.session.move.checkpoints import Checkpointed, Marks, marks_in
from limpet.session.move.contents import Chunk
from limpet.session.move.memory import MemoryEvent, is_own
from limpet.store.blobs import Blob
from limpet.store.protocol import ChainedEvent

_CHECKPOINT_TYPES: Final = frozenset(
    (CREATED, checkpoint_facts.RECORDED, checkpoint_facts.UNPINNED)
)
_DOCUMENT_TYPES: Final = frozenset(document_facts.VERSIONS)
_GROWN_BYTES: Final = 16 * 2**20  # of bodies that change state, after which it is weighed


class Proof:
    """A bundle under proof. Raises BundleDamaged; SessionConflict if a log `here` is another."""

    def __init__(
        self,
        reader: BundleReader,
        here: Newest,
        here_log: Newest | None = None,
        here_memory: Mapping[str, Newest] | None = None,
    ) -> None:
        self._reader, self._here, self._opening = reader, here, reader.opening
        self._here_log = here_log or Newest()  # of the log of its checkpoints
        self._here_memory = here_memory or {}  # of the logs of what it remembers, by name
        self._fold: Fold | None = None
        self._log: Fold | None = None  # of the log of its checkpoints
        self._document: tuple[str, Fold] | None = None  # that is being read, by its name
        self.memory: dict[str, Newest] = {}  # where each log of what it remembers ends
        self.marks = Marks()  # what its checkpoints say: known when the first event was added
        self._ids: set[int] = set()  # hashes of the ids in the log that is being read
        self._pending: set[int] = set()  # seqs of inputs that no event has processed yet
        self._grown = 0  # bytes of bodies that changed state since it was weighed
        self._grown_max = _GROWN_BYTES
        self._blob: Blob | None = None  # whose parts are being read
        self._put = 0  # the highest version that a blob was put at
        self._content, self._size, self._parts = sha256(), 0, 0

    def add(self, found: Iterable[Entry]) -> None:
        for each in found:
            if isinstance(each, Chunk):
                self._add_chunk(each)
            elif isinstance(each, Checkpointed):
                self._add_checkpointed(each.record)
            elif isinstance(each, MemoryEvent):
                self._add_remembered(each.name, each.record)
            else:
                self._add(each)

    def end(self) -> Newest:
        """The last event, after the file has come to its end."""
        if self._fold is None:
            raise self._reader.damaged("it has no events")
        head = self._fold.head
        if self._blob is not None:
            raise self._reader.damaged(f"blob {self._blob.hash} has no end")
        if self._put > head.version:
            raise self._reader.damaged(f"a blob was put at event {self._put}, not in it")
        if self.marks.last > head.version:
            raise self._reader.damaged(f"a checkpoint is of event {self.marks.last}, not in it")
        return Newest(head.version, head.link)

    @property
    def log(self) -> Newest:
        """The last event of the log of its checkpoints."""
        log = self._log
        return Newest() if log is None else Newest(log.head.version, log.head.link)

    # --- events --------------------------------------------------------------------------------

    def _add(self, each: ChainedEvent) -> None:
        event, fold = each.event, self._fold or self._begun(each)
        if self._blob is not None:
            raise self._reader.damaged(f"blob {self._blob.hash} has no end")
        if event.seq == fold.head.floor + 1 and event.id != fold.head.uid:
            raise self._wrong(event.seq, "is not the first of its session")
        after = self._followed(fold, each)
        self._note_inputs(each, after)
        if event.seq == self._here.seq and event.link != self._here.link:
            raise SessionConflict(self._opening.key, "log", event.seq - 1, self._here.seq)
        said = self.marks.sums.get(event.seq)
        if said is not None and said != checksum(after.fields).hex():
            raise self._wrong(event.seq, "leaves another state than its checkpoint says")
        self._weigh(after, each)
        self._fold = after

    def _followed(self, fold: Fold, each: ChainedEvent) -> Fold:
        """The fold after one more event, if that follows and leads to its link."""
        event = each.event
        assert each.raw is not None
        # A store would take the second for a repeat of the first.
        if hash(event.id) in self._ids:
            raise self._wrong(event.seq, "has the id of another event")
        self._ids.add(hash(event.id))
        try:
            after = proven(fold, event, each.raw, each.salt)
        except UNFIT as error:
            reason = str(error)[:200] or type(error).__name__
            raise self._wrong(event.seq, f"does not fit those before it ({reason})") from error
        if after.head.version != event.seq or after.head.link != event.link:
            raise self._wrong(event.seq, "breaks the chain")
        if event.at_us < fold.head.updated_us:
            raise self._wrong(event.seq, "was recorded before the event it follows")
        return after

    def _note_inputs(self, each: ChainedEvent, after: Fold) -> None:
        """An event processes inputs that are pending, each once."""
        event = each.event
        done = processed_by(event.type, event.data)
        if len(set(done)) != len(done) or not self._pending.issuperset(done):
            raise self._wrong(event.seq, "processes an input that is not pending")
        self._pending.difference_update(done)
        if after.head.pending > len(self._pending):
            self._pending.add(event.seq)

    def _weigh(self, after: Fold, each: ChainedEvent) -> None:
        """A small file must not build a state that fills the memory."""
        if each.event.ops:
            self._grown += len(each.raw or b"")
        if self._grown > self._grown_max:
            state = encode(after.fields)
            self._reader.check_memory(state)
            # As much again may follow first: weighing costs no more than reading does.
            self._grown, self._grown_max = 0, max(_GROWN_BYTES, len(state))

    # --- beside the log ------------------------------------------------------------------------

    def _add_checkpointed(self, each: ChainedEvent) -> None:
        """One event of the log of checkpoints. They stand before all others."""
        event, key = each.event, checkpoints_of(self._opening.key)
        if self._fold is not None or self._document is not None:
            raise self._reader.damaged("a checkpoint stands after the first event")
        begun = self._log or self._begun_beside(key, each)
        if event.type not in _CHECKPOINT_TYPES:
            raise self._wrong(event.seq, f"of its checkpoints is of type {event.type!r}")
        self._log = self._followed(begun, each)
        if event.seq == self._here_log.seq and event.link != self._here_log.link:
            raise SessionConflict(key, "log", event.seq - 1, self._here_log.seq)

    def _add_remembered(self, name: str, each: ChainedEvent) -> None:
        """One event of the log of what it remembers. They stand before the session's own."""
        event, of = each.event, self._opening.key
        if self._fold is not None or not is_own(of, name):
            raise self._reader.damaged("it remembers what is not the session's own")
        if event.type not in _DOCUMENT_TYPES:
            raise self._wrong(event.seq, f"of what it remembers is of type {event.type!r}")
        known, begun = self._document or ("", None)
        if begun is None or known != name:
            if name in self.memory:
                raise self._reader.damaged(f"it remembers {name!r} twice")
            begun = self._begun_beside(self._memory_key(name), each)
        after = self._followed(begun, each)
        self._document = (name, after)
        here = self._here_memory.get(name, Newest())
        if event.seq == here.seq and event.link != here.link:
            raise SessionConflict(after.head.key, "log", event.seq - 1, here.seq)
        self.memory[name] = Newest(after.head.version, after.head.link)

    def _memory_key(self, name: str) -> Key:
        try:
            return memory_key(self._opening.key, name)
        except LimpetError as error:
            raise self._reader.damaged("it remembers something under no name") from error

    def _begun_beside(self, key: Key, first: ChainedEvent) -> Fold:
        """The beginning of a log beside the session's own, whose first event names its key."""
        event, data = first.event, first.event.data
        named = (data.get("app"), data.get("user"), data.get("id"))
        if event.type != CREATED or named != (key.app, key.user, key.id):
            raise self._wrong(event.seq, "does not begin the log that it stands in")
        self._ids.clear()
        return Fold(blank(key, event.id, event.at_us))

    def _marks(self) -> Marks:
        """What the log of checkpoints says, when all of it was added."""
        log, uid = self._log, self._opening.uid
        if log is None:
            return Marks()
        try:
            found = marks_in(log.fields, uid, self.log)
        except (msgspec.ValidationError, *UNFIT) as error:
            raise self._reader.damaged(f"its checkpoints cannot be read ({error})") from error
        if not found.log.seq:
            raise self._reader.damaged("its checkpoints are of another session")
        return found

    def _begun(self, first: ChainedEvent) -> Fold:
        """What the log begins on, if its first event says the same as the header."""
        self._ids.clear()
        self.marks = self._marks()
        opening, event = self._opening, first.event
        key, base, data = opening.key, opening.base, event.data
        same = (data.get("app"), data.get("user"), data.get("id")) == (key.app, key.user, key.id)
        if not same or event.id != opening.uid:
            raise self._wrong(event.seq, "begins another session than the header names")
        if base is None:
            if event.type != CREATED or opening.floor:
                raise self._wrong(event.seq, "does not begin a session")
            return Fold(blank(key, opening.uid, event.at_us))
        of = base.parent
        parent = {"app": of.app, "user": of.user, "id": of.id, "uid": base.uid}
        said = (event.type, data.get("at"), data.get("parent"), data.get("base"))
        if said != (FORKED, base.floor, parent, base.checksum.hex()) or base.floor != opening.floor:
            raise self._wrong(event.seq, "begins on another state than the header has")
        head = based(key, opening.uid, event.at_us, base.floor, base.link)
        return Fold(head, base.fields, base.versions)

    def _wrong(self, seq: int, what: str) -> LimpetError:
        return self._reader.damaged(f"event {seq} {what}")

    # --- blobs ---------------------------------------------------------------------------------

    def _add_chunk(self, chunk: Chunk) -> None:
        blob = chunk.blob
        if self._fold is None:
            raise self._reader.damaged("a blob stands before the first event")
        if self._blob is None:
            self._begin_blob(blob)
        full = len(chunk.data) == BLOB_CHUNK_BYTES or (chunk.is_last and chunk.data)
        full = full or (blob.chunks == 1 and not blob.size and not chunk.data)  # an empty one
        if blob != self._blob or chunk.number != self._parts or not full:
            raise self._reader.damaged(f"blob {blob.hash} has a part that does not follow")
        self._parts += 1
        self._size += len(chunk.data)
        self._content.update(chunk.data)
        if chunk.is_last:
            if (self._content.hexdigest(), self._size) != (blob.hash, blob.size):
                raise self._reader.damaged(f"blob {blob.hash} has another content")
            self._blob = None

    def _begin_blob(self, blob: Blob) -> None:
        if unfit(blob.media_type, MEDIA_TYPE_CHARS_MAX):
            raise self._reader.damaged(f"blob {blob.hash} has no media type")
        if blob.chunks != max(1, -(-blob.size // BLOB_CHUNK_BYTES)):
            raise self._reader.damaged(f"blob {blob.hash} has another number of parts")
        self._put = max(self._put, blob.version)
        self._blob, self._content, self._size, self._parts = blob, sha256(), 0, 0
