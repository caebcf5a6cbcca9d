"""The codec: what happens to encoded bytes on their way to disk, in this order and nowhere else.

    encode (the model's JSON) → compress (zstd, when it pays) → seal (when a seal is given)

`flags` says which steps were taken, so any mixture can be read: switching compression or sealing
on changes new rows only. A CRC-32 of the stored bytes finds rot without keys.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from limpet.model import Head
from limpet.store.coding.seal import Awaited, Sealer, WaitingSealer
from limpet.store.protocol import Checked, Place, Seal, event_binding

if TYPE_CHECKING:
    from collections.abc import Callable

COMPRESSED: Final = 1
SEALED: Final = 2
REMOVED: Final = 4  # of an event: there is no body, it was removed on purpose
ADOPTED: Final = 8  # of an event: another store recorded it, and it wrote no shared names here
# Below this a frame's overhead and the time for it outweigh what zstd saves on text.
COMPRESS_BYTES_MIN: Final = 1_024
_SMALL: Final = bytes((SEALED,))  # what is sealed begins with its flags
_LEVEL: Final = 3
_NO_MEMORY: Final = "not enough memory"  # how zstd says it
PLAIN: Final = "has a body in plain text, although its store is sealed: it was put there"
MAC_BYTES: Final = 36  # of a head's: the number of the key, and SHA-256
UNHELD: Final = (
    "was changed or rolled back, or its keys were destroyed: they do not vouch for it. Restore it, "
    "or accept it as it is with lp.keys.anchor()"
)
NO_SEAL: Final = "has a sealed body and no seal was given to open it"


class Damaged(Exception):
    """Stored bytes that are not what was stored. Never leaves the store."""


class Codec:
    """Both directions, with an optional seal."""

    __slots__ = ("checks", "locked", "marks", "sealer", "seals")

    def __init__(self, seal: Seal | None = None, check: Checked | None = None) -> None:
        self.sealer = Sealer(seal)
        self.seals = seal is not None
        # Of a MarkingSeal: plain bodies are damage, and events are bound to the chain.
        self.marks = hasattr(seal, "allows_plain")
        self.locked = False  # the store is sealed and no keys were given: nothing is written
        # True if loads compare events with the chain: it costs a third of the time of reading them.
        self.checks = self.seals if check is None else check == "chain"

    def waiting(self, loop: asyncio.AbstractEventLoop) -> Codec:
        """Return a codec for a thread that may wait for keys, as verification does."""
        codec = Codec()
        codec.seals, codec.sealer = self.seals, WaitingSealer(self.sealer, loop)
        codec.checks, codec.marks = self.checks, self.marks
        return codec

    def lock(self, *, sealed: bool) -> None:
        """Refuse writes from now on, if the store is sealed and there is no seal."""
        self.locked = sealed and not self.seals

    def needs_keys(self, flags: object) -> bool:
        """True if the keys of its owner are needed to read a body, or to refuse it."""
        return self.marks or (isinstance(flags, int) and bool(flags & SEALED))

    def event_place(
        self, uid: str, id: str, type: str, seq: int, at_us: int, header: bytes, link: bytes
    ) -> Place:
        """Return the place of the body of an event."""
        if not self.marks:
            return Place("event", uid, id, type)
        return Place("event", uid, id, type, event_binding(seq, at_us, header, link))

    def head_mac(self, head: Head) -> bytes | None:
        """Return what a store keeps beside a head: by it the session's keys vouch for its key, its
        facts and where it stands. None if the seal does not. Raises Unready."""
        if not self.marks:
            return None
        self.sealer.check(head.uid)
        return self.sealer.mac(head)

    def head_holds(self, head: Head, mac: object) -> bool:
        """True if `mac` is what was kept beside this head. Raises Unready."""
        if not self.marks:
            return True
        self.sealer.check(head.uid)
        kept = mac if isinstance(mac, bytes) or mac is None else b""
        return self.sealer.holds(head, kept)

    def pack(
        self,
        raw: bytes,
        place: Place | None,
        *,
        bound: bool = False,
        compressed: bytes | None = None,
    ) -> tuple[int, bytes, int]:
        """flags, stored bytes and their CRC, which covers the place too if `bound`.

        The place may be left out where nothing is sealed or bound; `compressed` is what `raw` is
        compressed to, if that is known. Raises Unready if the keys of its owner are not at hand.
        """
        if not bound and len(raw) < COMPRESS_BYTES_MIN:  # most events
            if not self.seals:
                return 0, raw, crc32(raw)
            assert place is not None
            self.sealer.check(place.owner)
            sealed = self.sealer.seal(_SMALL + raw, place)
            return SEALED, sealed, crc32(sealed)
        flags, stored = 0, raw
        if len(raw) >= COMPRESS_BYTES_MIN:
            smaller = _compressed(raw) if compressed is None else compressed
            if len(smaller) < len(raw) * 7 // 8:
                flags, stored = COMPRESSED, smaller
        if self.seals:
            assert place is not None
            flags |= SEALED
            self.sealer.check(place.owner)
            stored = self.sealer.seal(bytes((flags,)) + stored, place)
        crc = crc32(stored)
        return flags, stored, crc32(place.aad(), crc) if bound and place is not None else crc

    def unpack(
        self,
        flags: int,
        stored: bytes,
        crc: int,
        place: Callable[[], Place],
        *,
        bound: bool = False,
    ) -> bytes:
        """The bytes that were packed. Raises Damaged if they are not what was stored.

        MemoryError is not damage: whoever reads must not go on as if the bytes were lost. Nor is
        Unready, which is raised for a sealed body if the keys of its owner are not at hand.
        """
        if not isinstance(stored, bytes) or not isinstance(flags, int):
            raise Damaged("has a body of the wrong kind")
        actual = crc32(stored)
        if (crc32(place().aad(), actual) if bound else actual) != crc:
            raise Damaged("has a damaged body: its checksum does not match")
        if flags & ~(COMPRESSED | SEALED):
            raise Damaged(f"has a body in a form this release does not know ({flags})")
        if flags & SEALED:
            stored = self._open(flags, stored, place())
        elif self.marks:
            self._check_plain(place())
        return decompressed(stored) if flags & COMPRESSED else stored

    def _check_plain(self, place: Place) -> None:
        """Raise Damaged unless the body was written before the store had keys."""
        self.sealer.check(place.owner)
        if self.sealer.refuses_plain(place):
            raise Damaged(PLAIN)

    def _open(self, flags: int, stored: bytes, place: Place) -> bytes:
        if not self.seals:
            raise Damaged(NO_SEAL)
        self.sealer.check(place.owner)
        try:
            opened = self.sealer.open(stored, place)
        except (MemoryError, Awaited):
            raise  # says nothing about the bytes
        except Exception as error:  # whatever the seal raises, the body is not readable
            why = str(error) or "it was erased or changed, or another key sealed it"
            raise Damaged(f"has a sealed body that this key does not open: {why}") from error
        if opened[:1] != bytes((flags,)):  # sealed with it: nobody else can say what it is
            raise Damaged("has other flags than it was sealed with")
        return opened[1:]


class _Tools(threading.local):
    """A compressor for each thread: making one takes longer than compressing a small body."""

    compressor: Any = None


_TOOLS: Final = _Tools()


def _compressed(raw: bytes) -> bytes:
    """Return the bytes that `zstd.compress` gives."""
    if _TOOLS.compressor is None:
        _TOOLS.compressor = zstd().ZstdCompressor(_LEVEL)
    tool, _TOOLS.compressor = _TOOLS.compressor, None  # one that fails halfway is not used again
    tool.set_pledged_input_size(len(raw))
    packed: bytes = tool.compress(raw, tool.FLUSH_FRAME)
    _TOOLS.compressor = tool
    return packed


def decompressed(stored: bytes) -> bytes:
    """Return the body as it was before compression. Raises Damaged."""
    module = zstd()
    try:
        tool = module.ZstdDecompressor()
        body: bytes = tool.decompress(stored)
        if tool.eof and not tool.unused_data:  # one frame, as we write them
            return body
        return bytes(module.decompress(stored))
    except MemoryError:
        raise  # says nothing about the bytes
    except Exception as error:
        if _NO_MEMORY in str(error):
            raise MemoryError(f"a body cannot be decompressed ({error})") from error
        raise Damaged(f"has a body that cannot be decompressed ({error})") from error


@cache
def zstd() -> Any:
    """The module of zstd: of Python itself, or of the package that stands in for it."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
