"""Backups on the command line: what is checked, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.store.open import refuse_uncopied
from limpet.store.sqlite.file.schema import SCHEMA
from tests.support import later
from tests.support.command import PAGE, answer, run, run_terminal
from tests.support.postgres import Server, binaries, unprivileged
from tests.support.seal import KeylessSeal

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a sound store of two sessions and a damaged one."""
    asyncio.run(fill(f"sqlite:///{tmp_path}/sound.db"))
    content = (tmp_path / "sound.db").read_bytes()
    assert content.count(b"a marker") == 1
    (tmp_path / "damaged.db").write_bytes(content.replace(b"a marker", b"a marKer"))
    return tmp_path


async def fill(url: str) -> None:
    async with limpet.open(url) as lp:
        one = await lp.create("support", "ada", id="one")
        await one.append("user.message", {"text": "a marker"}, actor="user:ada")
        await lp.create("support", "grace", id="two")


async def sessions(url: str) -> list[str]:
    async with limpet.open(url) as lp:
        return sorted(head.key.id for head in (await lp.list()).items)


# --- what is checked ----------------------------------------------------------------------------


def test_a_damaged_backup_is_refused_with_its_findings(here: Path) -> None:
    """Nothing is replaced, and what is wrong is told by session and event."""
    before = (here / "sound.db").read_bytes()
    code, told = answer(here, "restore", "damaged.db", "sqlite:///sound.db", "--replace")
    assert (code, told["error"]["code"]) == (4, "backup.damaged")
    (finding,) = told["error"]["findings"]
    assert finding.startswith("support/ada/one event 2 ")
    assert (here / "sound.db").read_bytes() == before
    done = run(here, "restore", "damaged.db", "sqlite:///new.db")
    assert (done.returncode, done.stdout) == (4, "")
    assert "support/ada/one event 2 " in done.stderr
    assert "--damaged" in done.stderr
    assert sorted(path.name for path in here.iterdir()) == ["damaged.db", "sound.db"]


def test_a_damaged_backup_can_be_restored_all_the_same(here: Path) -> None:
    """When asked to; the findings are told and the exit code says that there are some."""
    code, told = answer(here, "restore", "damaged.db", "sqlite:///new.db", "--damaged")
    assert (code, told["ok"], len(told["verify"]["findings"])) == (1, False, 1)
    assert run(here, "verify", "sqlite:///new.db").returncode == 1
    done = run(here, "restore", "damaged.db", "sqlite:///newer.db", "--damaged")
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 finding: 2 sessions, 3 events read." in done.stdout


