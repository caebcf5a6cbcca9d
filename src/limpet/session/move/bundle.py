"""The bundle: one session in one file that proves itself.

zstd over JSON lines: a header, a line for each event of the log of its checkpoints and of the logs
of what it remembers, a line for each event of the session's own log, after the first of them a line
for each part of a blob, and a trailer with the number of events and the SHA-256 of everything
before it. An event line has what the chain covers, so whoever reads the file computes every link
again. Bodies are plain, whatever seal the store has: `zstdcat FILE | jq` shows an export. What goes
to an archive is sealed as a whole, if the store has a seal, and the plain bundle is on no disk.

A file may come from anywhere. Each line is parsed into a record with bounds, and what decompresses
to far more than the file holds is refused before it fills the memory.

Reading and writing block: callers run them in threads, a piece at a time. Memory is bounded by a
piece and, of a log that begins on a state, by that state.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from limpet.errors import BundleDamaged, BundleRefused, LimpetError, StoreError
from limpet.model import Base, Event, Head, Key, decode_body, unfit
from limpet.model.adopt import check_base
from limpet.model.events import TIME_US_MAX, TIME_US_MIN
from limpet.model.limits import (
    BLOB_BYTES_MAX,
    BLOB_CHUNK_BYTES,
    EVENT_BYTES_MAX,
    ID_CHARS_MAX,
    INT_MAX,
    MEDIA_TYPE_CHARS_MAX,
)
from limpet.session.move.attachments import BlobChunk, CheckpointEvent, MemoryEvent
from limpet.store.blobs import Blob
from limpet.store.coding.bodies import base_body, base_from
from limpet.store.coding.codec import Damaged
from limpet.store.protocol import ChainedEvent
from limpet.store.sqlite.file.locks import part_beside

if TYPE_CHECKING:
    from limpet.store.coding.files import FileSeal

FORMAT: Final = "limpet.session"
VERSION: Final = 1
EVENT_LINE_BYTES_MAX: Final = EVENT_BYTES_MAX + 2**20  # a body, and the names beside it
HEADER_BYTES_MAX: Final = 2**30  # the state that a log begins on may be large; no log is read yet
_HEADER_BYTES: Final = 64 * 2**20  # of any file; of a large one, as many times its bytes:
_PACKED_TIMES: Final = 100
_MEMORY_BYTES: Final = 128 * 2**20  # that values of any file may take once they are decoded
_CONTAINER_BYTES: Final = 64  # about what a list or a dict takes beyond its text
_LEVEL: Final = 3
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))  # a full disk, or a used-up quota
_TRAILER: Final = b'{"end":'
_PART: Final = b'{"blob":'
_CHECKPOINT: Final = b'{"checkpoint":'
_MEMORY: Final = b'{"memory":'
_Seq: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=TIME_US_MIN, le=TIME_US_MAX)]
_Id: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_CHARS_MAX)]
_Hash: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Salt: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2}){1,64}$")]


class _HeaderLine(msgspec.Struct, frozen=True, omit_defaults=True):
    format: str
    version: int
    key: tuple[str, str, str]
    uid: _Id
    floor: _Count
    schema_version: str | None = None  # of typed state, as the export found it
    base: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    redacted: bool = False  # some bodies are left out: it can be checked, and not imported


class _EventLine(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: _Seq
    id: _Id
    type: str
    actor: str
    at_us: _Time
    salt: _Salt
    link: _Hash
    body: msgspec.Raw
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False


class _RedactedLine(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    id: str
    type: str
    actor: str
    at_us: int
    digest: str  # of the salt and the body, which are left out
    link: str
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False


class _CheckpointLine(msgspec.Struct, frozen=True):
    checkpoint: _EventLine  # of the log of the session's checkpoints


class _MemoryLine(msgspec.Struct, frozen=True):
    memory: str  # the name of the document
    event: _EventLine  # of its log


class _BlobLine(msgspec.Struct, frozen=True):
    blob: _Hash  # of the whole
    size: Annotated[int, msgspec.Meta(ge=0, le=BLOB_BYTES_MAX)]
    media_type: Annotated[str, msgspec.Meta(max_length=MEDIA_TYPE_CHARS_MAX)]
    version: _Count
    chunks: _Seq
    number: _Count
    data: Annotated[bytes, msgspec.Meta(max_length=BLOB_CHUNK_BYTES)]  # base64


class _TrailerLine(msgspec.Struct, frozen=True):
    end: bool
    events: _Count
    sha256: _Hash


class BundleSource(Protocol):
    """The source of a bundle: a path, or one that is read through a seal."""

    def open(self, mode: Literal["rb"], /) -> IO[bytes]: ...


class BundleHeader(msgspec.Struct, frozen=True):
    """The header of a bundle: whose log it is, and the state that it begins on."""

    key: Key
    uid: str
    floor: int
    base: Base | None


BundleEntry: TypeAlias = ChainedEvent | BlobChunk | CheckpointEvent | MemoryEvent
_encode: Final = msgspec.json.Encoder().encode
_header: Final = msgspec.json.Decoder(_HeaderLine).decode
_line: Final = msgspec.json.Decoder(_EventLine).decode
_part: Final = msgspec.json.Decoder(_BlobLine).decode
_checkpoint_line: Final = msgspec.json.Decoder(_CheckpointLine).decode
_memory_line: Final = msgspec.json.Decoder(_MemoryLine).decode
_trailer: Final = msgspec.json.Decoder(_TrailerLine).decode


# Errors of parsing bytes that are malformed.
_MALFORMED: Final = (LimpetError, ValueError, TypeError, OverflowError, RecursionError)
T = TypeVar("T")


class BundleWriter:
    """A bundle under way, in a file beside its place until it is whole."""

    def __init__(self, target: Path, seal: FileSeal | None = None) -> None:
        self._target, self._part = target, part_beside(target)
        # Bodies are opened here: nobody but the owner of the process reads the file.
        handle = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: IO[bytes] = os.fdopen(handle, "wb")
        self._packed: IO[bytes] | None = None
        self._hash, self._events = sha256(), 0
        try:
            self._blocks = None if seal is None else seal.writing(self._file)
            zstd = zstd_module()
            level = {zstd.CompressionParameter.compression_level: _LEVEL}
            self._packed = zstd.ZstdFile(self._blocks or self._file, "wb", options=level)
        except BaseException:
            self.discard()
            raise

    def begin(self, head: Head, base: Base | None, *, redacted: bool = False) -> None:
        key, raw = head.key, None if base is None else msgspec.Raw(base_body(base))
        if redacted and base is not None:  # what it begins on may say what is left out
            raw = msgspec.Raw(_encode({"link": base.link.hex()}))
        header = _HeaderLine(
            FORMAT,
            VERSION,
            (key.app, key.user, key.id),
            head.uid,
            head.floor,
            head.schema_version,
            msgspec.UNSET if raw is None else raw,
            redacted,
        )
        self._write(_encode(header))

    def add(
        self, records: Iterable[ChainedEvent], hidden: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Write events; of those whose types are `hidden` the digest stands for the body, and all
        others have one."""
        for record in records:
            hide = hidden(record.event.type)
            self._write(_encode(_redacted_line(record) if hide else _line_of(record)))
            self._events += 1

    def add_checkpoints(self, records: Iterable[ChainedEvent]) -> None:
        """Write events of the log of the session's checkpoints, before all others."""
        for record in records:
            self._write(_encode(_CheckpointLine(_line_of(record))))

    def add_memory(self, name: str, records: Iterable[ChainedEvent]) -> None:
        """Write events of the log of a document that the session remembers, after the
        checkpoints, one log after the other."""
        for record in records:
            self._write(_encode(_MemoryLine(name, _line_of(record))))

    def add_chunk(self, chunk: BlobChunk) -> None:
        """Write a part of a blob."""
        blob = chunk.blob
        of = (blob.hash, blob.size, blob.media_type, blob.version, blob.chunks)
        self._write(_encode(_BlobLine(*of, chunk.number, chunk.data)))

    def finish(self) -> None:
        """Make the file whole and give it its name."""
        assert self._packed is not None
        self._packed.write(
            _encode(_TrailerLine(True, self._events, self._hash.hexdigest())) + b"\n"
        )
        self._packed.close()
        if self._blocks is not None:
            self._blocks.finish()
        # The name must not appear before the bytes are on disk, nor be lost after it was returned.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        refuse_place(self._target)
        self._part.rename(self._target)
        handle = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def discard(self) -> None:
        """Remove what is not whole. Harmless after `finish`."""
        if self._packed is not None:
            with suppress(Exception):
                self._packed.close()
        with suppress(OSError):  # what is not written yet may find the disk full
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        assert self._packed is not None
        line += b"\n"
        self._hash.update(line)
        self._packed.write(line)


