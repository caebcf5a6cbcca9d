"""The commands that move and forget sessions, as a person or a job runs them."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Key
from tests.support.command import answer, run, run_terminal

A, B = Key("support", "ada", "c1"), Key("support", "bob", "c2")
NAMED = ("--app", "support", "--user", "ada", "--id", "c1")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a store of two sessions."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/support.db") as lp:
        for key in (A, B):
            begun = {"n": 0, "user:lang": "en", "app:catalog": 1}
            s = lp.create(key.app, key.user, key.id, state=begun)
            s.append("user.message", {"text": "hi"}, actor=f"user:{key.user}", inc={"n": 1})
    return tmp_path


def sessions(here: Path, name: str) -> set[Key]:
    with limpet.open_sync(f"sqlite:///{here}/{name}") as lp:
        return {head.key for head in lp.list().items}


def test_copy_copies_and_says_what(here: Path) -> None:
    """Once; the second run finds nothing to send."""
    done = run(here, "copy", "support.db", "other.db")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"ok: 2 sessions, 4 events, 3 shared names copied in [\d.]+ s\.\n", done.stdout
    )
    code, told = answer(here, "copy", "support.db", "other.db")
    assert (code, told["ok"], told["sessions"], told["events"], told["names"]) == (0, True, 0, 0, 0)
    assert sessions(here, "other.db") == {A, B}
    assert run(here, "verify", "other.db").returncode == 0


def test_copy_copies_one_session_or_one_app(here: Path) -> None:
    """One session leaves shared names out, and says which."""
    done = run(here, "copy", "support.db", "one.db", *NAMED)
    assert "left out: app:catalog, user:lang." in done.stdout
    assert sessions(here, "one.db") == {A}
    code, told = answer(here, "copy", "support.db", "app.db", "--app", "support")
    assert (code, told["sessions"], told["names"], told["left_out"]) == (0, 2, 3, [])
    assert run(here, "copy", "support.db", "app.db", "--app", "suport").returncode == 3
    halved = ("--app", "support", "--id", "c1")
    assert run(here, "copy", "support.db", "app.db", *halved).returncode == 2
    assert run(here, "copy", "support.db", "support.db").returncode == 2
    assert run(here, "copy", "missing.db", "other.db").returncode == 4


def test_copy_exits_with_1_if_something_could_not_be_copied(here: Path) -> None:
    """It is named, and the rest is copied."""
    conn = apsw.Connection(str(here / "support.db"))
    conn.execute("UPDATE events SET body = x'00' WHERE sid = 1 AND seq = 2")
    conn.close()
    done = run(here, "copy", "support.db", "other.db")
    assert done.returncode == 1
    assert "not copied: support/ada/c1: " in done.stdout
    assert "not ok: 1 session, 2 events, 3 shared names copied" in done.stdout
    code, told = answer(here, "copy", "support.db", "other.db")
    assert (code, told["refusals"], told["refused"][0]["code"]) == (1, 1, "session.corrupt")
    assert told["refused"][0]["session"] == {"app": "support", "user": "ada", "id": "c1"}


def test_a_pipe_is_not_a_file(here: Path) -> None:
    """Other programs take - for their output; here it would become a file of that name."""
    for command in (("export", "support.db", "-", *NAMED), ("backup", "support.db", "-")):
        done = run(here, *command)
        assert (done.returncode, "write ./-" in done.stderr) == (2, True)


def test_copy_shows_its_progress_on_a_terminal(here: Path) -> None:
    """A bar while it lasts, and the result."""
    code, shown = run_terminal(here, "copy", "support.db", "other.db")
    assert code == 0
    assert "copying events" in shown
    assert "2 sessions, 4 events" in shown


def test_copy_does_not_write_to_its_source(here: Path) -> None:
    """The file has the bytes that it had."""
    before = (here / "support.db").read_bytes()
    assert run(here, "copy", "support.db", "other.db").returncode == 0
    assert (here / "support.db").read_bytes() == before


def test_export_and_import_carry_a_session_in_a_file(here: Path) -> None:
    """The file is refused if it is there already, or was changed."""
    done = run(here, "export", "support.db", "ada.limpet", *NAMED)
    assert (done.returncode, done.stderr) == (0, "")
    assert "support/ada/c1 exported to ada.limpet" in done.stdout
    assert run(here, "export", "support.db", "ada.limpet", *NAMED).returncode == 4
    missing = ("--app", "support", "--user", "ada", "--id", "none")
    assert run(here, "export", "support.db", "none.limpet", *missing).returncode == 3
    code, told = answer(here, "import", "new.db", "ada.limpet")
    assert (code, told["version"], told["session"]["id"]) == (0, 2, "c1")
    assert run(here, "import", "new.db", "ada.limpet").stdout == (
        "ok: support/ada/c1 imported, at version 2.\n"
    )
    (here / "ada.limpet").write_bytes((here / "ada.limpet").read_bytes()[:-9])
    done = run(here, "import", "fresh.db", "ada.limpet")
    assert (done.returncode, "bundle.damaged" in done.stderr) == (4, True)
    assert sessions(here, "fresh.db") == set()


def test_erase_asks_unless_told_not_to(here: Path) -> None:
    """In a pipe nobody can be asked: --yes is needed, and nothing happens without."""
    done = run(here, "erase", "support.db", *NAMED)
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    code, told = answer(here, "erase", "support.db", *NAMED)
    assert (code, told["error"]["code"]) == (2, "input.invalid")
    assert sessions(here, "support.db") == {A, B}
    assert run(here, "erase", "support.db", *NAMED, "--yes", "--forks", "all").returncode == 2
    done = run(here, "erase", "support.db", *NAMED, "--yes", "--forks", "keep")
    assert done.stdout == "ok: support/ada/c1 erased.\n"
    code, told = answer(here, "erase", "support.db", *NAMED, "--yes")
    assert (code, told["erased"]["version"]) == (0, 2)
    none = ("--app", "support", "--user", "ada", "--id", "none", "--yes")
    assert answer(here, "erase", "support.db", *none)[1]["erased"] is None
    assert sessions(here, "support.db") == {B}


def test_erase_user_forgets_a_user(here: Path) -> None:
    """With a certificate; the others keep what they have."""
    user = ("--app", "support", "--user", "ada")
    refused = run(here, "erase-user", "support.db", *user)
    assert (refused.returncode, refused.stderr.splitlines()[1]) == (
        2,
        "  This terminal cannot prompt. Pass --yes to erase user ada of app support.",
    )
    code, told = answer(here, "erase-user", "support.db", *user, "--yes")
    assert (code, told["sessions"], told["names"], told["forks"]) == (0, 1, 1, [])
    assert len(told["certificate"]["link"]) == 64
    done = run(here, "erase-user", "support.db", *user, "-y")
    assert done.stdout == "ok: user ada of app support erased: 0 sessions, 0 user: names.\n"
    assert sessions(here, "support.db") == {B}
    assert run(here, "erase-user", "missing.db", *user, "--yes").returncode == 4


def test_mirror_writes_files_that_people_read(here: Path) -> None:
    """Everything, an app, or one session; the answer counts."""
    done = run(here, "mirror", "support.db", "out")
    assert done.stdout == "ok: 2 sessions, 4 events written to out. Bodies are in plain text.\n"
    assert (here / "out" / "support" / "ada" / "c1" / "events.jsonl").exists()
    code, told = answer(here, "mirror", "support.db", "one", *NAMED)
    assert (code, told["sessions"], told["events"]) == (0, 1, 2)