def test_a_backup_tells_what_was_checked(here: Path) -> None:
    """Nothing unless --verify is given; then every session of the copy."""
    assert "not verified" in run(here, "backup", "sqlite:///sound.db", "1.db").stdout
    assert answer(here, "backup", "sqlite:///sound.db", "2.db")[1]["verify"] is None
    done = run(here, "backup", "sqlite:///sound.db", "3.db", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "verified: 2 sessions, 3 events, nothing is wrong." in done.stdout


def test_a_damaged_store_is_copied_and_told_of(here: Path) -> None:
    """The copy is kept, since it may be the best there is, and --verify ends with 1."""
    code, told = answer(here, "backup", "sqlite:///damaged.db", "1.db", "--verify")
    assert (code, told["ok"]) == (1, False)
    assert [finding["seq"] for finding in told["verify"]["findings"]] == [2]
    done = run(here, "backup", "sqlite:///damaged.db", "2.db", "--verify")
    assert done.returncode == 1
    assert "same damage as the store" in done.stdout
    assert run(here, "verify", "sqlite:///1.db").returncode == 1


def test_a_family_that_is_not_there_is_refused(here: Path) -> None:
    """A misspelled name is not taken for a user whose sessions have all been copied."""
    family = ("copy", "sound.db", "other.db", "--app", "support", "--check", "--family")
    code, told = answer(here, *family, "adda")
    assert (code, told["error"]["code"]) == (3, "session.not_found")
    assert "of the user 'adda' of the app 'support'" in told["error"]["message"]
    assert answer(here, *family, "ada")[0] == 0


def test_a_copy_is_read_with_a_bar_of_its_own(here: Path) -> None:
    """On a terminal both steps are seen."""
    code, shown = run_terminal(here, "restore", "sound.db", "sqlite:///new.db")
    assert code == 0
    assert "copying pages" in shown
    assert "reading sessions" in shown
    assert "verified: 2 sessions, 3 events" in shown


class Rot13(KeylessSeal):
    """No encryption, but a seal all the same."""

    def seal(self, plain: bytes, place: object) -> bytes:
        return bytes(255 - each for each in plain)

    open = seal


def test_sealed_bodies_are_checked_as_far_as_they_can_be(here: Path) -> None:
    """The command line has no key: chain and checksums are held, and a sound backup is restored."""

    async def sealed() -> None:
        async with limpet.open(f"sqlite:///{here}/sealed.db", seal=Rot13()) as lp:
            s = await lp.create("support", "ada", id="one")
            await s.append("user.message", {"text": "secret"}, actor="user:ada")

    asyncio.run(sealed())
    code, told = answer(here, "restore", "sealed.db", "sqlite:///new.db")
    assert (code, told["ok"], told["verify"]["findings"]) == (0, True, [])
    assert told["verify"]["sealed"] > 0
    done = run(here, "backup", "sqlite:///sealed.db", "copy.db", "--verify")
    assert (done.returncode, "sealed bodies by chain and checksum only" in done.stdout) == (0, True)


# --- damaged sessions ---------------------------------------------------------------------------


def test_the_state_of_a_damaged_session_can_be_carried_over_from_a_backup(here: Path) -> None:
    """By the lines of docs/cli.md, while the store keeps what others wrote since."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own code
    backup, store = f"sqlite:///{here}/sound.db", f"sqlite:///{here}/damaged.db"
    key = limpet.Key("support", "ada", "one")
    asyncio.run(names["carry_over"](backup, store, key, "one-again"))
    assert asyncio.run(sessions(store)) == ["one", "one-again", "two"]


@pytest.mark.parametrize("command", ["verify", "doctor"])
def test_the_advice_speaks_of_what_a_restore_does(here: Path, command: str) -> None:
    """It replaces a whole store; single sessions are carried over."""
    told = run(here, command, "sqlite:///damaged.db").stdout
    assert "the whole" in told
    assert "the state of" in told


# --- older schemas ------------------------------------------------------------------------------


def test_an_older_store_is_copied_and_restored_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that is made before an upgrade is one that the old release can read."""
    number = SCHEMA
    shutil.copy(GOLDEN / f"store-{number}.db", tmp_path / "old.db")
    later.release(monkeypatch)
    before = (tmp_path / "old.db").read_bytes()
    code, told = answer(tmp_path, "backup", "sqlite:///old.db", "copy.db", "--verify")
    assert (code, told["verify"]["findings"]) == (0, [])
    assert told["verify"]["events"] > 20
    assert (tmp_path / "old.db").read_bytes() == before
    code, told = answer(tmp_path, "restore", "copy.db", "sqlite:///back.db")
    assert (code, told["ok"]) == (0, True)
    for name in ("copy.db", "back.db"):
        content = (tmp_path / name).read_bytes()
        assert int.from_bytes(content[60:64], "big") == number  # SQLite's user_version
        assert len(content) == len(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.db", "copy.db", "old.db"]


# --- what is set aside --------------------------------------------------------------------------


def test_where_the_old_content_went_is_told(here: Path) -> None:
    """A store too damaged to be closed is set aside; its path is printed, and in JSON too."""
    broken = (here / "sound.db").read_bytes()[:100] + b"x" * 5_000
    for name in ("1.db", "2.db"):
        (here / name).write_bytes(broken)
    told = answer(here, "restore", "sound.db", "sqlite:///1.db", "--replace")[1]
    assert (here / told["aside"]).read_bytes() == broken
    done = run(here, "restore", "sound.db", "sqlite:///2.db", "--replace")
    (aside,) = re.findall(r"was kept as (\S+)\.$", done.stdout, re.MULTILINE)
    assert (here / aside).read_bytes() == broken
    assert answer(here, "restore", "sound.db", "sqlite:///3.db")[1]["aside"] is None


@pytest.mark.parametrize("command", ["doctor", "verify", "backup"])
def test_a_file_that_cannot_be_opened_is_told_with_what_can_be_done(
    here: Path, command: str
) -> None:
    """Not to verify it, which is what cannot be done; and what is advised works."""
    broken = (here / "sound.db").read_bytes()[:100] + b"x" * 5_000
    (here / "broken.db").write_bytes(broken)
    args = ("copy.db",) if command == "backup" else ()
    code, told = answer(here, command, "sqlite:///broken.db", *args)
    assert (code, told["error"]["code"]) == (4, "store.corrupt")
    assert "verify" not in told["error"]["message"]
    assert "limpet restore FILE STORE --replace" in told["error"]["message"]
    assert run(here, "restore", "sound.db", "sqlite:///broken.db", "--replace").returncode == 0


# --- words --------------------------------------------------------------------------------------

WORDS: list[tuple[tuple[str, ...], str]] = [
    (("backup", "sqlite:///sound.db", "none/f.db"), "in a directory that does not exist"),
    (("backup", "sqlite:///sound.db", "."), "is a directory; name a file in it"),
    (("backup", "sqlite:///sound.db", "sqlite:///f.db"), "Write f.db instead."),
    (("backup", "memory://", "f.db"), "memory:// is kept in the memory of one process"),
    (("backup", "sound", "f.db"), "it is neither a URL nor an existing file"),
    (("restore", "sqlite:////tmp/b.db", "sqlite:///x.db"), "Write /tmp/b.db instead."),
    (("restore", "sound.db", "x"), "Write the path of a file, such as support.db or ./support"),
    (("restore", "sound.db", "memory://"), "a backup is restored to a file"),
    (("restore", "none.db", "sqlite:///x.db"), "none.db is not there; name the file of a backup"),
    (("restore", ".", "sqlite:///x.db"), "is a directory; name the file of a backup"),
    (("restore", "sound.db", "sqlite:///none/x.db"), "in a directory that does not exist"),
]


@pytest.mark.parametrize(("args", "words"), WORDS)
def test_a_wrong_path_is_told_with_what_to_do(
    here: Path, args: tuple[str, ...], words: str
) -> None:
    """In one sentence that names the path, and recommends nothing that is not taken here."""
    told = answer(here, *args)[1]["error"]["message"]
    assert words in told
    if args[0] == "restore":
        assert "Use memory://" not in told
        assert "postgresql://" not in told


def test_a_backup_that_was_not_closed_is_not_restored_without_its_log(here: Path) -> None:
    """A backup is one file: commits in a -wal beside it would be left behind."""
    (here / "sound.db-wal").write_bytes(b"commits")
    code, told = answer(here, "restore", "sound.db", "sqlite:///new.db")
    assert (code, told["error"]["code"]) == (4, "backup.refused")
    assert "has a log of its own" in told["error"]["message"]


# --- PostgreSQL ---------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.remove()


def test_the_lines_for_postgres_work_as_they_are_printed(here: Path, server: Server) -> None:
    """What the error recommends copies a database and puts it back, whole."""
    with pytest.raises(limpet.errors.BackupRefused) as refused:
        refuse_uncopied(server.url)
    lines = re.findall(r"(pg_(?:dump|restore) -.*?FILE(?: URL)?)\b", str(refused.value))
    assert [line.split()[0] for line in lines] == ["pg_dump", "pg_restore"]
    example = {"FILE": "agents.dump", "URL": "postgresql://db.example/agents"}
    for line in lines:
        assert re.sub("FILE|URL", lambda found: example[found[0]], line) in PAGE.read_text()
    asyncio.run(fill(server.url))
    folder = server.folder / "dumps"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)

    def do(line: str) -> None:
        line = line.replace("URL", server.url).replace("FILE", str(folder / "agents.dump"))
        program, *args = shlex.split(line)
        subprocess.run([binaries() / program, *args], check=True, cwd=folder, **unprivileged())

    do(lines[0])
    asyncio.run(forget(server.url))
    assert asyncio.run(sessions(server.url)) == ["two"]
    do(lines[1])
    assert asyncio.run(sessions(server.url)) == ["one", "two"]
    code, told = answer(here, "verify", server.url)
    assert (code, told["sessions"], told["events"]) == (0, 2, 3)


def test_what_a_refused_restore_to_postgresql_names_works(here: Path, server: Server) -> None:
    """A SQLite backup is restored to a SQLite store, and its sessions carried over from there."""
    done = run(here, "restore", "sound.db", server.url, "--replace")
    assert (done.returncode, done.stderr.splitlines()[0]) == (4, "limpet: backup.refused")
    (line,) = re.findall(r"limpet (restore FILE sqlite:///\S+)\)", done.stderr)
    assert run(here, *line.replace("FILE", "sound.db").split()).returncode == 0
    assert "docs/cli.md, carry_over" in done.stderr
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)  # the page's own code
    key = limpet.Key("support", "ada", "one")
    store = f"sqlite:///{here}/store.db"
    asyncio.run(names["carry_over"](store, server.url, key, "carried"))
    assert "carried" in asyncio.run(sessions(server.url))


def test_a_dump_of_postgresql_is_not_called_a_foreign_file(here: Path) -> None:
    """Restored to SQLite it is refused, and the tool that takes it is named."""
    (here / "agents.dump").write_bytes(b"PGDMP\x01\x0f\x00\x04\x08\x01\x01" + bytes(5_000))
    done = run(here, "restore", "agents.dump", "sqlite:///new.db")
    assert (done.returncode, done.stderr.splitlines()[0]) == (4, "limpet: backup.refused")
    assert "pg_restore -d URL FILE" in done.stderr


async def forget(url: str) -> None:
    async with limpet.open(url) as lp:
        assert await lp.delete(("support", "ada", "one"))