class BundleReader:
    """A bundle, read from the beginning. Raises BundleDamaged at the first thing that is wrong."""

    def __init__(self, source: BundleSource) -> None:
        self._path = str(source)
        try:
            self._packed = source.open("rb")
            packed = source.stat().st_size if isinstance(source, Path) else None
        except OSError as error:
            raise BundleRefused(self._path, _unread(error)) from error
        times = HEADER_BYTES_MAX if packed is None else _PACKED_TIMES * packed
        self._header_max = min(HEADER_BYTES_MAX, max(_HEADER_BYTES, times))
        self._memory_max = max(_MEMORY_BYTES, times)
        self._file = zstd_module().ZstdFile(self._packed, "rb")
        self._hash, self._events = sha256(), 0
        self.ended = False
        self.opening = self._open()

    def close(self) -> None:
        self._file.close()
        self._packed.close()

    def read(self, events_max: int, bytes_max: int) -> list[BundleEntry]:
        """The next events and parts of blobs, in the order of the file. None are left if the list
        is empty, and the trailer was right then."""
        entries: list[BundleEntry] = []
        size = 0
        while not self.ended and len(entries) < events_max and size < bytes_max:
            line = self._next(EVENT_LINE_BYTES_MAX)
            if line.startswith(_TRAILER):
                self._end(line)
                break
            self._hash.update(line)
            if line.startswith(_PART):
                entries.append(self._chunk(line))
            elif line.startswith(_CHECKPOINT):
                event = self._parsed(_checkpoint_line, line).checkpoint
                entries.append(CheckpointEvent(self._record(event)))
            elif line.startswith(_MEMORY):
                of = self._parsed(_memory_line, line)
                entries.append(MemoryEvent(of.memory, self._record(of.event)))
            else:
                entries.append(self._record(self._parsed(_line, line)))
                self._events += 1
            size += len(line)
        return entries

    def check_memory(self, raw: bytes) -> None:
        """Raise BundleDamaged if the values in this text would take far more memory than a file of
        this size is worth: it was made to fill it."""
        if len(raw) + _CONTAINER_BYTES * (raw.count(b"[") + raw.count(b"{")) > self._memory_max:
            raise self.damaged("it holds far more than a file of its size does")

    def damaged(self, reason: str) -> BundleDamaged:
        return BundleDamaged(self._path, reason)

    def _open(self) -> BundleHeader:
        try:
            line = self._next(self._header_max)
        except BaseException:  # what the file is read through may refuse it, too
            self.close()
            raise
        try:
            self.check_memory(line)
            header = _header(line)
            if header.format != FORMAT:
                raise self.damaged(f"it is of the format {header.format!r}")
            if header.version != VERSION:
                reason = f"it has version {header.version}, and this release reads {VERSION}"
                raise self.damaged(reason)
            if header.redacted:
                reason = "is redacted: it can be checked, and not imported. Export it whole"
                raise BundleRefused(self._path, reason)
            raw = None if isinstance(header.base, msgspec.UnsetType) else bytes(header.base)
            base = None if raw is None else base_from(raw)
            if base is not None:
                check_base(base)
            if wrong := unfit(header.uid, ID_CHARS_MAX):
                raise self.damaged(f"the uid of its session {wrong}")
            opening = BundleHeader(Key(*header.key), header.uid, header.floor, base)
        except StoreError:  # of the file itself, or of its seal
            self.close()
            raise
        except (msgspec.MsgspecError, Damaged, *_MALFORMED) as error:
            self.close()
            raise self.damaged(f"its header cannot be read ({_short(error)})") from error
        except BaseException:
            self.close()
            raise
        self._hash.update(line)
        return opening

    def _chunk(self, line: bytes) -> BlobChunk:
        part = self._parsed(_part, line)
        blob = Blob(part.blob, part.size, part.media_type, part.chunks, part.version)
        return BlobChunk(blob, part.number, part.data)

    def _parsed(self, decode: Callable[[bytes], T], line: bytes) -> T:
        try:
            return decode(line)
        except (msgspec.MsgspecError, *_MALFORMED) as error:
            where = f"a line after event {self._events}"
            raise self.damaged(f"{where} cannot be read ({_short(error)})") from error

    def _record(self, line: _EventLine) -> ChainedEvent:
        raw = bytes(line.body)
        self.check_memory(raw)
        body = self._parsed(decode_body, raw)
        link, salt = bytes.fromhex(line.link), bytes.fromhex(line.salt)
        event = Event(
            line.seq,
            line.id,
            line.type,
            line.actor,
            line.at_us,
            body.data,
            body.ops,
            line.cause,
            line.invocation_id,
            line.correlation_id,
            line.wake_id,
            0 if line.input else None,
            None,
            link,
        )
        return ChainedEvent(event, raw, salt, b"")

    def _end(self, line: bytes) -> None:
        trailer = self._parsed(_trailer, line)
        if trailer.events != self._events or trailer.sha256 != self._hash.hexdigest():
            raise self.damaged("its contents are not what its last line says")
        if self._line(2):
            raise self.damaged("it goes on after its last line")
        self.ended = True

    def _next(self, bytes_max: int) -> bytes:
        line = self._line(bytes_max)
        if not line.endswith(b"\n"):
            raise self.damaged(
                "it ends too early" if len(line) < bytes_max else "a line is too long"
            )
        return line

    def _line(self, bytes_max: int) -> bytes:
        zstd = zstd_module()
        try:
            return bytes(self._file.readline(bytes_max))
        except (zstd.ZstdError, EOFError) as error:
            raise self.damaged(f"it cannot be decompressed ({error})") from error
        except OSError as error:
            raise BundleRefused(self._path, _unread(error)) from error


