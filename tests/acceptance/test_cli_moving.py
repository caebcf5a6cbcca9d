"""The commands that move and forget sessions, as a person or a job runs them."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Key
from limpet.session.limpet import journal_of
from limpet.session.move import mover
from limpet.session.move.arrivals import Arrivals
from limpet.session.runs.delegation import head_of
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


# --- moving with ownership -----------------------------------------------------------------------


def test_a_session_is_moved_and_found_again(here: Path) -> None:
    """The old store says where it is; the way back sends only what came since."""
    done = run(here, "move", "support.db", "support/ada/c1", "other.db", "--to-node", "eu-2")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^ok: support/ada/c1 is at eu-2 now, in epoch 1: \d+ events, .* as .* \(ratio 0\.\d+\)\.$",
        done.stdout,
        re.MULTILINE,
    ), done.stdout
    assert "left out: app:catalog, user:lang" in done.stdout
    assert (sessions(here, "support.db"), sessions(here, "other.db")) == ({B}, {A})
    where = run(here, "where", "support/ada/c1", "--store", "support.db")
    assert where.stdout == "ok: support/ada/c1 is at eu-2, since epoch 1.\n"
    refused = run(here, "log", "support.db", "support/ada/c1")
    assert (refused.returncode, "session.moved" in refused.stderr) == (3, True)
    code, told = answer(here, "move", "other.db", "support/ada/c1", "support.db")
    assert (code, told["epoch"], told["success"]) == (0, 2, True)
    assert set(told["seconds"]) >= {"suspend", "serialize", "transfer", "verify", "commit", "pause"}
    assert run(here, "verify", "support.db").returncode == 0
    assert run(here, "where", "support/ada/none", "--store", "support.db").returncode == 1
    assert run(here, "move", "support.db", "support/ada/none", "other.db").returncode == 3


def test_a_key_that_is_taken_is_not_moved_over(here: Path) -> None:
    """Exit code 1, the reason, and nothing has changed in either store."""
    with limpet.open_sync(f"sqlite:///{here}/other.db") as lp:
        lp.create(A.app, A.user, A.id, state={"mine": 1})
    done = run(here, "move", "support.db", "support/ada/c1", "other.db")
    assert done.returncode == 1
    assert done.stdout.startswith("not moved: support/ada/c1: exists: ")
    with limpet.open_sync(f"sqlite:///{here}/other.db") as lp:
        assert dict(lp.get(A).values) == {"mine": 1}
    assert sessions(here, "support.db") == {A, B}


def test_a_person_goes_on_at_another_machine(here: Path) -> None:
    """Push from one, pull at another: limpet.db, unless a store is named."""
    with limpet.open_sync(f"sqlite:///{here}/limpet.db") as lp:
        lp.create("notes", "ada", "draft", state={"n": 1})
    machine = here / "another"
    machine.mkdir()
    assert run(here, "push", "notes/ada/draft", "./desk.db").returncode == 0
    assert "is at desk-" in run(here, "where", "notes/ada/draft").stdout
    assert run(machine, "pull", "../desk.db", "notes/ada/draft").returncode == 0
    assert "is here" in run(machine, "where", "notes/ada/draft").stdout
    code, told = answer(here, "pull", "./desk.db", "notes/ada/draft")
    assert (code, told["error"]["code"]) == (3, "session.moved"), "it is at the other machine"
    assert run(here, "push", "notes/ada/draft", "./limpet.db").returncode == 2


def test_a_drain_moves_the_rest_when_it_is_run_again(here: Path) -> None:
    """What could not be moved is named, and the next run goes on from there."""
    with limpet.open_sync(f"sqlite:///{here}/other.db") as lp:
        lp.create(B.app, B.user, B.id)
    done = run(here, "drain", "support.db", "other.db")
    assert done.returncode == 1
    assert "not moved: support/bob/c2: exists: " in done.stdout
    assert "not ok: 1 session moved: " in done.stdout
    assert sessions(here, "support.db") == {B}
    with limpet.open_sync(f"sqlite:///{here}/other.db") as lp:
        lp.erase(B)
    code, told = answer(here, "drain", "support.db", "third.db")
    assert (code, told["sessions"], told["refused"]) == (0, 1, [])
    assert sessions(here, "support.db") == set()
    assert answer(here, "drain", "support.db", "third.db")[1]["sessions"] == 0
    assert run(here, "drain", "support.db", "third.db", "--app", "suport").returncode == 3


def test_a_move_and_a_drain_show_their_progress_on_a_terminal(here: Path) -> None:
    """A bar while it lasts, and the result."""
    code, shown = run_terminal(here, "move", "support.db", "support/ada/c1", "other.db")
    assert (code, "moving events" in shown) == (0, True)
    code, shown = run_terminal(here, "drain", "support.db", "other.db")
    assert (code, "moving sessions" in shown) == (0, True)


def test_a_sweep_that_is_told_of_a_node_finishes_a_move(here: Path) -> None:
    """A mover died after the departure: doctor names it, and sweep --nodes brings it to an end."""
    with (
        limpet.open_sync(f"sqlite:///{here}/support.db", node="eu-1") as lp,
        limpet.open_sync(f"sqlite:///{here}/other.db", node="eu-2") as other,
    ):
        lp._loop.call(lambda: _depart(lp._of, other._of))
    assert "1 departure not settled" in run(here, "doctor", "support.db").stdout
    assert answer(here, "sweep", "support.db")[1]["moves"] == 0
    assert run(here, "sweep", "support.db", "--nodes", "eu-2").returncode == 2
    code, told = answer(here, "sweep", "support.db", "--nodes", "eu-2=other.db")
    assert (code, told["moves"]) == (0, 1)
    assert sessions(here, "other.db") == {A}
    assert "not settled" not in run(here, "doctor", "support.db").stdout


async def _depart(source: limpet.Limpet, target: limpet.Limpet) -> None:
    """The part of a move after which its process was killed."""
    head = await head_of(journal_of(source), A)
    assert head is not None
    arrivals = Arrivals(target._services, "eu-2")
    begun, member = mover.Mover(source._services, "eu-1", arrivals), mover._Member(head, 1)
    await arrivals.begin(member.arrival("eu-1"))
    await begun._depart([member], [None])


def test_a_graph_is_shown_as_a_tree_and_as_mermaid(here: Path) -> None:
    """From either end; a session that was deleted is still named."""
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        one = lp.get(A, actor="user:ada")
        for kind in ("successor", "peer"):
            one.relate(lp.create(A.app, A.user, kind, actor="user:ada"), kind)
        lp.delete((A.app, A.user, "peer"))
    tree = run(here, "graph", "support.db", "support/ada/c1").stdout
    assert tree.splitlines() == [
        "support/ada/c1",
        "  successor support/ada/successor",
        "  peer support/ada/peer (gone)",
    ]
    other = run(here, "graph", "support.db", "support/ada/successor").stdout
    assert "  successor of support/ada/c1" in other
    drawn = run(here, "graph", "support.db", "support/ada/c1", "--mermaid").stdout
    assert drawn.startswith("graph LR\n")
    assert "s0 -->|successor| s1" in drawn
    assert "s0 ---|peer| s2" in drawn
    told = answer(here, "graph", "support.db", "support/ada/c1")[1]
    assert (len(told["nodes"]), len(told["edges"])) == (3, 2)
