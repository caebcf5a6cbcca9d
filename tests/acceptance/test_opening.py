"""Opening: a database that is not ours, not readable, not writable, or not there."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import errors
from limpet.store.sqlite.store import SQLiteStore
from tests.support.forked import as_nobody, in_child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "support.db"


async def opened(path: Path) -> int:
    """Open, write one event, close; its seq."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        s = await lp.get_or_create("a", "u", id="1", actor="x")
        return (await s.append("a.b", actor="x")).seq


async def refused(path: Path, error: type[errors.LimpetError]) -> None:
    """Opening fails with this error, and the file is byte for byte what it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error) as info:
        await opened(path)
    assert info.type is error
    assert str(path) in str(info.value)
    assert str(info.value).endswith(".")
    assert (path.read_bytes() if path.is_file() else None) == before


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    """A text, however long, is somebody else's."""
    path.write_text("dear diary, " * 1_000)
    await refused(path, errors.StoreForeign)


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    """Tables without our mark are left alone."""
    with apsw.Connection(str(path)) as conn:
        conn.execute("CREATE TABLE diary (day, text)")
    await refused(path, errors.StoreForeign)


async def test_a_database_with_another_mark_is_refused(path: Path) -> None:
    """Even an empty one."""
    apsw.Connection(str(path)).execute("PRAGMA application_id = 12345; PRAGMA user_version = 1")
    await refused(path, errors.StoreForeign)


async def test_a_newer_database_is_refused(path: Path) -> None:
    """A later release wrote it; this one does not guess."""
    await opened(path)
    conn = apsw.Connection(str(path))
    conn.execute("PRAGMA user_version = 99")
    conn.close()
    await refused(path, errors.StoreNewer)


async def test_an_empty_file_becomes_a_database(path: Path) -> None:
    """touch and mktemp make such files."""
    path.touch()
    assert await opened(path) == 2


async def test_a_missing_directory_is_told(path: Path) -> None:
    """Nothing is created on the way to a mistyped path."""
    missing = path.parent / "missing" / "support.db"
    await refused(missing, errors.StoreUnopened)
    assert not missing.parent.exists()


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
async def test_an_absolute_path_with_three_slashes_is_named_with_four(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that only exists from the root was meant from there."""
    monkeypatch.chdir(tmp_path)
    meant, looking = str(tmp_path / "nothing")[1:], "?mode=ro" if scheme == "files" else ""
    with pytest.raises(errors.StoreUnopened, match=f"four slashes: {scheme}:////{meant}[.]$"):
        async with limpet.open(f"{scheme}:///{meant}{looking}"):
            pass
    with pytest.raises(errors.StoreUnopened) as info:
        async with limpet.open(f"{scheme}:///neither/here{looking}"):
            pass
    assert "slashes" not in str(info.value)


async def test_a_directory_is_no_database(path: Path) -> None:
    """A path that names a directory is told so."""
    path.mkdir()
    await refused(path, errors.StoreUnopened)


@pytest.mark.parametrize("cut", [100, 4_096, 10_000])
async def test_a_torn_database_is_damaged(path: Path, cut: int) -> None:
    """A file that lost its end raises an error of ours, at opening or at the first use."""
    await opened(path)
    path.write_bytes(path.read_bytes()[:cut])
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(errors.StoreError):
        await opened(path)


async def test_a_locked_database_is_busy(path: Path) -> None:
    """After its patience a write says that another process holds the file, and may be retried."""
    await opened(path)
    store = await SQLiteStore.open(path, busy_seconds=0.05)
    holder = apsw.Connection(str(path))
    holder.set_busy_timeout(5_000)
    async with limpet.Limpet("sqlite:///", store=store) as lp:
        s = await lp.get(("a", "u", "1"))
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy) as info:
            await s.append("a.b", actor="x", set={"n": 1})
        assert info.value.retryable
        assert (s.version, dict(s.state)) == (2, {})
        assert (await lp.get(s.key)).version == 2
        holder.execute("ROLLBACK")
        assert (await s.append("a.b", actor="x")).seq == 3
    holder.close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may look into."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("protected", ["file", "directory", "new file"])
def test_a_database_that_may_not_be_written_is_told(public: Path, protected: str) -> None:
    """Read-only files and directories give an error of ours, and nothing is changed."""
    path = public / "support.db"
    if protected != "new file":
        asyncio.run(opened(path))
        os.chmod(path, 0o644 if protected == "file" else 0o666)  # noqa: PTH101  # by its mode
    public.chmod(stat.S_IRUSR | stat.S_IXUSR | 0o055)
    before = sorted(public.iterdir())

    def child() -> str:
        as_nobody()
        try:
            asyncio.run(opened(path))
        except errors.StoreError as error:
            return error.code
        return "no error"

    code = in_child(child)
    public.chmod(0o755)
    assert code in ("store.read_only", "store.unopened")
    assert sorted(public.iterdir()) == before


async def test_one_file_may_be_opened_many_times(path: Path) -> None:
    """A new file opened by several at once is made once."""
    url = f"sqlite:///{path}"
    instances = [limpet.open(url) for _ in range(5)]
    await asyncio.gather(*(lp.__aenter__() for lp in instances))
    await asyncio.gather(*(lp.create("a", "u", id=str(n)) for n, lp in enumerate(instances)))
    assert len((await instances[0].list()).items) == 5
    for lp in instances:
        await lp.close()