def _short(error: BaseException) -> str:
    """Return why something cannot be read, shortened: an error may quote all of the input."""
    return str(error)[:200] or type(error).__name__


def refuse_place(target: Path) -> None:
    """Raise BundleRefused where no new file can be made."""
    if target.is_dir():
        raise BundleRefused(str(target), "is a directory; name a file in it")
    if not target.parent.is_dir():
        reason = "is in a directory that does not exist; create it first"
        raise BundleRefused(str(target), reason)
    if target.exists():
        reason = "exists already; choose another name or remove it"
        raise BundleRefused(str(target), reason)


def _line_of(record: ChainedEvent) -> _EventLine:
    event = record.event
    assert record.raw is not None, "the caller has looked"
    return _EventLine(
        event.seq,
        event.id,
        event.type,
        event.actor,
        event.at_us,
        record.salt.hex(),
        event.link.hex(),
        msgspec.Raw(record.raw),
        event.cause,
        event.invocation_id,
        event.correlation_id,
        event.wake_id,
        event.processed is not None,
    )


def _redacted_line(record: ChainedEvent) -> _RedactedLine:
    event = record.event
    return _RedactedLine(
        event.seq,
        event.id,
        event.type,
        event.actor,
        event.at_us,
        record.digest.hex(),
        event.link.hex(),
        event.cause,
        event.invocation_id,
        event.correlation_id,
        event.wake_id,
        event.processed is not None,
    )


def _unread(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is not there; name the file of an export"
    return f"cannot be read ({error.strerror or error})"


def zstd_module() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
