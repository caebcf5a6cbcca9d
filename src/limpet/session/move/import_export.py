"""Exporting a session to a bundle, importing one, and proving one.

An import reads the file more than once. The first reading is the proof: it computes every link,
folds every event and hashes every blob, checks each as a commit of our own is checked, and records
nothing, so a file that is not whole, or that a store would refuse halfway, is refused whole. The
second adopts the events in pieces; the last adopts the log of the checkpoints and the session's
memory, which stand first in the file. Killed in between, it leaves a log that is only shorter, and
importing again goes on from there. The chain is not a signature: whoever can write a file can write
another session. A log that comes back from an archive is adopted in few commits, with the states
that its checkpoints had pinned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from limpet.errors import (
    BundleRefused,
    InvalidInput,
    LimpetError,
    ReservedApp,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    StoreError,
    StoreFull,
)
from limpet.model import (
    CREATED,
    Commit,
    Fold,
    Head,
    Key,
    based,
    blank,
    checkpoints_of,
    checksum,
    encode,
    genesis,
    is_reserved,
    processed_by,
    unfit,
)
from limpet.model.adopt import UNFIT, proven
from limpet.model.facts import checkpoints as checkpoint_facts, documents as document_facts
from limpet.model.facts.creation import FORKED
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import is_stub
from limpet.model.limits import (
    BLOB_CHUNK_BYTES,
    COMMIT_BYTES_MAX,
    DRAFTS_PER_COMMIT_MAX,
    MEDIA_TYPE_CHARS_MAX,
)
from limpet.session.journal import Journal, retrying
from limpet.session.life.memory import memory_key
from limpet.session.move.adopter import (
    PIECE_BYTES,
    PIECE_EVENTS,
    Adopter,
    Newest,
    check_bodies,
    check_whole,
    follows,
    records_in,
    refuse_gone,
)
from limpet.session.move.attachments import (
    BlobChunk,
    CheckpointEvent,
    CheckpointMarks,
    MemoryEvent,
    adopt_pinned,
    blobs_in,
    blobs_of,
    chunks_of,
    is_own,
    load_log,
    logs_of,
    marks_in,
    marks_read,
    newest_beside,
    newest_of,
    piece_beside,
    pinning_commits,
    records_beside,
)
from limpet.session.move.bundle import (
    NO_SPACE,
    BundleEntry,
    BundleHeader,
    BundleReader,
    BundleSource,
    BundleWriter,
    refuse_place,
)
from limpet.session.runs.delegation import head_of
from limpet.store.blobs import Blob
from limpet.store.pages import wanted
from limpet.store.protocol import ChainedEvent
from limpet.store.system import in_thread

if TYPE_CHECKING:
    from limpet.store.coding.files import FileSeal

_CHECKPOINT_TYPES: Final = frozenset(
    (CREATED, checkpoint_facts.RECORDED, checkpoint_facts.UNPINNED)
)
_DOCUMENT_TYPES: Final = frozenset(document_facts.VERSIONS)
_GROWN_BYTES: Final = 16 * 2**20  # of bodies that change state, after which it is weighed
_PIECE: Final = (1_000, 4 * 2**20)
_PINS_MAX: Final = 64  # states that come back pinned, the newest: they are in one commit


# --- out -----------------------------------------------------------------------------------------


async def export_session(
    journal: Journal,
    key: Key,
    path: Path,
    seal: FileSeal | None = None,
    *,
    memory: bool = False,
    redact: tuple[str, ...] = (),
) -> Head:
    """Write the session as it is now to a new file; return its head there.

    In plain text, unless a seal is given, whose keys are ready. With its `memory`, unless that
    stays in the store, as that of an archived session does. If anything is to be left out
    (`redact`), the file has the log alone. A session that another process puts under the key
    meanwhile, or takes away and puts back, is read again: no file has parts of two.
    """
    _refuse_reserved(key)

    async def attempt() -> Head:
        return await _exported(journal, key, path, seal, memory=memory, redact=redact)

    try:
        return await retrying(attempt, SessionConflict)
    except SessionCorrupt:  # or what is missing was elsewhere just then: damage is found again
        return await retrying(attempt, SessionConflict)


async def _exported(
    journal: Journal,
    key: Key,
    path: Path,
    seal: FileSeal | None,
    *,
    memory: bool,
    redact: tuple[str, ...],
) -> Head:
    """Write the file. Raises SessionConflict if the log under the key was replaced meanwhile."""
    source = records_in(journal)
    # Before the head is read: an event that a checkpoint stands on is in the file.
    kept = await load_log(journal.store, key)
    head = (await journal.store.load(key, tail=0, scopes=False)).head
    if is_stub(head.facts):
        raise SessionArchived(key)
    head.check_here()
    base = await source.base(key)
    if head.floor and base is None:
        raise SessionConflict(key, "session", head.version, None)
    refuse_place(path)

    def hidden(type: str) -> bool:
        return bool(redact) and wanted(type, redact)

    try:
        writer = await in_thread(lambda: BundleWriter(path, seal))
    except OSError as error:
        raise unwritten(path, error) from error
    try:
        writer.begin(head, base, redacted=bool(redact))
        if not redact:
            marks = marks_read(kept, head.uid)
            async for some in records_beside(journal, checkpoints_of(key), marks.log.seq):
                await in_thread(lambda some=some: writer.add_checkpoints(some))  # type: ignore[misc]  # bound now
        if memory and not redact:
            await _export_memory(journal, key, writer)
        last = Newest(head.floor, genesis(head.uid) if base is None else base.link)
        while last.seq < head.version:
            first = last.seq == head.floor  # blobs stand between it and what may name them
            limit = 1 if first else min(PIECE_EVENTS, head.version - last.seq)
            records = await source.records(key, after=last.seq, limit=limit)
            check_whole(key, records, last.seq)
            check_bodies(key, tuple([each for each in records if not hidden(each.event.type)]))
            if not follows(last.link, records[0]):  # what is read at once is of one log
                raise SessionConflict(key, "session", head.version, None)
            last = Newest(records[-1].event.seq, records[-1].event.link)
            await in_thread(lambda some=records: writer.add(some, hidden))  # type: ignore[misc]  # bound now
            if first and not redact:
                await _export_blobs(journal, key, writer)
        if last.link != head.link:
            raise SessionConflict(key, "session", head.version, None)
        await in_thread(writer.finish)
    except (SessionCorrupt, SessionConflict):
        await refuse_gone(journal, head)
        raise
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        await in_thread(writer.discard)
    return head


async def _export_memory(journal: Journal, key: Key, writer: BundleWriter) -> None:
    async for log in logs_of(journal, key):
        async for some in records_beside(journal, log.key, log.version):
            check_bodies(log.key, some)
            add = partial(writer.add_memory, log.key.id, some)
            await in_thread(add)


async def _export_blobs(journal: Journal, key: Key, writer: BundleWriter) -> None:
    blobs = blobs_in(journal)
    if blobs is None:
        return
    async for blob in blobs_of(blobs, key):
        async for chunk in chunks_of(blobs, key, blob):
            await in_thread(lambda some=chunk: writer.add_chunk(some))  # type: ignore[misc]  # bound


# --- in ------------------------------------------------------------------------------------------


async def import_session(journal: Journal, path: Path) -> Key:
    """Adopt the session in a file, as far as this store does not have it."""
    adopter = Adopter(journal)
    reader = await in_thread(lambda: BundleReader(path))
    try:
        opening = reader.opening
        key = opening.key
        _refuse_reserved(key)
        head = await head_of(journal, key)
        if head is not None:
            head.check_here()
        here = await adopter.newest(key)
        log = await newest_beside(adopter, checkpoints_of(key))
        proof = await _prove(reader, here, log, await newest_of(journal, key))
    finally:
        await in_thread(reader.close)
    last = proof.end()
    for name, end in proof.memory.items():  # what went on since must begin with what the file has
        log_key = memory_key(key, name)
        if (await newest_beside(adopter, log_key)).seq > end.seq:
            await adopter.check_prefix(log_key, end.seq, end.link)
    if log.seq > proof.log.seq and proof.log.seq:
        await adopter.check_prefix(checkpoints_of(key), proof.log.seq, proof.log.link)
    if here.seq > last.seq:  # it went on since: the file must be what it began with
        await adopter.check_prefix(key, last.seq, last.link)
    else:
        await _read_again(path, _IncomingLog(adopter, opening, here.seq, proof.marks.pins).add_all)
    await _read_again(path, _IncomingBeside(adopter, key, log.seq).add_all)
    return key


async def _read_again(path: Path, add: Callable[[list[BundleEntry]], Awaitable[bool]]) -> None:
    """Read a file that was proven, until `add` says that it has all that it needs."""
    reader = await in_thread(lambda: BundleReader(path))
    try:
        while entries := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
            if not await add(entries):
                return
    finally:
        await in_thread(reader.close)


class _IncomingLog:
    """The second reading of a bundle: what the store lacks is recorded, in the file's order."""

    def __init__(
        self, adopter: Adopter, opening: BundleHeader, here: int, pins: Mapping[int, int]
    ) -> None:
        self._adopter, self._opening, self._here, self._pins = adopter, opening, here, pins
        self._upload, self._skips = "", False

    async def add_all(self, entries: list[BundleEntry]) -> bool:
        for kind, some in groupby(entries, type):
            if kind is BlobChunk:
                for chunk in some:
                    await self.add_chunk(chunk)  # type: ignore[arg-type]  # as asked
            elif kind is ChainedEvent:
                await self.add(some)  # type: ignore[arg-type]  # as asked
        return True

    async def add(self, records: Iterable[ChainedEvent]) -> None:
        fresh = [each for each in records if each.event.seq > self._here]
        if fresh:
            opening = self._opening
            base = opening.base if fresh[0].event.seq == opening.floor + 1 else None
            await adopt_pinned(self._adopter, pinning_commits(opening.key, fresh, self._pins, base))

    async def add_chunk(self, chunk: BlobChunk) -> None:
        key, blob = self._opening.key, chunk.blob
        if not chunk.number:
            self._upload, self._skips = "", await self._adopter.has_blob(key, blob.hash)
        if not self._skips:
            at = (blob, chunk.number, chunk.data)
            self._upload = await self._adopter.put_chunk(key, self._upload, *at)


