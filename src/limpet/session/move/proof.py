"""The proof of a bundle: its logs folded and linked again from the beginning, its blobs hashed.

What its checkpoints say is compared with the states that the session's log gives.

It does what adopting will do and records nothing, so a file that is not whole is refused before
anything was written. The chain is not a signature: whoever can write a file can write another
session. What is proven is that this one is whole and can be adopted.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from limpet.errors import LimpetError, SessionConflict
from limpet.model import (
    ACTOR_CHARS_MAX,
    BLOB_BYTES_MAX,
    BLOB_CHUNK_BYTES,
    CREATED,
    ID_CHARS_MAX,
    MEDIA_TYPE_CHARS_MAX,
    TYPE_CHARS_MAX,
    Fold,
    adopted,
    based,
    blank,
    checkpoints_of,
    checksum,
    record,
    unfit,
)
from limpet.session.move.adopter import Newest
from limpet.session.move.bundle import BundleReader, Entry
from limpet.session.move.checkpoints import Checkpointed, Marks, marks_in
from limpet.session.move.contents import Chunk
from limpet.store.blobs import Blob
from limpet.store.protocol import ChainedEvent


class Proof:
    """A bundle under proof. Raises BundleDamaged; SessionConflict if `here` is of another log."""

    def __init__(self, reader: BundleReader, here: Newest, here_log: Newest | None = None) -> None:
        self._reader, self._here, self._opening = reader, here, reader.opening
        self._here_log = here_log or Newest()  # of the log of its checkpoints
        self._fold: Fold | None = None
        self._log: Fold | None = None  # of the log of its checkpoints
        self.marks = Marks()  # what that says: known when the first event was added
        self._blob: Blob | None = None  # whose parts are being read
        self._content, self._size, self._parts = sha256(), 0, 0

    def add(self, found: Iterable[Entry]) -> None:
        for each in found:
            if isinstance(each, Chunk):
                self._add_chunk(each)
            elif isinstance(each, Checkpointed):
                self._add_checkpointed(each.record)
            else:
                self._add(each)

    def end(self) -> Newest:
        """The last event, after the file has come to its end."""
        if self._fold is None:
            raise self._reader.damaged("it has no events")
        if self._blob is not None:
            raise self._reader.damaged(f"blob {self._blob.hash} has no end")
        if self.marks.last > self._fold.head.version:
            raise self._reader.damaged(f"a checkpoint is of event {self.marks.last}, not in it")
        return Newest(self._fold.head.version, self._fold.head.link)

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
        after = self._followed(fold, each)
        if event.seq == self._here.seq and event.link != self._here.link:
            raise SessionConflict(self._opening.key, "log", event.seq - 1, self._here.seq)
        said = self.marks.sums.get(event.seq)
        if said is not None and said != checksum(after.fields).hex():
            raise self._wrong(event.seq, "leaves another state than its checkpoint says")
        self._fold = after

    def _followed(self, fold: Fold, each: ChainedEvent) -> Fold:
        """The fold after one more event, if that follows and leads to its link."""
        event = each.event
        self._check_names(each)
        assert each.raw is not None
        try:
            after, made = record(fold, adopted(event, each.raw, each.salt), 0, b"")
        except (LimpetError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._wrong(event.seq, f"does not fit those before it ({error})") from error
        if made.event.seq != event.seq or made.event.link != event.link:
            raise self._wrong(event.seq, "breaks the chain")
        if event.at_us < fold.head.updated_us:
            raise self._wrong(event.seq, "was recorded before the event it follows")
        return after

    def _add_checkpointed(self, each: ChainedEvent) -> None:
        """One event of the log of checkpoints. They stand before the session's own."""
        event, key = each.event, checkpoints_of(self._opening.key)
        if self._fold is not None:
            raise self._reader.damaged("a checkpoint stands after the first event")
        begun = self._log or Fold(blank(key, event.id, event.at_us))
        self._log = self._followed(begun, each)
        if event.seq == self._here_log.seq and event.link != self._here_log.link:
            raise SessionConflict(key, "log", event.seq - 1, self._here_log.seq)

    def _marks(self) -> Marks:
        """What the log of checkpoints says, when all of it was added."""
        log, uid = self._log, self._opening.uid
        if log is None:
            return Marks()
        try:
            found = marks_in(log.fields, uid, self.log)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._reader.damaged(f"its checkpoints cannot be read ({error})") from error
        if not found.log.seq:
            raise self._reader.damaged("its checkpoints are of another session")
        return found

    def _begun(self, first: ChainedEvent) -> Fold:
        """What the log begins on, if its first event says the same as the header."""
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
        if base.floor != opening.floor or data.get("base") != base.checksum.hex():
            raise self._wrong(event.seq, "begins on another state than the header has")
        head = based(key, opening.uid, event.at_us, base.floor, base.link)
        return Fold(head, base.fields, base.versions)

    def _check_names(self, each: ChainedEvent) -> None:
        event = each.event
        ids = (event.id, event.cause, event.invocation_id, event.correlation_id, event.wake_id)
        texts = [(event.type, TYPE_CHARS_MAX), (event.actor, ACTOR_CHARS_MAX)]
        texts += [(id, ID_CHARS_MAX) for id in ids if id is not None]
        for text, chars_max in texts:
            if reason := unfit(text, chars_max):
                raise self._wrong(event.seq, f"has a name that {reason}")

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
        if unfit(blob.media_type, MEDIA_TYPE_CHARS_MAX) or blob.size > BLOB_BYTES_MAX:
            raise self._reader.damaged(f"blob {blob.hash} is too large or has no media type")
        self._blob, self._content, self._size, self._parts = blob, sha256(), 0, 0
