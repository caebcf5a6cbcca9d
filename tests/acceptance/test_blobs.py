"""Blobs: large contents of a session, streamed in and out."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.model import limits
from limpet.model.limits import BLOB_CHUNK_BYTES
from limpet.session.writer import writer_of
from tests.support.seal import FixedKeySeal

WHO = "user:ada"
LARGE = b"0123456789abcdef" * (BLOB_CHUNK_BYTES // 8) + b"the rest"


@pytest.fixture
async def s(lp: limpet.Limpet) -> limpet.Session[Any]:
    return await lp.create("support", "ada", id="one")


async def later(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


class Upload:
    """A file whose read is a coroutine, as those of web frameworks are."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    async def read(self, size: int) -> bytes:
        return self._file.read(size)


FORMS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    io.BytesIO,
    Upload,
    lambda raw: [raw[:5], b"", raw[5:]],
    lambda raw: (raw[at : at + 70_000] for at in range(0, len(raw), 70_000)),
    lambda raw: later([raw[:1], raw[1:]]),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("content", [b"", b"a photograph", LARGE], ids=len)
async def test_a_blob_is_put_from_anything_with_bytes(
    s: limpet.Session[Any], form: Callable[[bytes], Any], content: bytes
) -> None:
    """Bytes, files and iterators give the same Ref, and the content comes back."""
    ref = await s.blobs.put(form(content), "image/png")
    assert (ref.hash, ref.size, ref.media_type) == (
        sha256(content).hexdigest(),
        len(content),
        "image/png",
    )
    assert await s.blobs.get(ref) == content
    chunks = [chunk async for chunk in s.blobs.stream(ref)]
    assert b"".join(chunks) == content
    assert all(len(chunk) <= BLOB_CHUNK_BYTES for chunk in chunks)


async def test_a_ref_goes_through_an_event_and_through_typed_state(lp: limpet.Limpet) -> None:
    """ref.data is plain JSON that names the blob again, and a field may be a Ref."""

    class Case(limpet.State):
        schema_version = "1.0.0"
        photo: limpet.Ref[bytes] | None = None

    s = await lp.create("support", "ada", state=Case())
    ref = await s.blobs.put(b"a photograph", "image/png")
    event = await s.append("user.message", {"content": [{"type": "image", **ref.data}]}, actor=WHO)
    await s.apply({"photo": ref}, actor=WHO)
    again = await lp.get(s.key, state_type=Case)
    assert again.state.photo == ref
    part = event.data["content"][0]
    assert limpet.Ref.parse(part) == ref
    for named in (part, again.state.photo, ref.hash):
        assert await again.blobs.get(named) == b"a photograph"


async def test_the_same_content_keeps_its_first_place(s: limpet.Session[Any]) -> None:
    """Put again, as bytes or as a stream, it is the same blob; the Ref has the new media type."""
    one = await s.blobs.put(LARGE, "text/plain")
    two = await s.blobs.put(io.BytesIO(LARGE), "image/png")
    assert (two.hash, two.size, two.media_type) == (one.hash, one.size, "image/png")
    assert len(await writer_of(s).journal.store.blobs.page(s.key, after="", limit=9)) == 1  # type: ignore[attr-defined]


