"""Ids: UUID version 7, made from a time and random bytes that are passed in.

48 bits of milliseconds, 12 of a counter within them, 62 of noise (RFC 9562).

Ids from one pool sort in the order they were made, even within a millisecond and when the clock
steps back. Random bytes are read in large blocks: one system call per id would cost more than the
rest of it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

_BLOCK_BYTES: Final = 4_096
_NOISE_BYTES: Final = 8
_COUNTER_MAX: Final = 0xFFF
# RFC 9562: of every eight bytes of noise the two high bits are 10, its variant.
_FREE: Final = int.from_bytes((b"\x3f" + b"\xff" * 7) * (_BLOCK_BYTES // _NOISE_BYTES))
_VARIANT: Final = int.from_bytes((b"\x80" + b"\x00" * 7) * (_BLOCK_BYTES // _NOISE_BYTES))
_COUNTED: Final = tuple([f"{number:03x}-" for number in range(256)])  # of most milliseconds


class Noise:
    """A source of `size` random bytes at a time, each given once; `size` divides a block. For one
    process."""

    __slots__ = ("_draw", "_left", "_split")

    def __init__(self, draw: Callable[[int], bytes], size: int) -> None:
        self._draw, self._split = draw, Struct(f"{size}s" * (_BLOCK_BYTES // size)).unpack
        self._left: list[bytes] = []

    def __call__(self) -> bytes:
        try:
            return self._left.pop()
        except IndexError:
            self._left += self._split(self._draw(_BLOCK_BYTES))
            return self._left.pop()


class Ids:
    """A source of UUIDv7 texts in ascending order. For one process."""

    __slots__ = ("_counter", "_digits", "_draw", "_last_ms", "_now_ns", "_prefix")

    def __init__(self, now_ns: Callable[[], int], draw: Callable[[int], bytes]) -> None:
        self._now_ns, self._draw = now_ns, draw
        self._last_ms, self._counter, self._prefix = -1, 0, ""
        self._digits: list[str] = []  # 16 random ones for an id

    def __call__(self) -> str:
        now_ms, counter = self._now_ns() // 1_000_000, self._counter + 1
        if now_ms > self._last_ms:
            counter = self._begin(now_ms)
        elif counter > _COUNTER_MAX:  # used up: borrow the next one rather than lose the order
            counter = self._begin(self._last_ms + 1)
        self._counter = counter
        counted = _COUNTED[counter] if counter < 256 else f"{counter:03x}-"
        try:
            tail = self._digits.pop()
        except IndexError:
            drawn = int.from_bytes(self._draw(_BLOCK_BYTES)) & _FREE | _VARIANT
            self._digits += drawn.to_bytes(_BLOCK_BYTES).hex("-", _NOISE_BYTES).split("-")
            tail = self._digits.pop()
        return f"{self._prefix}{counted}{tail[:4]}-{tail[4:]}"

    def _begin(self, at_ms: int) -> int:
        """Go on to this millisecond, whose counter begins with 0."""
        head = f"{at_ms:012x}"
        self._last_ms, self._prefix = at_ms, f"{head[:8]}-{head[8:]}-7"
        return 0
