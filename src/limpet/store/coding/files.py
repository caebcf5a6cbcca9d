"""Sealed files: what leaves a store with a seal for an archive or a tier, and comes back.

    header (one line of JSON, in plain text) ‖ block ‖ … ‖ last block
    block = is it the last (1 byte) ‖ length (4) ‖ sealed bytes

The header names the format and its version, the owner of the keys, and which file this is. Each
block is sealed for its place: the header, its number, and whether it is the last. So a block that
was changed, swapped, cut off, added or taken from another file does not open. A file without such a
header was written without a seal and is read as it is.

Nothing is written here: callers put the bytes on disk, and no plain text of a sealed file with it.
"""

from __future__ import annotations

import io
import os
import struct
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from limpet.errors import ArchiveDamaged, ArchiveFailed, ArchiveSealed, SealUnavailable
from limpet.store.coding.seal import Sealer, Sealing
from limpet.store.protocol import KeyOwner, Place, Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT: Final = "limpet.sealed"
VERSION: Final = 1
BLOCK_BYTES: Final = 2**20
SEALED_BYTES_MAX: Final = 4 * BLOCK_BYTES  # of one block: no seal adds more than that
_HEADER_BYTES_MAX: Final = 16_384
_MARK: Final = b'{"format":"limpet.sealed",'
_FRAME: Final = struct.Struct("!BI")
_CLOSED: Final = (
    "block {} does not open with this seal: it was sealed with another key, its key was destroyed, "
    "or its bytes were changed"
)

FileKind: TypeAlias = Literal["archive", "checkpoint"]


class _FileHeader(msgspec.Struct, frozen=True):
    format: str
    version: int
    kind: str
    owner: KeyOwner
    name: str
    id: str  # of this writing: blocks of two files with one name do not mix


_header: Final = msgspec.json.Decoder(_FileHeader).decode