async def test_a_missing_blob_is_an_error(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Of another session too, and at the first step of a stream."""
    other = await lp.create("support", "ada", id="two")
    ref = await other.blobs.put(b"x", "text/plain")
    with pytest.raises(limpet.errors.BlobNotFound) as info:
        await s.blobs.get(ref)
    assert (info.value.key, info.value.hash) == (s.key, ref.hash)
    with pytest.raises(limpet.errors.BlobNotFound):
        await anext(s.blobs.stream(ref))


async def test_a_blob_needs_a_living_session(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """A handle of none, a deleted session, and one that is deleted while it is streamed."""
    with pytest.raises(limpet.SessionNotFound):
        await lp.session("support", "ada", "none").blobs.put(b"x", "text/plain")
    ref = await s.blobs.put(LARGE, "text/plain")
    stream = s.blobs.stream(ref)
    await anext(stream)
    await lp.delete(s.key)
    with pytest.raises(limpet.errors.SessionDeleted):
        await anext(stream)
    for call in (s.blobs.put(b"x", "text/plain"), s.blobs.get(ref)):
        with pytest.raises(limpet.errors.SessionDeleted):
            await call
    assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        ("text", "text/plain"),
        (7, "text/plain"),
        ({"a": b"x"}, "text/plain"),
        (["text"], "text/plain"),
        (io.StringIO("text"), "text/plain"),
        (b"x", ""),
        (b"x", 7),
    ],
)
async def test_what_is_not_bytes_is_refused(
    s: limpet.Session[Any], content: Any, media_type: Any
) -> None:
    """Before anything is kept of it."""
    with pytest.raises(limpet.InvalidInput):
        await s.blobs.put(content, media_type)


@pytest.mark.parametrize("ref", ["x", "A" * 64, 7, None, {}, {"sha256": 7}])
async def test_what_names_no_blob_is_refused(s: limpet.Session[Any], ref: Any) -> None:
    """A hash has 64 lower-case hex digits."""
    with pytest.raises(limpet.InvalidInput):
        await s.blobs.get(ref)


async def test_a_blob_has_a_bound(
    lp: limpet.Limpet, s: limpet.Session[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is refused, and nothing of it is kept."""
    monkeypatch.setattr(limits, "BLOB_BYTES_MAX", len(LARGE))
    await s.blobs.put(io.BytesIO(LARGE), "text/plain")
    with pytest.raises(limpet.errors.BlobTooLarge):
        await s.blobs.put(io.BytesIO(LARGE + b"x"), "text/plain")
    assert len(await writer_of(s).journal.store.blobs.page(s.key, after="", limit=9)) == 1  # type: ignore[attr-defined]
    assert (await lp.maintenance.verify()).ok


async def test_a_stream_that_fails_leaves_nothing(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """Its error is raised as it is; a cancelled put likewise."""

    def failing() -> Iterator[bytes]:
        yield LARGE
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="dead"):
        await s.blobs.put(failing(), "text/plain")
    waiting = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield LARGE
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(s.blobs.put(stuck(), "text/plain"))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await writer_of(s).journal.store.blobs.page(s.key, after="", limit=9) == ()  # type: ignore[attr-defined]
    assert (await lp.maintenance.verify()).ok


async def test_a_lost_lease_puts_no_blob(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """What is written through a lease is refused once it is not held."""
    lease = await lp.work.lock(s.key, worker="w")
    held = lp.session(s.key, lease=lease)
    await held.blobs.put(b"x", "text/plain")
    await lp.work.release(lease)
    with pytest.raises(limpet.errors.SessionFenced):
        await held.blobs.put(b"y", "text/plain")


@pytest.mark.parametrize("seal", [None, FixedKeySeal()], ids=["plain", "sealed"])
async def test_a_large_blob_takes_little_memory(file_url: str, seal: Any) -> None:
    """Streamed in and out, a few chunks are held at a time."""
    size = 24 * BLOB_CHUNK_BYTES

    def pieces() -> Iterator[bytes]:
        for n in range(24):
            yield bytes([n]) * BLOB_CHUNK_BYTES

    async with limpet.open(f"{file_url}?sync=normal", seal=seal) as lp:
        s = await lp.create("support", "ada")
        await s.blobs.put(b"warm", "text/plain")
        tracemalloc.start()
        try:
            ref = await s.blobs.put(pieces(), "video/mp4")
            met = 0
            async for chunk in s.blobs.stream(ref):
                met += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (ref.size, met) == (size, size)
    assert peak < 12 * BLOB_CHUNK_BYTES


async def test_a_backup_has_the_blobs(tmp_path: Path, file_url: str) -> None:
    """The copy verifies and gives the content."""
    async with limpet.open(file_url) as lp:
        s = await lp.create("support", "ada", id="one")
        ref = await s.blobs.put(LARGE, "text/plain")
        await lp.maintenance.backup(tmp_path / "copy.db")
    async with limpet.open(f"sqlite:///{tmp_path}/copy.db") as lp:
        assert await lp.session("support", "ada", "one").blobs.get(ref) == LARGE
        assert (await lp.maintenance.doctor()).report.ok


async def test_a_sealed_blob_is_not_in_the_clear(tmp_path: Path, file_url: str) -> None:
    """Neither the content nor the media type is in the files; another key does not read it."""
    secret = bytes(range(256)) * 16
    async with limpet.open(file_url, seal=FixedKeySeal()) as lp:
        s = await lp.create("support", "ada", id="one")
        ref = await s.blobs.put(secret, "image/x-secret")
        assert await s.blobs.get(ref) == secret
        for file in tmp_path.iterdir():
            assert secret[:64] not in file.read_bytes()
            assert b"x-secret" not in file.read_bytes()
    async with limpet.open(file_url, seal=FixedKeySeal(bytes(32))) as lp:
        with pytest.raises(limpet.errors.SessionCorrupt):
            await lp.session("support", "ada", "one").blobs.get(ref)
        assert not (await lp.maintenance.verify()).ok


async def test_an_erased_blob_is_in_no_file(tmp_path: Path, file_url: str) -> None:
    """The bytes leave the database and its log before erase returns."""
    secret = bytes(range(256)) * 3  # too small to be compressed
    async with limpet.open(file_url) as lp:
        s = await lp.create("support", "ada", id="one")
        await s.blobs.put(secret, "text/plain")
        assert any(secret[:200] in file.read_bytes() for file in tmp_path.iterdir())
        await lp.erase(s.key)
        for file in tmp_path.iterdir():
            assert secret[:200] not in file.read_bytes()


def test_blobs_without_await() -> None:
    """The same verbs; a stream is an iterator."""
    with limpet.open_sync("memory://") as lp:
        s = lp.create("support", "ada")
        ref = s.blobs.put(io.BytesIO(LARGE), "text/plain")
        assert s.blobs.get(ref) == LARGE
        assert b"".join(s.blobs.stream(ref)) == LARGE


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False], ids=["everything", "one"])
async def test_a_copy_has_the_blobs(lp: limpet.Limpet, tmp_path: Path, *, whole: bool) -> None:
    """Of everything and of one session, to another kind of store; done again it sends none."""
    s = await lp.create("support", "ada", id="one")
    await lp.create("support", "ada", id="none")
    ref = await s.blobs.put(LARGE, "image/png")
    await s.append("user.message", {"content": [{"type": "image", **ref.data}]}, actor=WHO)
    small = await s.blobs.put(b"x", "text/plain")
    async with limpet.open(f"sqlite:///{tmp_path}/to.db?sync=normal") as to:
        copied = await lp.copy(None if whole else s.key, to=to)
        assert (copied.blobs, copied.ok) == (2, True)
        there = await to.get(s.key)
        (image,) = there.events[-1].data["content"]
        assert await there.blobs.get(image) == LARGE
        assert await there.blobs.get(small) == b"x"
        assert (await to.maintenance.verify()).ok
        assert (await lp.copy(None if whole else s.key, to=to)).blobs == 0


async def test_a_copy_that_was_stopped_sends_the_blobs_that_are_missing(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """Though the target has every event; and a fork sees there what it sees here."""
    await s.blobs.put(LARGE, "image/png")
    async with limpet.open("memory://") as to:
        assert (await lp.copy(to=to)).blobs == 1
        ref = await s.blobs.put(b"later", "text/plain")
        again = await lp.copy(to=to)
        assert (again.events, again.blobs) == (0, 1)
        assert await to.session(s.key).blobs.get(ref) == b"later"
