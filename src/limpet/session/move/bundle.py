"""The bundle: one session in one file that proves itself.

zstd over JSON lines: a header, a line for each event of the log of its checkpoints, a line for each
event of the session's own log, after the first of them a line for each part of a blob, and a
trailer with the number of events and the SHA-256 of everything before it. An event line has what
the chain covers, so whoever reads the file computes every link again. Bodies are plain, whatever
seal the store has: `zstdcat FILE | jq` shows an export. What goes to an archive is sealed as a
whole, if the store has a seal, and the plain bundle is on no disk.

Reading and writing block: callers run them in threads, a piece at a time. Memory is bounded by a
piece and, of a log that begins on a state, by that state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import msgspec

from limpet.errors import BundleDamaged, BundleRefused, InvalidKey
from limpet.model import EVENT_BYTES_MAX, Base, Event, Head, Key, decode_body
from limpet.session.move.checkpoints import Checkpointed
from limpet.session.move.contents import Chunk
from limpet.store.blobs import Blob
from limpet.store.coding import Damaged, base_body, base_from
from limpet.store.protocol import ChainedEvent
from limpet.store.sqlite.file.locks import part_beside

if TYPE_CHECKING:
    from limpet.store.coding.files import FileSeal

FORMAT: Final = "limpet.session"
VERSION: Final = 1
EVENT_LINE_BYTES_MAX: Final = EVENT_BYTES_MAX + 2**20  # a body, and the names beside it
HEADER_BYTES_MAX: Final = 2**30  # the state that a log begins on may be large; no log is read yet
_LEVEL: Final = 3
_TRAILER: Final = b'{"end":'
_PART: Final = b'{"blob":'
_CHECKPOINT: Final = b'{"checkpoint":'


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    format: str
    version: int
    key: tuple[str, str, str]
    uid: str
    floor: int
    schema_version: str | None = None  # of typed state, as the export found it
    base: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _EventLine(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    id: str
    type: str
    actor: str
    at_us: int
    salt: str
    link: str
    body: msgspec.Raw
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False


class _CheckpointLine(msgspec.Struct, frozen=True):
    checkpoint: _EventLine  # of the log of the session's checkpoints


class _Part(msgspec.Struct, frozen=True):
    blob: str  # the hash of the whole
    size: int
    media_type: str
    version: int
    chunks: int
    number: int
    data: bytes  # base64


class _Trailer(msgspec.Struct, frozen=True):
    end: bool
    events: int
    sha256: str


class Source(Protocol):
    """Where a bundle is read from: a path, or one that is read through a seal."""

    def open(self, mode: Literal["rb"], /) -> IO[bytes]: ...


class Opening(msgspec.Struct, frozen=True):
    """What a bundle says first: whose log it is, and what that begins on."""

    key: Key
    uid: str
    floor: int
    base: Base | None


Entry: TypeAlias = ChainedEvent | Chunk | Checkpointed
_encode: Final = msgspec.json.Encoder().encode
_header: Final = msgspec.json.Decoder(_Header).decode
_line: Final = msgspec.json.Decoder(_EventLine).decode
_part: Final = msgspec.json.Decoder(_Part).decode
_checkpoint_line: Final = msgspec.json.Decoder(_CheckpointLine).decode
_trailer: Final = msgspec.json.Decoder(_Trailer).decode


class BundleWriter:
    """A bundle under way, in a file beside its place until it is whole."""

    def __init__(self, target: Path, seal: FileSeal | None = None) -> None:
        self._target, self._part = target, part_beside(target)
        # Bodies are opened here: nobody but the owner of the process reads the file.
        handle = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: IO[bytes] = os.fdopen(handle, "wb")
        self._blocks = None if seal is None else seal.writing(self._file)
        zstd = _zstd()
        level = {zstd.CompressionParameter.compression_level: _LEVEL}
        self._packed = zstd.ZstdFile(self._blocks or self._file, "wb", options=level)
        self._hash, self._events = sha256(), 0

    def begin(self, head: Head, base: Base | None) -> None:
        key, raw = head.key, None if base is None else msgspec.Raw(base_body(base))
        header = _Header(
            FORMAT,
            VERSION,
            (key.app, key.user, key.id),
            head.uid,
            head.floor,
            head.schema_version,
            msgspec.UNSET if raw is None else raw,
        )
        self._write(_encode(header))

    def add(self, records: Iterable[ChainedEvent]) -> None:
        """Write events, all of which have a body."""
        for record in records:
            self._write(_encode(_line_of(record)))
            self._events += 1

    def add_checkpoints(self, records: Iterable[ChainedEvent]) -> None:
        """Write events of the log of the session's checkpoints, before all others."""
        for record in records:
            self._write(_encode(_CheckpointLine(_line_of(record))))

    def add_chunk(self, chunk: Chunk) -> None:
        """Write a part of a blob."""
        blob = chunk.blob
        of = (blob.hash, blob.size, blob.media_type, blob.version, blob.chunks)
        self._write(_encode(_Part(*of, chunk.number, chunk.data)))

    def finish(self) -> None:
        """Make the file whole and give it its name."""
        self._packed.write(_encode(_Trailer(True, self._events, self._hash.hexdigest())) + b"\n")
        self._packed.close()
        if self._blocks is not None:
            self._blocks.finish()
        # The name must not appear before the bytes are on disk, nor be lost after it was returned.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        refuse_place(self._target)
        self._part.rename(self._target)
        _sync_directory(self._target.parent)

    def discard(self) -> None:
        """Remove what is not whole. Harmless after `finish`."""
        with suppress(Exception):
            self._packed.close()
        with suppress(OSError):  # of a full disk: what was to be written is not wanted any more
            self._file.close()
        self._part.unlink(missing_ok=True)

    def _write(self, line: bytes) -> None:
        line += b"\n"
        self._hash.update(line)
        self._packed.write(line)