class _IncomingBeside:
    """The last reading: the log of the checkpoints, after all that they stand on, and what the
    session remembers."""

    def __init__(self, adopter: Adopter, key: Key, here: int) -> None:
        self._adopter, self._key, self._here = adopter, key, here
        self._ends: dict[str, int] = {}  # of the logs of what it remembers, as they were here

    async def add_all(self, entries: list[BundleEntry]) -> bool:
        log = [each.record for each in entries if isinstance(each, CheckpointEvent)]
        fresh = [each for each in log if each.event.seq > self._here]
        if fresh:
            await self._adopter.commit((piece_beside(checkpoints_of(self._key), fresh),))
        memory = [each for each in entries if isinstance(each, MemoryEvent)]
        for name, some in groupby(memory, lambda each: each.name):
            await self._remember(name, [each.record for each in some])
        return len(log) + len(memory) == len(entries)

    async def _remember(self, name: str, records: list[ChainedEvent]) -> None:
        log = memory_key(self._key, name)
        if name not in self._ends:
            self._ends[name] = (await newest_beside(self._adopter, log)).seq
        fresh = [each for each in records if each.event.seq > self._ends[name]]
        if fresh:
            await self._adopter.commit((piece_beside(log, fresh),))


# --- back from an archive ------------------------------------------------------------------------


