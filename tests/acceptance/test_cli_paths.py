"""Stores named by their paths, times with their ages, exit codes documented once."""

from __future__ import annotations

import asyncio
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

import limpet
from limpet.cli import main as entry, output, render
from limpet.cli.app import app
from tests.support import chats
from tests.support.command import PAGE, answer, run, run_process, run_terminal

COMMANDS = ("doctor", "verify", "status", "backup", "restore", "migrate")
ONE = ("--app", "support", "--user", "ada", "--id", "one")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with limpet.open(f"sqlite:///{tmp_path}/support.db") as lp:
            session = await lp.create("support", "ada", id="one", actor="user:ada")
            await session.append("user.message", {"text": "hi"})

    asyncio.run(fill())
    return tmp_path


# --- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["doctor", "verify", "status"])
def test_a_path_is_as_good_as_its_url(here: Path, command: str) -> None:
    """Relative or absolute, the answer is the same, but for its time and the disk's free space."""
    answers = [
        answer(here, command, store)
        for store in ("sqlite:///support.db", "support.db", "./support.db", f"{here}/support.db")
    ]
    for _, told in answers:
        told.pop("at", None)
        for check in told.get("checks", ()):
            if check["name"] == "disk space":  # others write to the same disk
                check["found"] = ""
    assert answers[0][0] == 0
    assert answers == answers[:1] * 4