class BundleReader:
    """A bundle, read from the beginning. Raises BundleDamaged at the first thing that is wrong."""

    def __init__(self, source: Source) -> None:
        self._path = str(source)
        try:
            self._packed = source.open("rb")
        except OSError as error:
            raise BundleRefused(self._path, _unread(error)) from error
        self._file = _zstd().ZstdFile(self._packed, "rb")
        self._hash, self._events = sha256(), 0
        self.ended = False
        self.opening = self._open()

    def close(self) -> None:
        self._file.close()
        self._packed.close()

    def read(self, events_max: int, bytes_max: int) -> list[Entry]:
        """The next events and parts of blobs, in the order of the file. None are left if the list
        is empty, and the trailer was right then."""
        found: list[Entry] = []
        size = 0
        while not self.ended and len(found) < events_max and size < bytes_max:
            line = self._next(EVENT_LINE_BYTES_MAX)
            if line.startswith(_TRAILER):
                self._end(line)
                break
            self._hash.update(line)
            if line.startswith(_PART):
                found.append(self._chunk(line))
            elif line.startswith(_CHECKPOINT):
                found.append(Checkpointed(self._record(line, beside=True)))
            else:
                found.append(self._record(line))
                self._events += 1
            size += len(line)
        return found

    def damaged(self, reason: str) -> BundleDamaged:
        return BundleDamaged(self._path, reason)

    def _open(self) -> Opening:
        try:
            line = self._next(HEADER_BYTES_MAX)
            header = _header(line)
            if header.format != FORMAT:
                raise self.damaged(f"it is of the format {header.format!r}")
            if header.version != VERSION:
                reason = f"it has version {header.version}, and this release reads {VERSION}"
                raise self.damaged(reason)
            raw = None if isinstance(header.base, msgspec.UnsetType) else bytes(header.base)
            base = None if raw is None else base_from(raw)
            opening = Opening(Key(*header.key), header.uid, header.floor, base)
        except (msgspec.MsgspecError, Damaged, InvalidKey, ValueError) as error:
            self.close()
            raise self.damaged(f"its header cannot be read ({error})") from error
        except BaseException:
            self.close()
            raise
        self._hash.update(line)
        return opening

    def _chunk(self, line: bytes) -> Chunk:
        try:
            part = _part(line)
        except msgspec.MsgspecError as error:
            raise self.damaged(f"a line is not a part of a blob ({error})") from error
        blob = Blob(part.blob, part.size, part.media_type, part.chunks, part.version)
        return Chunk(blob, part.number, part.data)

    def _record(self, line: bytes, *, beside: bool = False) -> ChainedEvent:
        try:
            found = _checkpoint_line(line).checkpoint if beside else _line(line)
            raw = bytes(found.body)
            body = decode_body(raw)
            link, salt = bytes.fromhex(found.link), bytes.fromhex(found.salt)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self.damaged(f"line {self._events + 1} is not an event ({error})") from error
        event = Event(
            found.seq,
            found.id,
            found.type,
            found.actor,
            found.at_us,
            body.data,
            body.ops,
            found.cause,
            found.invocation_id,
            found.correlation_id,
            found.wake_id,
            0 if found.input else None,
            None,
            link,
        )
        return ChainedEvent(event, raw, salt, b"")

    def _end(self, line: bytes) -> None:
        try:
            trailer = _trailer(line)
        except msgspec.MsgspecError as error:
            raise self.damaged(f"its last line cannot be read ({error})") from error
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
        zstd = _zstd()
        try:
            return bytes(self._file.readline(bytes_max))
        except (zstd.ZstdError, EOFError) as error:
            raise self.damaged(f"it cannot be decompressed ({error})") from error
        except OSError as error:
            raise BundleRefused(self._path, _unread(error)) from error


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


def _unread(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is not there; name the file of an export"
    return f"cannot be read ({error.strerror or error})"


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