async def adopt_bundle(
    journal: Journal, source: BundleSource, pins: Mapping[int, int], to: Key | None = None
) -> None:
    """Adopt the log in a proved file in few commits, then its blobs.

    Under another key, if one is given, whose checkpoints are under `{id}-checkpoints`: so no reader
    meets a part of it before it takes its own.
    """
    reader = await in_thread(lambda: BundleReader(source))
    adopter = Adopter(journal)
    key = reader.opening.key if to is None else to
    log = checkpoints_of(key) if to is None else Key(to.app, to.user, f"{to.id}-checkpoints")
    arriving = _ReturningLog(adopter, reader.opening, pins, key, log)
    try:
        while entries := await in_thread(lambda: reader.read(*_PIECE)):
            await arriving.add(entries)
        await arriving.end()
    finally:
        await in_thread(reader.close)
    if arriving.has_blobs:
        await _put_blobs(adopter, source, key)


async def _put_blobs(adopter: Adopter, source: BundleSource, key: Key) -> None:
    """Go through the file once more: a blob may be larger than memory, and needs its session."""
    reader = await in_thread(lambda: BundleReader(source))
    upload = ""
    try:
        while entries := await in_thread(lambda: reader.read(*_PIECE)):
            for chunk in [each for each in entries if isinstance(each, BlobChunk)]:
                given = (chunk.blob, chunk.number, chunk.data)  # one that is there is dropped
                upload = await adopter.put_chunk(key, upload if chunk.number else "", *given)
    finally:
        await in_thread(reader.close)


class _ReturningLog:
    """A session on its way back from its file."""

    def __init__(
        self, adopter: Adopter, opening: BundleHeader, pins: Mapping[int, int], key: Key, log: Key
    ) -> None:
        self._adopter, self._opening, self._key, self._log_key = adopter, opening, key, log
        self._pins = dict(sorted(pins.items())[-_PINS_MAX:])
        self._records: list[ChainedEvent] = []
        self._log: list[ChainedEvent] = []
        self._first = True
        self.has_blobs = False

    async def add(self, entries: list[BundleEntry]) -> None:
        self._records += [each for each in entries if isinstance(each, ChainedEvent)]
        self._log += [each.record for each in entries if isinstance(each, CheckpointEvent)]
        self.has_blobs |= any([isinstance(each, BlobChunk) for each in entries])
        size = sum(len(each.raw or b"") for each in self._records)
        many = len(self._records) > DRAFTS_PER_COMMIT_MAX - 2 * _PIECE[0]
        if many or size > COMMIT_BYTES_MAX // 2:
            await self._adopter.commit(self._commits())

    async def end(self) -> None:
        """Record what is left, with the checkpoints; a log of many goes in commits of its own."""
        key, log, room = self._log_key, self._log, _PIECE[0]
        commits = self._commits()
        if log:
            commits.append(piece_beside(key, log[:room]))
        if commits:
            await self._adopter.commit(commits)
        for at in range(room, len(log), room):
            await self._adopter.commit((piece_beside(key, log[at : at + room]),))

    def _commits(self) -> list[Commit]:
        records, self._records = self._records, []
        base = self._opening.base if self._first else None
        made = pinning_commits(self._key, records, self._pins, base)
        if self._first and made:
            made[0] = structs.replace(made[0], reuse=True)
            self._first = False
        return made


