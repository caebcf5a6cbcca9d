"""Commands that only look: they change nothing, and look also where nothing may be changed."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import limpet
from limpet.store.sqlite.file.schema import SCHEMA
from tests.support import chats, later
from tests.support.command import answer, run
from tests.support.postgres import functions

GOLDEN = Path(__file__).parents[1] / "golden"
LOOKING = ("doctor", "verify", "status")


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user who may do what permissions say, which root is not."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody")
    os.setegid(nobody.pw_gid)
    os.seteuid(nobody.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def there() -> Iterator[Path]:
    """A directory that every user can reach, with a store in it."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-looking-"))
    asyncio.run(chats.fill(f"sqlite:///{folder}/a.db"))
    for command in LOOKING:  # whatever is imported for it is imported now
        run(folder, command, "sqlite:///a.db")
    run(folder, "backup", "sqlite:///a.db", "a.bak", "--verify")
    (folder / "a.bak").unlink()
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def killed(folder: Path) -> None:
    """A copy of the store, b.db, as a process leaves it that is killed after one more commit."""
    async with limpet.open(f"sqlite:///{folder}/a.db") as lp:
        await lp.create("support", "ada", id="another")
        for suffix in ("", "-wal"):
            shutil.copy(folder / f"a.db{suffix}", folder / f"b.db{suffix}")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- what opening would change ------------------------------------------------------------------