def test_a_store_is_backed_up_restored_and_migrated_by_path(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command needs a URL for a file."""
    assert run(here, "backup", "support.db", "monday.db").returncode == 0
    assert run(here, "restore", "monday.db", "new.db").returncode == 0
    assert run(here, "restore", "monday.db", "support.db").returncode == 4
    assert run(here, "restore", "monday.db", "support.db", "--replace").returncode == 0
    assert answer(here, "verify", "new.db")[1]["events"] == 2
    chats.write_modules(here)
    monkeypatch.syspath_prepend(here)
    done = run(here, "migrate", "new.db", "--migrations", "chats:MIGRATIONS", "--plan")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("args", [("doctor", "suport"), ("restore", "support.db", "new")])
def test_what_is_neither_a_path_nor_a_url_is_refused(here: Path, args: tuple[str, ...]) -> None:
    """Before anything is opened, with both forms to copy from."""
    code, told = answer(here, *args)
    assert (code, told["error"]["code"]) == (2, "store.url")
    assert "neither a URL nor an existing file" in told["error"]["message"]
    assert not (here / "new").exists()


# --- ages ---------------------------------------------------------------------------------------


def test_ages_are_for_people_and_json_has_the_times_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a given clock: three hours after the message the line says so."""
    due = answer(here, "status", "support.db")[1]["shown"][0]["due_at"]
    pending_at = limpet.runnable_at(asyncio.run(head_of(here)))
    assert pending_at is not None
    later = pending_at + timedelta(hours=3)
    monkeypatch.setattr(limpet.Limpet, "now", lambda _: later)
    _, told = answer(here, "status", "support.db")
    assert told["shown"][0]["due_at"] == due
    assert " ago" not in str(told)
    line = run(here, "status", "support.db").stdout.splitlines()[2]
    moment = due.partition(".")[0].removesuffix("+00:00") + "Z"  # people are shown seconds
    assert line == f"due    support/ada/one        1  since {moment} (3 h ago)"


async def head_of(here: Path) -> limpet.Head:
    async with limpet.open(f"sqlite:///{here}/support.db") as lp:
        return (await lp.get(("support", "ada", "one"))).head


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_its_terminal(here: Path, columns: int) -> None:
    """A long key and a long worker's name stay whole; their rows go on in the next line."""
    user, id, worker = "grace" * 12, "x" * 60, "worker-" * 8

    async def lease() -> None:
        async with limpet.open(f"sqlite:///{here}/support.db") as lp:
            session = await lp.create("support", user, id=id, actor="x")
            await lp.work.lock(session.key, worker=worker, lease_seconds=3_600)

    asyncio.run(lease())
    code, shown = run_terminal(here, "status", "support.db", columns=columns)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
    assert code == 0
    assert lines[1].split()[:4] == ["state", "session", "pending", "when"]
    assert lines[2].split() == ["leased", f"support/{user}/{id}"]
    assert lines[3].split() == ["0", "ends", "in", "59", "min"]
    assert worker in lines[4]
    assert max(len(line) for line in lines if user not in line) <= columns
    assert [line.split()[0] for line in lines[5:]] == ["due"]


@pytest.mark.parametrize(
    "args",
    [
        ("resume", *ONE),
        ("state", *ONE, "--at", "#7"),
        ("rewind", "soon", *ONE),
        ("blame", "a..b", *ONE),
        ("agents", "nobody"),
        ("confirm", "none", "--allow", *ONE),
        ("list", "--cursor", "none", "--app", "support"),
        ("trace", *ONE),
        ("log", *ONE[:-1], "nobody"),
        ("fork", "--new-id", "one", *ONE),
        ("merge", "nobody", *ONE),
        ("unarchive", *ONE),
        ("create", *ONE),
    ],
    ids=" ".join,
)
def test_errors_speak_to_a_person_at_a_shell(here: Path, args: tuple[str, ...]) -> None:
    """They name commands and options, and no method, class or argument of a program."""
    command, *rest = args
    done = run(here, command, "support.db", *rest)
    assert done.returncode in (2, 3), done
    python = (
        r"\b(lp|s|page|error|self|limpet)\.\w|\w\(\)|\b(None|True|str|Ref|CheckpointRef)\b|=True"
    )
    assert not re.search(python, done.stderr), done.stderr


# --- help ---------------------------------------------------------------------------------------


def test_exit_codes_are_documented_once_and_all_of_them(tmp_path: Path) -> None:
    """In `limpet --help` and in the page's table, and under no command."""
    text = run_process(tmp_path, "--help").stdout
    listed = set(map(int, re.findall(r"^ +(\d+)  ", text, re.MULTILINE)))
    table = set(map(int, re.findall(r"^\| (\d+) \| ", PAGE.read_text(), re.MULTILINE)))
    ours = {
        0,
        render.FOUND,
        render.INTERRUPTED,
        output.OUTPUT_LOST,
        output.READER_GONE,
        entry.BROKEN,
    }
    kinds = [getattr(limpet, name) for name in limpet.__all__]
    errors = [k for k in kinds if isinstance(k, type) and issubclass(k, limpet.LimpetError)]
    assert listed == table == ours | {kind.exit_code for kind in errors}
    for command in COMMANDS:
        assert "Exit codes" not in run(tmp_path, command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(tmp_path: Path, command: str) -> None:
    """No more than a terminal of 80 by 24 shows, and the same there as in a pipe."""
    with patch.dict(os.environ, COLUMNS="80"):
        text = run(tmp_path, command, "--help").stdout
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    if command == COMMANDS[-1]:
        assert run_process(tmp_path, command, "--help").stdout == text
        shown = run_terminal(tmp_path, command, "--help", columns=80)[1]
        assert shown.replace("\r\n", "\n") == text


def test_help_is_for_people(tmp_path: Path) -> None:
    """Values have names, not types of Python; no Markdown; one begins with a session."""
    group: Any = typer.main.get_command(app)
    for name in group.commands:
        text = run(tmp_path, name, "--help").stdout
        assert re.findall(r"`|<(?:str|int|float)>", text) == [], name
    assert "Act:\n  create " in run(tmp_path, "--help").stdout


def test_every_command_and_option_is_described() -> None:
    """Each option says in --help what it does, and stands on the page with its command."""
    group: Any = typer.main.get_command(app)
    page, usual = PAGE.read_text(), {"--help", "--json"}
    for name, command in group.commands.items():
        assert re.search(rf"`limpet {name} |, `{name}`", page), name
        options = [each for each in command.params if each.param_type_name == "option"]
        assert [each.name for each in options if not each.help] == []
        spelled = {text for each in options for text in (*each.opts, *each.secondary_opts)}
        assert [text for text in spelled - usual if text[:2] == "--" and text not in page] == []