class FileSeal:
    """The seal of one file, which belongs to a session and has a name in an archive.

    Await `ready` first; the rest may be called from any thread.
    """

    __slots__ = ("_sealer", "kind", "name", "owner")

    def __init__(self, sealer: Sealer, kind: FileKind, owner: KeyOwner, name: str) -> None:
        self._sealer, self.kind, self.owner, self.name = sealer, kind, owner, name

    @property
    def seals(self) -> bool:
        """True if what is written is sealed: the store has a seal."""
        return self._sealer.seals

    async def ready(self) -> None:
        """Await the keys: as they are by now, because nobody can wait for others while a file is
        read. Raises SealUnavailable."""
        self._sealer.doubt((self.owner,))
        await self._sealer.ready((self.owner,))

    def at(self, path: Path) -> SealedPath:
        """This file at a path, to be read."""
        return SealedPath(path, self)

    def writing(self, file: IO[bytes]) -> BlockWriter:
        """Seal what is written to a file. The store has a seal."""
        return BlockWriter(self, file)

    def reading(self, file: IO[bytes]) -> IO[bytes]:
        """Return the content, opened as it is read. Raises ArchiveSealed, ArchiveDamaged."""
        if file.read(len(_MARK)) != _MARK:
            if self._sealer.refuses_plain(Place("file", self.owner, self.name)):
                raise self.damaged("it is in plain text, and its store is sealed")
            file.seek(0)
            return file
        if not self.seals:
            raise ArchiveSealed(self.name, self.owner)
        line = _MARK + file.readline(_HEADER_BYTES_MAX)
        self._check(line)
        return io.BufferedReader(_BlockReader(self, line, file))

    def sealed(self, raw: bytes) -> bytes:
        """The bytes of a small file as they are written; as they are, without a seal."""
        if not self.seals:
            return raw
        file = io.BytesIO()
        blocks = self.writing(file)
        blocks.write(raw)
        blocks.finish()
        return file.getvalue()

    def opened(self, raw: bytes) -> bytes:
        """Return the content of a small file. Raises ArchiveSealed, ArchiveDamaged."""
        return self.reading(io.BytesIO(raw)).read()

    def header(self) -> bytes:
        """The first line of a new file."""
        id = os.urandom(16).hex()
        made = _FileHeader(FORMAT, VERSION, self.kind, self.owner, self.name, id)
        return msgspec.json.encode(made) + b"\n"

    def seal(self, plain: bytes, place: Place) -> bytes:
        try:
            return self._sealer.seal(plain, place)
        except Exception as error:  # its keys were forgotten a moment ago, say
            raise SealUnavailable([self.owner], repr(error)) from error

    def open(self, sealed: bytes, place: Place, number: int) -> bytes:
        try:
            return self._sealer.open(sealed, place)
        except MemoryError:
            raise  # says nothing about the bytes
        except Exception as error:  # whatever the seal raises, the block is not readable
            raise self.damaged(_CLOSED.format(number)) from error

    def damaged(self, reason: str) -> ArchiveDamaged:
        return ArchiveDamaged(self.name, reason)

    def _check(self, line: bytes) -> None:
        try:
            header = _header(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.damaged("its header cannot be read") from error
        if header.version != VERSION:
            reason = f"its format has version {header.version}, and this release reads {VERSION}"
            raise self.damaged(reason)
        if (header.kind, header.owner, header.name) != (self.kind, self.owner, self.name):
            raise self.damaged("its header names another file or another session")


def file_seal(store: Store, kind: FileKind, owner: KeyOwner, name: str) -> FileSeal:
    """Seals and opens the files of a store's sessions with the store's seal, if it has one."""
    return FileSeal(store.sealer if isinstance(store, Sealing) else Sealer(None), kind, owner, name)


class SealedPath(NamedTuple):
    """A file on disk that is read through its seal, as `Path.open` reads one that has none."""

    path: Path
    seal: FileSeal

    def open(self, mode: Literal["rb"], /) -> IO[bytes]:
        file = self.path.open(mode)
        try:
            return self.seal.reading(file)
        except BaseException:
            file.close()
            raise

    def __str__(self) -> str:
        return str(self.path)


class BlockWriter:
    """Blocks on their way to a file. What was written counts once `finish` has returned."""

    def __init__(self, seal: FileSeal, file: IO[bytes]) -> None:
        self._seal, self._file = seal, file
        self._waiting, self._number = bytearray(), 0
        header = seal.header()
        self._digest = sha256(header).hexdigest()
        file.write(header)

    def write(self, data: Buffer) -> int:
        """Take bytes. A full block is kept until another follows: it may be the last."""
        size = memoryview(data).nbytes
        self._waiting += data
        while len(self._waiting) > BLOCK_BYTES:
            self._put(bytes(self._waiting[:BLOCK_BYTES]), last=False)
            del self._waiting[:BLOCK_BYTES]
        return size

    def finish(self) -> None:
        """Write the last block. The caller makes the file durable."""
        self._put(bytes(self._waiting), last=True)

    def _put(self, plain: bytes, *, last: bool) -> None:
        self._number += 1
        place = _place(self._seal.owner, self._digest, self._number, last=last)
        sealed = self._seal.seal(plain, place)
        self._file.write(_FRAME.pack(last, len(sealed)) + sealed)


class _BlockReader(io.RawIOBase):
    """Reads the content of the blocks of a file, from the first to the last."""

    def __init__(self, seal: FileSeal, header: bytes, file: IO[bytes]) -> None:
        self._seal, self._file = seal, file
        self._digest = sha256(header).hexdigest()
        self._left, self._number, self._ended = memoryview(b""), 0, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        while not self._left and not self._ended:
            self._left = memoryview(self._next())
        room = memoryview(buffer).cast("B")
        size = min(len(room), len(self._left))
        room[:size], self._left = self._left[:size], self._left[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next(self) -> bytes:
        frame = self._file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            raise self._seal.damaged("it ends too early")
        last, size = _FRAME.unpack(frame)
        self._number += 1
        if last > 1 or size > SEALED_BYTES_MAX:
            raise self._seal.damaged(f"block {self._number} does not begin as a block does")
        sealed = self._file.read(size)
        if len(sealed) < size:
            raise self._seal.damaged("it ends too early")
        place = _place(self._seal.owner, self._digest, self._number, last=bool(last))
        plain = self._seal.open(sealed, place, self._number)
        if last and self._file.read(1):
            raise self._seal.damaged("it goes on after its last block")
        self._ended = bool(last)
        return plain


def is_sealed(path: Path) -> bool:
    """True if a file says of itself that it is sealed. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def _place(owner: KeyOwner, header: str, number: int, *, last: bool) -> Place:
    """Return the place of a block. The header is named by its hash, so that nothing in it can
    change."""
    return Place("file", owner, f"{header}/{number}", "last" if last else "more")


def check_inside(url: str, name: str, doing: str) -> None:
    """Raise ArchiveFailed unless a name stays in its archive. It may come from a stored event: one
    that was changed, or recorded elsewhere, must not lead to a file of somebody else's."""
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ArchiveFailed(url, doing, "the name of the file leads out of the archive")
