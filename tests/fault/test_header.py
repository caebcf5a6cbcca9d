"""A store whose header is damaged is known as one, and a restore sets it aside."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw
import pytest

import limpet
from limpet.errors import StoreCorrupt, StoreForeign
from limpet.store.open import look_at
from limpet.store.sqlite.file.schema import kind_of
from tests.fault.test_restore import copy, folder, grow, make_foreign, target, url, version
from tests.support.processes import ROOT

__all__ = ["copy", "target"]  # the fixtures

NOISE = random.Random(7).randbytes(8_192)


def spoil(path: Path, how: str) -> bytes:
    content = bytearray(path.read_bytes())
    match how:
        case "first bytes":
            content[:16] = NOISE[:16]
        case "zeroed":
            content[:100] = bytes(100)
        case "application id":
            content[68:72] = bytes(4)
        case "schema number":
            content[60:64] = bytes(4)
        case "page size":
            content[16:18] = b"\xff\xff"
        case "two pages":
            content[:8_192] = NOISE
    path.write_bytes(content)
    return bytes(content)


HOWS = ["first bytes", "zeroed", "application id", "schema number", "page size", "two pages"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_damaged_header_is_called_one(target: Path, how: str) -> None:
    """To whoever opens it and whoever only looks; the file stays as it is, and a backup is the
    way out."""
    await grow(target, 60)
    content = spoil(target, how)
    for opening in (limpet.open(url(target)), look_at(url(target))):
        with pytest.raises(StoreCorrupt, match="header is damaged") as info:
            await opening
        assert "limpet restore FILE STORE --replace" in str(info.value)
        assert "something else" not in str(info.value)
    assert folder(target.parent) == {target.name: content}


@pytest.mark.parametrize("how", HOWS)
async def test_a_restore_sets_a_damaged_header_aside(copy: Path, target: Path, how: str) -> None:
    """The backup is in its place, and what was there has another name."""
    await grow(target, 60)
    content = spoil(target, how)
    done = limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 50
    assert done.aside is not None
    assert done.aside.read_bytes()[100:] == content[100:]


@pytest.mark.parametrize("how", HOWS)
async def test_a_backup_with_a_damaged_header_is_called_one(
    copy: Path, target: Path, how: str
) -> None:
    """It is not restored from, and another backup is asked for."""
    spoil(copy, how)
    with pytest.raises(StoreCorrupt, match=r"header is damaged.* Restore another backup"):
        limpet.restore(copy, url(target), replace=True)
    assert await version(target) == 9


async def test_a_log_beside_a_spoiled_file_says_that_it_was_a_store(
    target: Path, tmp_path: Path
) -> None:
    """Even if not a byte of the file itself is left as it was."""
    spoiled = tmp_path / "spoiled.db"
    async with limpet.open(url(target)) as lp:
        await lp.create("a", "b")
        shutil.copy(f"{target}-wal", f"{spoiled}-wal")
    spoiled.write_bytes(NOISE)
    assert kind_of(spoiled) == "damaged"


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_another_program_is_still_another_program(tmp_path: Path, journal: str) -> None:
    """A sound database without our tables belongs to another program, even with similar names."""
    path = tmp_path / "theirs.db"
    make_foreign(path)
    conn = apsw.Connection(str(path))
    conn.pragma("journal_mode", journal)
    conn.execute("CREATE TABLE events (id); CREATE TABLE sessions (id); CREATE TABLE scopes (id)")
    conn.close()
    with pytest.raises(StoreForeign, match="another program created it"):
        await limpet.open(url(path))


@pytest.mark.parametrize("number", [1])
def test_every_schema_is_known_by_its_tables(tmp_path: Path, number: int) -> None:
    """What our files are known by stands in those of every release."""
    path = tmp_path / "a.db"
    content = (ROOT / f"tests/golden/store-{number}.db").read_bytes()
    path.write_bytes(content)
    assert kind_of(path) == "ours"
    path.write_bytes(bytes(100) + content[100:])
    assert kind_of(path) == "damaged"
