"""What travels compressed: smaller, whole, and never larger than a message."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import InvalidInput
from limpet.server import store_door
from limpet.server.store_door import ExpandedMemory
from limpet.store.coding.codec import zstd
from limpet.store.remote import packing
from limpet.store.remote.messages import MESSAGE_BYTES_MAX
from limpet.store.remote.packing import COMPRESSED, PLAIN, Parcel, compress, expand

TEXT = b"what a session holds repeats itself; " * 1_000


def test_what_is_large_travels_compressed_and_what_is_small_does_not() -> None:
    """And what does not get smaller stays as it is."""
    parcel = compress(TEXT)
    assert parcel.form == COMPRESSED
    assert len(parcel.data) < len(TEXT) // 10
    assert expand(parcel) == TEXT
    small = TEXT[: packing.COMPRESS_BYTES - 1]
    assert compress(small) == Parcel(PLAIN, small)
    noise = zstd().compress(bytes(range(256)) * 40 + TEXT, 19) * 20
    assert expand(compress(noise)) == noise


def test_a_small_message_that_would_fill_the_memory_is_refused() -> None:
    """A frame says how large it is, and that is no more than a message; a frame that hides its
    size, lies about it or is cut is refused."""
    tool = zstd()
    bomb = tool.compress(bytes(MESSAGE_BYTES_MAX + 1), 3)
    unsized = tool.ZstdCompressor(3)
    hidden = unsized.compress(TEXT) + unsized.flush(unsized.FLUSH_FRAME)
    whole = compress(TEXT).data
    for data in (bomb, hidden, whole[:-1], whole + whole, b"", b"nonsense"):
        with pytest.raises(InvalidInput):
            expand(Parcel(COMPRESSED, data))


async def test_compressed_calls_at_work_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one waits until there is room; one that is larger than all is let in alone."""
    monkeypatch.setattr(store_door, "EXPANDED_BYTES_MAX", len(TEXT) + 1)
    memory, inside = ExpandedMemory(), 0

    async def work(leave: asyncio.Event) -> None:
        nonlocal inside
        async with memory.taken(len(TEXT)):
            inside += 1
            await leave.wait()
            inside -= 1

    leaves = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(work(leave)) for leave in leaves]
    for number, leave in enumerate(leaves):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert inside == 1
        leave.set()
        await tasks[number]
    monkeypatch.setattr(store_door, "EXPANDED_BYTES_MAX", 1)
    async with memory.taken(len(TEXT)):
        assert inside == 0
