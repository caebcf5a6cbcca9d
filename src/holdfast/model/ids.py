"""Ids: UUID version 7, made from time and pooled randomness that arrive as arguments.

Ids made by one pool sort in the order they were made, even within a millisecond and when the
clock steps back. Randomness is drawn in large blocks: one system call per id costs more than the
rest of an append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_BLOCK_BYTES: Final = 8_192
_COUNTER_MAX: Final = 0xFFF
_NOISE: Final = 0x3FFF_FFFF_FFFF_FFFF
_VARIANT: Final = 0x8000_0000_0000_0000


class Entropy:
    """Random bytes handed out from a block. One owner, one thread, one process: never shared."""

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
    """A source of UUIDv7 texts that only grow."""

    __slots__ = ("_counter", "_entropy", "_last_ms", "_now_ms")

    def __init__(self, now_ms: Callable[[], int], entropy: Entropy) -> None:
        self._now_ms, self._entropy = now_ms, entropy
        self._last_ms, self._counter = 0, 0

    def __call__(self) -> str:
        now = self._now_ms()
        if now > self._last_ms:
            self._last_ms, self._counter = now, 0
        elif self._counter < _COUNTER_MAX:
            self._counter += 1
        else:  # the millisecond is used up: borrow the next one rather than lose the order
            self._last_ms, self._counter = self._last_ms + 1, 0
        return uuid7(self._last_ms, self._counter, self._entropy.take(8))


def uuid7(at_ms: int, counter: int, noise: bytes) -> str:
    """RFC 9562 version 7: 48 bits of time, 12 of counter, 62 of noise."""
    head = f"{at_ms:012x}7{counter:03x}"
    tail = f"{int.from_bytes(noise, 'big') & _NOISE | _VARIANT:x}"
    return f"{head[:8]}-{head[8:12]}-{head[12:]}-{tail[:4]}-{tail[4:]}"
