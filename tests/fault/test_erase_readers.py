"""Erasing while a reader elsewhere keeps old pages alive: told, finished later, in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from limpet import Limpet, Session
from limpet.errors import SessionErased, StoreBusy
from limpet.store.sqlite.store import SQLiteStore
from tests.support.processes import Child
from tests.support.worker import KEY

MARK = "a-marker-of-the-erased"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def patience_seconds() -> float:
    """For how long an erasure waits for readers."""
    return 0.2


@pytest.fixture
async def lp(path: Path, patience_seconds: float) -> AsyncIterator[Limpet]:
    store = await SQLiteStore.open(path, busy_seconds=patience_seconds)
    async with Limpet("sqlite:///a", store=store) as lp:
        yield lp


@pytest.fixture
async def kept(lp: Limpet) -> Session:
    return await lp.create(KEY.app, KEY.user, id=KEY.id, actor="x", state={"n": 0})


@pytest.fixture
async def gone(lp: Limpet) -> Session:
    session = await lp.create("a", "u", id=f"{MARK}-id", actor="x", labels={"of": MARK})
    for _ in range(20):
        await session.append("x.y", {"text": MARK}, add={"log": [MARK]})
    return session


@pytest.fixture
def reader(path: Path, gone: Session) -> Iterator[apsw.Connection]:
    """A read transaction of somebody else, begun before the erasure and still open."""
    conn = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    conn.execute("BEGIN")
    assert conn.execute("SELECT count(*) FROM events").get
    yield conn
    conn.close()


def marked(path: Path) -> list[str]:
    """The files that still have a byte of the erased session."""
    return [file.name for file in path.parent.iterdir() if MARK.encode() in file.read_bytes()]


async def test_an_erasure_held_up_by_a_reader_is_told_and_finished_later(
    lp: Limpet, kept: Session, gone: Session, reader: apsw.Connection, path: Path
) -> None:
    """The session is gone at once; calling again when the reader has left takes the last byte."""
    with pytest.raises(StoreBusy) as info:
        await lp.erase(gone.key)
    assert info.value.retryable
    with pytest.raises(SessionErased):
        await lp.get(gone.key)
    with pytest.raises(StoreBusy):
        await lp.erase(gone.key)
    await asyncio.gather(*(kept.append("x.y", inc={"n": 1}) for _ in range(20)))
    assert kept.state["n"] == 20
    assert reader.in_transaction
    reader.execute("COMMIT")
    assert await lp.erase(gone.key) is not None
    assert marked(path) == []
    await kept.append("x.y")
    assert marked(path) == []
    assert (await lp.maintenance.verify()).findings == ()


@pytest.mark.parametrize("patience_seconds", [60.0])
async def test_nobody_waits_for_an_erasure_that_waits(
    lp: Limpet, kept: Session, gone: Session, reader: apsw.Connection, path: Path
) -> None:
    """Appends here and in another process are recorded while it waits and the reader reads on."""
    erasing = asyncio.create_task(lp.erase(gone.key))
    while await lp.find(gone.key, tail=0) is not None:
        await kept.append("x.y", inc={"n": 1})
    for _ in range(5):
        await kept.append("x.y", inc={"n": 1})
    with Child("tests.support.worker", "incrementer", path, "w", 3) as child:
        child.expect("ready")
        child.tell("go")
        child.expect("done w")
        child.end()
    assert reader.in_transaction
    assert not erasing.done()
    reader.execute("COMMIT")
    assert await erasing is not None
    assert marked(path) == []


async def test_an_erasure_that_was_held_up_is_finished_by_itself_or_by_the_next(
    gone: Session, lp: Limpet, reader: apsw.Connection, path: Path
) -> None:
    """Closing and opening again: calling erase there finds nothing left to see."""
    with pytest.raises(StoreBusy):
        await lp.erase(gone.key)
    reader.execute("COMMIT")
    reader.close()
    await lp.close()
    store = await SQLiteStore.open(path)
    async with Limpet("sqlite:///a", store=store) as again:
        assert await again.erase(gone.key) is not None
        assert marked(path) == []