@pytest.mark.parametrize("command", ["verify", "status"])
def test_an_older_schema_is_refused_and_left_as_it_is(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, with nothing beside it."""
    shutil.copy(GOLDEN / f"store-{SCHEMA}.db", tmp_path / "old.db")
    later.release(monkeypatch)
    before = content(tmp_path)
    code, told = answer(tmp_path, command, "sqlite:///old.db")
    assert (code, told["error"]["code"]) == (4, "store.older")
    assert content(tmp_path) == before


def test_the_doctor_leaves_an_older_schema_as_it_is(tmp_path: Path) -> None:
    """It says what the upgrade will do, and does nothing of it."""
    shutil.copy(GOLDEN / "store-1.db", tmp_path / "old.db")
    before = content(tmp_path)
    code, said = answer(tmp_path, "doctor", "sqlite:///old.db")
    assert (code, said["checks"][0]["name"]) == (0, "upgrade")
    assert content(tmp_path) == before


def test_the_doctor_leaves_a_log_of_an_older_format_as_it_is(tmp_path: Path) -> None:
    """It checks all of it, says what writing will do, and does nothing of it."""
    with tarfile.open(GOLDEN / "files-1.tar.xz") as archive:
        archive.extractall(tmp_path / "old", filter="data")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, said = answer(tmp_path, "doctor", f"files:///{tmp_path}/old")
    (upgrade,) = [check for check in said["checks"] if check["name"] == "upgrade"]
    assert (code, upgrade["severity"]) == (0, "warning")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", LOOKING)
def test_a_sound_store_is_left_as_it_is(there: Path, command: str) -> None:
    """Byte for byte, with nothing beside it."""
    before = content(there)
    assert run(there, command, "sqlite:///a.db").returncode == 0
    assert content(there) == before


def test_what_a_killed_process_left_is_left_as_it_is(there: Path) -> None:
    """The commits in its log are read, and neither the file nor the log is touched."""
    asyncio.run(killed(there))
    names = ("b.db", "b.db-wal")
    before = {name: (there / name).read_bytes() for name in names}
    assert before["b.db-wal"]
    for command in LOOKING:
        assert run(there, command, "sqlite:///b.db").returncode == 0
        assert {name: (there / name).read_bytes() for name in names} == before
    code, told = answer(there, "backup", "sqlite:///b.db", "b.bak", "--verify")
    assert (code, told["verify"]["sessions"]) == (0, 9)
    assert {name: (there / name).read_bytes() for name in names} == before


def test_a_copy_that_is_not_in_wal_mode_is_read_as_it_is(there: Path) -> None:
    """It verifies, the doctor says so, and it is not switched."""
    conn = apsw.Connection(str(there / "a.db"))
    conn.execute("VACUUM INTO ?", (str(there / "copy.db"),))
    conn.close()
    before = content(there)
    assert run(there, "verify", "sqlite:///copy.db").returncode == 0
    checks = answer(there, "doctor", "sqlite:///copy.db")[1]["checks"]
    (mode,) = [check for check in checks if check["name"] == "journal mode"]
    assert mode["severity"] == "problem"
    assert content(there) == before


@pytest.mark.parametrize("command", LOOKING)
def test_functions_of_another_release_on_a_server_are_refused(
    tmp_path: Path, postgres_url: str, command: str
) -> None:
    """They are the schema's as well: opening it would replace them."""

    asyncio.run(chats.fill(postgres_url))
    asyncio.run(functions(postgres_url, b"x"))
    code, told = answer(tmp_path, command, postgres_url)
    assert (code, told["error"]["code"]) == (4, "store.unopened")
    assert asyncio.run(functions(postgres_url)) == b"x"


async def test_a_store_that_is_looked_at_takes_no_commits(there: Path) -> None:
    """Whoever opened it to look is told so when writing."""
    from limpet.store.open import look_at

    url = f"sqlite:///{there}/a.db"
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        with pytest.raises(limpet.errors.StoreReadOnly, match="opened read-only"):
            await lp.create("support", "ada", id="another")


# --- where nothing may be written ---------------------------------------------------------------


def read_only(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def read_only_file(folder: Path) -> None:
    (folder / "a.db").chmod(0o444)
    folder.chmod(0o777)


def read_only_folder(folder: Path) -> None:
    (folder / "a.db").chmod(0o666)
    folder.chmod(0o555)


@pytest.mark.parametrize("shut", [read_only, read_only_file, read_only_folder])
def test_a_store_that_may_not_be_written_can_be_looked_at(
    there: Path, shut: Callable[[Path], None]
) -> None:
    """Doctor, verify and backup read it, and leave no file of theirs beside it."""
    shut(there)
    before = content(there)
    with without_rights(), tempfile.TemporaryDirectory() as own:
        for command in LOOKING:
            code, told = answer(there, command, "sqlite:///a.db")
            assert (code, told["ok"]) == (0, True)
        code, told = answer(there, "backup", "sqlite:///a.db", f"{own}/copy.db", "--verify")
        assert (code, told["ok"]) == (0, True)
    assert content(there) == before


def test_a_log_that_cannot_be_read_in_place_is_told_with_what_to_do(there: Path) -> None:
    """Commits in a -wal are not passed over: the file has to be copied first, with it."""
    asyncio.run(killed(there))
    read_only(there)
    with without_rights():
        for command in LOOKING:
            code, told = answer(there, command, "sqlite:///b.db")
            assert (code, told["error"]["code"]) == (4, "store.read_only")
            assert "Copy the file and its -wal" in told["error"]["message"]


def test_a_file_that_changes_while_it_is_read_unlocked_is_told(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be of two moments, so nothing is said of it but that."""
    from limpet.store.sqlite.verify import SQLiteVerification

    read_only_folder(there)
    real = SQLiteVerification.run

    def meanwhile(self: SQLiteVerification, *args: object) -> object:
        os.utime(there / "a.db", ns=(1, 1))
        return real(self, *args)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(SQLiteVerification, "run", meanwhile)
    (there / "a.db").chmod(0o666)
    if os.geteuid() == 0:
        os.chown(there / "a.db", pwd.getpwnam("nobody").pw_uid, -1)
    with without_rights():
        code, told = answer(there, "verify", "sqlite:///a.db")
    assert (code, told["error"]["code"]) == (4, "store.unopened")
    assert "it was written while it was read" in told["error"]["message"]


def test_a_directory_that_may_not_be_entered_or_written_is_told(there: Path) -> None:
    """On the way to a store, to a copy and to the place of a restore."""
    (there / "shut").mkdir()
    (there / "shut").chmod(0)
    with without_rights():
        for command in (*LOOKING, "backup"):
            args = ("copy.db",) if command == "backup" else ()
            code, told = answer(there, command, "sqlite:///shut/a.db", *args)
            assert (code, told["error"]["code"]) == (4, "store.unopened")
            assert "Permission denied" in told["error"]["message"]
        for place in ("shut/x.db", "x.db"):
            for line in (
                ("backup", "sqlite:///a.db", place),
                ("restore", "a.db", f"sqlite:///{place}"),
            ):
                code, told = answer(there, *line)
                assert (code, told["error"]["code"]) == (4, "backup.refused")
                assert place in told["error"]["message"]


def test_a_file_that_may_not_be_read_is_told(there: Path) -> None:
    """As a store and as a backup."""
    (there / "a.db").chmod(0)
    there.chmod(0o777)
    with without_rights():
        for command in LOOKING:
            code, told = answer(there, command, "sqlite:///a.db")
            assert (code, told["error"]["code"]) == (4, "store.unopened")
            assert "may not read it" in told["error"]["message"]
        code, told = answer(there, "restore", "a.db", "sqlite:///new.db")
        assert (code, told["error"]["code"]) == (4, "backup.refused")
        assert "a.db cannot be read: Permission denied" in told["error"]["message"]
