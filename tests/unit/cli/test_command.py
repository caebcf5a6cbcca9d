"""The decorator that makes a function a command: what it supplies, and how a session is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet.cli.options import session_key
from limpet.errors import InvalidInput
from tests.support.command import answer, run

OPTIONS = ("--app", "support", "--user", "ada", "--id", "c1")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db") as lp:
        s = lp.create("support", "ada", "c1", state={"n": 1}, actor="user:ada")
        s.append("user.message", {"text": "hi"}, set={"n": 2})
    return tmp_path


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("log", ()),
        ("show", ("2",)),
        ("diff", ("1", "2")),
        ("blame", ("n",)),
        ("state", ("--at", "1")),
        ("status", ()),
        ("verify", ()),
        ("setup", ()),
        ("memory", ("session_state",)),
        ("children", ()),
    ],
)
def test_a_session_is_one_argument_or_three_options(
    here: Path, command: str, rest: tuple[str, ...]
) -> None:
    """The argument stands after the store, before the command's own; the answer is the same."""
    one = answer(here, command, "a.db", "support/ada/c1", *rest)
    three = answer(here, command, "a.db", *rest, *OPTIONS)
    for _, form in (one, three):
        form.pop("at", None)
    assert one == three
    assert one[0] == 0


def test_a_session_to_write_to_is_one_argument_too(here: Path) -> None:
    """From its creation to its erasure; a new one may leave its id to us."""
    assert run(here, "create", "a.db", "support/bob/b1").stdout == "ok: created support/bob/b1\n"
    assert answer(here, "create", "a.db", "support/bob")[1]["session"]["user"] == "bob"
    assert answer(here, "send", "a.db", "support/bob/b1", "hi")[1]["event"]["seq"] == 2
    forked = answer(here, "fork", "a.db", "support/bob/b1", "--new-id", "b2")[1]
    assert forked["session"] == {"app": "support", "user": "bob", "id": "b2"}
    merged = ("merge", "a.db", "support/bob/b1", "support/bob/b2")
    assert "nothing new" in run(here, *merged).stdout
    assert run(here, "export", "a.db", "support/bob/b1", "b1.limpet").returncode == 0
    assert answer(here, "copy", "a.db", "b.db", "support/bob/b1")[1]["sessions"] == 1
    assert run(here, "suspend", "a.db", "support/bob/b1").returncode == 0
    assert run(here, "erase", "a.db", "support/bob/b2", "--yes").returncode == 0
    assert answer(here, "erase-user", "a.db", "support/bob", "--yes")[1]["sessions"] == 2


@pytest.mark.parametrize("text", ["", "c1", "support/ada", "a/b/c/d"])
def test_what_does_not_name_a_session_is_refused_with_the_form(text: str) -> None:
    """A part with a slash in it needs the options."""
    with pytest.raises(InvalidInput, match="app/user/id") as caught:
        session_key(text)
    assert ("--app" in str(caught.value)) == (text.count("/") > 2)


@pytest.mark.parametrize(
    "args",
    [
        ("log", "a.db"),
        ("log", "a.db", "--app", "support"),
        ("log", "a.db", "support/ada/c1", *OPTIONS),
        ("verify", "a.db", "support/ada/c1", "--app", "support"),
        ("create", "a.db", "--app", "support"),
        ("erase-user", "a.db", "--user", "ada"),
        ("erase-user", "a.db", "ada"),
    ],
)
def test_a_session_that_is_named_in_part_or_twice_is_refused(
    here: Path, args: tuple[str, ...]
) -> None:
    """With the exit code of a wrong request."""
    code, told = answer(here, *args)
    assert (code, told["error"]["code"]) == (2, "input.invalid")
    assert "None" not in told["error"]["message"]


def test_a_missing_store_says_how_to_make_one(tmp_path: Path) -> None:
    """A newcomer is one command away."""
    done = run(tmp_path, "log", "new.db", "support/ada/c1")
    assert (done.returncode, "limpet create" in done.stderr) == (4, True)


def test_a_wrong_choice_is_refused_without_words_of_a_library(here: Path) -> None:
    done = run(here, "tokens", "old-key")
    assert done.returncode == 2
    assert "'old-key' is not one of" in done.stderr
    assert "Value error" not in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--limit", "many"), "pass a whole number."),
        (("--limit", "0"), "pass 1 or more."),
        (("--limit", "9999"), "pass 1000 or less."),
    ],
)
def test_a_wrong_number_is_refused_in_words_of_a_person(
    here: Path, args: tuple[str, ...], words: str
) -> None:
    done = run(here, "log", "a.db", "support/ada/c1", *args)
    assert done.returncode == 2
    assert f"Invalid value for '--limit': {words}" in " ".join(done.stderr.split())


def test_an_id_in_the_data_of_the_log_is_shown_whole_or_not_at_all(here: Path) -> None:
    """Half of an id cannot be copied."""
    ids = {f"k{n}": f"01a1f049-d91f-7000-b58f-{n:012}" for n in range(3)}
    with limpet.open_sync(f"sqlite:///{here}/a.db") as lp:
        lp.get("support", "ada", "c1").append("app.ids", ids, actor="user:ada")
    done = run(here, "log", "a.db", "support/ada/c1", "--limit", "1")
    assert f'"k0":"{ids["k0"]}"' in done.stdout
    assert '"k1":"…' in done.stdout
