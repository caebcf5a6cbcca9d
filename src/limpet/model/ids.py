"""Ids: UUID version 7, made from a time and random bytes that are passed in.

48 bits of milliseconds, 12 of a counter within them, 62 of noise (RFC 9562).

Ids from one pool sort in the order they were made, even within a millisecond and when the clock
steps back. Random bytes are read in large blocks: one system call per id would cost more than the
rest of an append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_BLOCK_BYTES: Final = 8_192
_COUNTER_MAX: Final = 0xFFF
# RFC 9562: the first digit of the fourth group has its two high bits set to 10.
_VARIANT: Final = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
_COUNTED: Final = tuple([f"{number:03x}-" for number in range(256)])  # of most milliseconds


class Entropy:
    """Random bytes from a block. One owner, one thread, one process: never shared."""

    __slots__ = ("_at", "_block", "_draw")

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw
        self._block, self._at = b"", 0

    def take(self, size: int) -> bytes:
        """`size` fresh bytes, at most a block."""
        at = self._at
        end = at + size
        block = self._block
        if end > len(block):
            block = self._block = self._draw(_BLOCK_BYTES)
            at, end = 0, size
        self._at = end
        return block[at:end]


class Ids:
    """A source of UUIDv7 texts in ascending order."""

    __slots__ = ("_counter", "_entropy", "_last_ms", "_now_ms", "_prefix")

    def __init__(self, now_ms: Callable[[], int], entropy: Entropy) -> None:
        self._now_ms, self._entropy = now_ms, entropy
        self._last_ms, self._counter, self._prefix = -1, 0, ""

    def __call__(self) -> str:
        now = self._now_ms()
        if now > self._last_ms:
            self._begin(now)
        elif self._counter < _COUNTER_MAX:
            self._counter += 1
        else:  # the millisecond is used up: borrow the next one rather than lose the order
            self._begin(self._last_ms + 1)
        return _text(self._prefix, self._counter, self._entropy.take(8))

    def _begin(self, at_ms: int) -> None:
        self._last_ms, self._counter, self._prefix = at_ms, 0, _prefix(at_ms)


def uuid7(at_ms: int, counter: int, noise: bytes) -> str:
    """The id for a millisecond, a counter within it, and eight random bytes."""
    return _text(_prefix(at_ms), counter, noise)


def _prefix(at_ms: int) -> str:
    head = f"{at_ms:012x}"
    return f"{head[:8]}-{head[8:]}-7"


def _text(prefix: str, counter: int, noise: bytes) -> str:
    tail = noise.hex()
    counted = _COUNTED[counter] if counter < 256 else f"{counter:03x}-"
    return f"{prefix}{counted}{_VARIANT[tail[0]]}{tail[1:4]}-{tail[4:]}"