# --- the proof -----------------------------------------------------------------------------------


async def prove_bundle(source: BundleSource) -> CheckpointMarks:
    """Prove a whole file and return the marks of its checkpoints. Raises BundleDamaged."""
    reader = await in_thread(lambda: BundleReader(source))
    try:
        return (await _prove(reader, Newest(), Newest())).marks
    finally:
        await in_thread(reader.close)


async def _prove(
    reader: BundleReader, here: Newest, log: Newest, memory: Mapping[str, Newest] | None = None
) -> BundleProof:
    """Read to the end and compute everything again.

    Raises BundleDamaged; SessionConflict if the file's logs are not those that are here.
    """
    proof = BundleProof(reader, here, log, memory)
    while entries := await in_thread(lambda: reader.read(PIECE_EVENTS, PIECE_BYTES)):
        await in_thread(lambda some=entries: proof.add(some))  # type: ignore[misc]  # bound now
    proof.end()
    return proof


class BundleProof:
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
        self.marks = (
            CheckpointMarks()
        )  # what its checkpoints say: known when the first event was added
        self._ids: set[int] = set()  # hashes of the ids in the log that is being read
        self._pending: set[int] = set()  # seqs of inputs that no event has processed yet
        self._grown = 0  # bytes of bodies that changed state since it was weighed
        self._grown_max = _GROWN_BYTES
        self._blob: Blob | None = None  # whose parts are being read
        self._put = 0  # the highest version that a blob was put at
        self._content, self._size, self._parts = sha256(), 0, 0

    def add(self, entries: Iterable[BundleEntry]) -> None:
        for each in entries:
            if isinstance(each, BlobChunk):
                self._add_chunk(each)
            elif isinstance(each, CheckpointEvent):
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
        if departure(head.facts) is not None:
            raise self._reader.damaged("the session departed; nobody may go on with it here")
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
        if each.event.ops:
            self._grown += len(each.raw or b"")
        if self._grown > self._grown_max:
            state = encode(after.fields)
            self._reader.check_memory(state)
            # As much again may follow first: weighing costs no more than reading does.
            self._grown, self._grown_max = 0, max(_GROWN_BYTES, len(state))
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

    def _marks(self) -> CheckpointMarks:
        """Return the marks in the log of checkpoints, when all of it was added."""
        log, uid = self._log, self._opening.uid
        if log is None:
            return CheckpointMarks()
        try:
            marks = marks_in(log.fields, uid, self.log)
        except (msgspec.ValidationError, *UNFIT) as error:
            raise self._reader.damaged(f"its checkpoints cannot be read ({error})") from error
        if not marks.log.seq:
            raise self._reader.damaged("its checkpoints are of another session")
        return marks

    def _begun(self, first: ChainedEvent) -> Fold:
        """Return the fold that the log begins on, if its first event agrees with the header."""
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

    def _add_chunk(self, chunk: BlobChunk) -> None:
        blob = chunk.blob
        if self._fold is None:
            raise self._reader.damaged("a blob stands before the first event")
        if self._blob is None:
            if unfit(blob.media_type, MEDIA_TYPE_CHARS_MAX):
                raise self._reader.damaged(f"blob {blob.hash} has no media type")
            if blob.chunks != max(1, -(-blob.size // BLOB_CHUNK_BYTES)):
                raise self._reader.damaged(f"blob {blob.hash} has another number of parts")
            self._put = max(self._put, blob.version)
            self._blob, self._content, self._size, self._parts = blob, sha256(), 0, 0
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


# --- private -------------------------------------------------------------------------------------


def check_path(path: object) -> Path:
    """A path of a file. Raises InvalidInput."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidInput(f"{path!r} does not name a file. Pass a path, as in 'ada.limpet'.")
    return Path(path)


def _refuse_reserved(key: Key) -> None:
    if is_reserved(key.app):
        raise ReservedApp(key.app)


def unwritten(path: Path, error: OSError) -> StoreError:
    if error.errno in NO_SPACE:
        return StoreFull(str(path))
    reason = f"cannot be written ({error.strerror or error}); choose another place"
    return BundleRefused(str(path), reason)
