"""What one step of the event loop writes to a connection leaves in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet.server import connection
from limpet.server.connection import JoinedWrites
from limpet.server.limits import JOINED_BYTES_MAX


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []
        self.waiting_bytes = 0  # that the client has not taken
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def write(self, data: Any) -> None:
        self.log.append(bytes(data))

    def close(self) -> None:
        self.log.append("closed")

    def abort(self) -> None:
        self.log.append("aborted")
        self.aborted.set()


async def test_the_head_and_the_body_of_an_answer_are_one_write() -> None:
    plain = FakeTransport()
    joined = JoinedWrites(plain, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"body")
    assert plain.log == []
    await asyncio.sleep(0)
    assert plain.log == [b"head body"]
    joined.write(b"next")
    await asyncio.sleep(0)
    assert plain.log == [b"head body", b"next"]


async def test_a_long_answer_is_not_gathered() -> None:
    """The transport sees it in time to say that its reader is too slow."""
    plain = FakeTransport()
    joined = JoinedWrites(plain, asyncio.get_running_loop())
    for _ in range(5):
        joined.write(b"x" * JOINED_BYTES_MAX)
    assert len(b"".join(plain.log)) >= 4 * JOINED_BYTES_MAX


async def test_closing_sends_what_was_written_and_aborting_does_not() -> None:
    plain = FakeTransport()
    joined = JoinedWrites(plain, asyncio.get_running_loop())
    joined.write(b"bye")
    joined.close()
    joined.write(b"never")
    joined.abort()
    await asyncio.sleep(0)
    assert plain.log == [b"bye", "closed", "aborted"]


async def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its answer was closed, which waits for it."""
    monkeypatch.setattr(connection, "UNREAD_SECONDS", 0.01)
    plain = FakeTransport()
    joined = JoinedWrites(plain, asyncio.get_running_loop())
    plain.waiting_bytes = 3
    joined.write(b"answer")
    joined.close()
    async with asyncio.timeout(60):
        await plain.aborted.wait()
    assert plain.log == [b"answer", "closed", "aborted"]


async def test_a_client_that_takes_something_goes_on() -> None:
    """It is looked at again, until it has all of it; then nobody looks any more."""
    plain, loop = FakeTransport(), asyncio.get_running_loop()
    joined = JoinedWrites(plain, loop)
    plain.waiting_bytes = 6
    joined.write(b"answer")
    await asyncio.sleep(0)
    for left, watched in ((4, True), (1, True), (0, False)):
        before = plain.waiting_bytes
        plain.waiting_bytes = left
        assert joined._watch is not None
        joined._watch.cancel()
        joined._look(6 - before)  # as its timer would
        assert (joined._watch is not None) is watched
    assert "aborted" not in plain.log
