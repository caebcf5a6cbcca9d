"""The command line, as a person runs it: real processes, real files, a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import limpet
from limpet.store.postgres import doctor as postgres_doctor
from limpet.store.sqlite.file import backup as backups
from tests.support import chats
from tests.support.command import PAGE, Done, answer, run, run_process, run_terminal
from tests.support.postgres import Server

COMMANDS = ("doctor", "verify", "status", "backup", "restore", "migrate")
EXAMPLE = "postgresql://db.example/agents"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    asyncio.run(fill(server.url))
    yield server
    server.remove()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a sound store, a damaged one and something else."""
    asyncio.run(fill(f"sqlite:///{tmp_path}/support.db"))
    content = (tmp_path / "support.db").read_bytes()
    assert content.count(b"a marker") == 1
    (tmp_path / "damaged.db").write_bytes(content.replace(b"a marker", b"a marKer"))
    (tmp_path / "notes.txt").write_text("no database " * 100)
    return tmp_path


async def fill(url: str) -> None:
    async with limpet.open(url) as lp:
        one = await lp.create("support", "ada", id="one")
        await one.append("user.message", {"text": "a marker"}, actor="user:ada")
        await one.append("agent.message", {"text": "hello"}, actor="agent:main", set={"n": 1})
        two = await lp.create("support", "grace", id="two", labels={"plan": "gold"})
        await two.append("user.message", {"text": "hi"}, actor="user:grace")


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_an_empty_file_is_no_store_and_stays_empty(tmp_path: Path, command: str) -> None:
    """A store that was cut to nothing is not called sound, and none is made of it."""
    (tmp_path / "empty.db").touch()
    done = run_process(tmp_path, command, "sqlite:///empty.db")
    assert (done.returncode, "empty" in done.stderr) == (4, True)
    assert (tmp_path / "empty.db").stat().st_size == 0


# --- help ---------------------------------------------------------------------------------------


def test_help_lists_the_commands_and_the_exit_codes(tmp_path: Path) -> None:
    """Also without a command, and each with a sentence that is not cut off."""
    text = run_process(tmp_path, "--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^  {command} +[A-Z].*\.$", text, re.MULTILINE)
    assert "..." not in text.partition("Options:")[2]
    assert "Exit codes:\n    0    nothing is wrong\n" in text
    assert text in "".join(run_process(tmp_path)[1:])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_speaks_json(tmp_path: Path, command: str) -> None:
    """Arguments, options, and where to read on."""
    text = run(tmp_path, command, "--help").stdout
    assert text.startswith(f"Usage: limpet {command}")
    assert run(tmp_path, command, "-h").stdout == run(tmp_path, command, "--help").stdout != ""
    assert "--json" in text
    assert "STORE" in text


@pytest.mark.parametrize(
    ("criticality", "tier"),
    [("ephemeral", "L0"), ("standard", "L1"), ("business", "L2"), ("cross_region", "L3")],
)
def test_plan_names_the_cheapest_tier_that_is_durable_enough(
    tmp_path: Path, criticality: str, tier: str
) -> None:
    """It opens no store, and its help lists no arguments."""
    amounts = ("--writes", "1000", "--reads", "3000", "--state-bytes", "5000", "--retention", "30d")
    done = run(tmp_path, "plan", "--criticality", criticality, *amounts, "--json")
    assert json.loads(done.stdout)["tier"] == tier
    assert "--retention" in run(tmp_path, "plan", "--help").stdout
    refused = run(tmp_path, "plan", *amounts[:-1], "a month")
    assert "12h or 30d" in refused.stderr


def test_the_version_is_told(tmp_path: Path) -> None:
    """It is the package's."""
    assert run_process(tmp_path, "--version").stdout == f"limpet {limpet.__version__}\n"


def test_without_its_extra_the_command_names_it(tmp_path: Path) -> None:
    """One line to copy instead of a traceback."""
    code = "import sys; sys.modules['typer'] = None; import limpet.cli.main as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == limpet.errors.ExtraMissing.exit_code
    assert done.stderr.startswith("limpet: extra.missing\n")
    assert "pip install 'limpet[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- doctor and verify --------------------------------------------------------------------------


def test_a_sound_store_exits_with_0(here: Path, server: Server) -> None:
    """SQLite and PostgreSQL, doctor and verify; the JSON has its shape."""
    for url in ("sqlite:///support.db", server.url):
        code, told = answer(here, "doctor", url)
        assert (code, told["ok"]) == (0, True)
        assert told["verify"] == {"ok": True, "sessions": 2, "events": 5, "findings": []}
        for check in told["checks"]:
            assert set(check) == {"name", "ok", "severity", "found", "advice"}
        assert answer(here, "verify", url) == (0, told["verify"])


def test_damage_exits_with_1_and_names_the_event(here: Path) -> None:
    """For people and for machines."""
    code, told = answer(here, "verify", "sqlite:///damaged.db")
    assert code == 1
    (finding,) = told["findings"]
    assert finding["session"] == {"app": "support", "user": "ada", "id": "one"}
    assert (finding["where"], finding["seq"]) == ("event", 2)
    done = run_process(here, "doctor", "sqlite:///damaged.db")
    assert done.returncode == 1
    assert "problem  log" in done.stdout
    assert "not ok: 16 checks, 1 problem," in done.stdout


def test_warnings_count_when_asked_to(here: Path) -> None:
    """With --strict they are findings, and the last line says so."""
    url = "sqlite:///support.db?sync=normal"
    done = run(here, "doctor", url)
    assert (done.returncode, done.stdout.splitlines()[-1][:4]) == (0, "ok: ")
    done = run(here, "doctor", url, "--strict")
    assert (done.returncode, done.stdout.splitlines()[-1][:8]) == (1, "not ok: ")
    assert re.search(r"0 problems, \d warnings?; with --strict a warning counts", done.stdout)
    assert answer(here, "doctor", url)[1]["ok"]
    assert not answer(here, "doctor", url, "--strict")[1]["ok"]


def test_a_check_that_could_not_be_made_is_not_called_ok(
    here: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is skipped: counted by itself, and no finding, not even with --strict."""
    monkeypatch.setitem(postgres_doctor.SQL, "sees_monitoring", "SELECT false")
    done = run(here, "doctor", server.url, "--strict")
    assert (done.returncode, "skipped  wal size " in done.stdout) == (0, True)
    assert done.stdout.endswith("0 problems, 0 warnings, 3 skipped.\n")
    checks = answer(here, "doctor", server.url)[1]["checks"]
    assert [check["ok"] for check in checks if check["severity"] == "skipped"] == [False] * 3


def test_one_session_can_be_verified(here: Path) -> None:
    """By all three parts of its key; the damage of another is not its own."""
    key = ["--app", "support", "--user", "grace", "--id", "two"]
    code, told = answer(here, "verify", "sqlite:///damaged.db", *key)
    assert (code, told["sessions"], told["events"]) == (0, 1, 2)


@pytest.mark.parametrize("left", ["nothing", "deleted", "erased"])
def test_a_session_that_is_not_there_is_told_in_words_of_the_command_line(
    here: Path, left: str
) -> None:
    """Which options to look at, and nothing of verbs that a shell does not have."""

    async def end() -> None:
        async with limpet.open(f"sqlite:///{here}/support.db") as lp:
            if left != "nothing":
                await (lp.delete if left == "deleted" else lp.erase)(("support", "ada", "one"))

    asyncio.run(end())
    id = "one" if left != "nothing" else "nope"
    key = ["--app", "support", "--user", "ada", "--id", id]
    code, told = answer(here, "verify", "sqlite:///support.db", *key)
    assert (code, f"support/ada/{id}" in told["error"]["message"]) == (3, True)
    assert "lp." not in told["error"]["message"]
    assert "Create" not in told["error"]["message"]


def test_on_a_terminal_there_are_colours_and_a_bar(here: Path) -> None:
    """And the same words."""
    code, shown = run_terminal(here, "doctor", "sqlite:///support.db")
    assert code == 0
    assert "\x1b[32mok" in shown
    assert "reading sessions" in shown
    assert "chain, checksums and seqs hold" in shown


# --- backup and restore -------------------------------------------------------------------------


def test_a_backup_can_be_restored(here: Path) -> None:
    """To a new place, and over the old one only when told to."""
    code, told = answer(here, "backup", "sqlite:///support.db", "copy.db")
    assert code == 0
    assert (told["ok"], told["file"]) == (True, "copy.db")
    assert told["bytes"] == (here / "copy.db").stat().st_size
    assert run(here, "restore", "copy.db", "sqlite:///new.db").returncode == 0
    assert answer(here, "verify", "sqlite:///new.db")[1]["events"] == 5
    refused = run(here, "restore", "copy.db", "sqlite:///damaged.db")
    assert refused.returncode == 4
    assert "--replace" in refused.stderr
    assert run(here, "restore", "copy.db", "sqlite:///damaged.db", "--replace").returncode == 0
    assert run(here, "verify", "sqlite:///damaged.db").returncode == 0


@pytest.mark.parametrize(
    ("args", "tool"),
    [
        (("backup", EXAMPLE, "f.db"), "pg_basebackup"),
        (("restore", "copy.db", EXAMPLE), "pg_restore"),
    ],
)
def test_postgres_is_left_to_its_own_tools(here: Path, args: tuple[str, ...], tool: str) -> None:
    """Said plainly, without connecting, and nothing is faked."""
    done = run(here, *args)
    assert done.returncode == limpet.errors.BackupRefused.exit_code
    assert "pg_dump" in done.stderr
    assert tool in done.stderr
    assert not (here / "f.db").exists()


# --- errors -------------------------------------------------------------------------------------

WRONG: list[tuple[tuple[str, ...], type[limpet.LimpetError]]] = [
    (("doctor", "nonsense"), limpet.errors.InvalidURL),
    (("verify", "mysql://x/y"), limpet.errors.InvalidURL),
    (("doctor", "sqlite:///missing.db"), limpet.errors.StoreUnopened),
    (("backup", "sqlite:///missing.db", "f.db"), limpet.errors.StoreUnopened),
    (("doctor", "postgresql://x:secret@127.0.0.1:1/y"), limpet.errors.StoreUnreachable),
    (("doctor", "postgresql://x:secret@127.0.0.1:notaport/y"), limpet.errors.InvalidURL),
    (("verify", "sqlite:///notes.txt"), limpet.errors.StoreForeign),
    (("verify", "sqlite:///support.db", "--app", "x"), limpet.InvalidInput),
    (("status", "sqlite:///missing.db"), limpet.errors.StoreUnopened),
    (("status", "sqlite:///support.db", "--app", "x"), limpet.SessionNotFound),
    (("status", "sqlite:///support.db", "--app", ""), limpet.errors.InvalidQuery),
    (
        ("verify", "sqlite:///support.db", "--app", "x", "--user", "y", "--id", "z"),
        limpet.SessionNotFound,
    ),
    (("backup", "sqlite:///support.db", "notes.txt"), limpet.errors.BackupRefused),
    (("backup", "memory://", "f.db"), limpet.errors.BackupRefused),
    (("backup", "sqlite:///support.db", "none/f.db"), limpet.errors.BackupRefused),
    (("backup", "sqlite:///support.db", "."), limpet.errors.BackupRefused),
    (("backup", "sqlite:///support.db", "sqlite:///f.db"), limpet.InvalidInput),
    (("restore", "sqlite:///support.db", "sqlite:///new.db"), limpet.InvalidInput),
    (("restore", "support.db", "sqlite:///none/new.db"), limpet.errors.BackupRefused),
    (("restore", "support.db", "sqlite:///."), limpet.errors.BackupRefused),
    (("restore", "support.db", "new"), limpet.errors.InvalidURL),
    (("restore", "support.db", "none/new.db"), limpet.errors.BackupRefused),
    (("doctor", "missing.db"), limpet.errors.StoreUnopened),
    (("doctor", "sqlite:support.db"), limpet.errors.InvalidURL),
    (("restore", "support.db", "memory://"), limpet.errors.InvalidURL),
    (("restore", ".", "sqlite:///new.db"), limpet.errors.BackupRefused),
    (("restore", "support.db", "sqlite:///notes.txt", "--replace"), limpet.errors.StoreForeign),
    (("restore", "notes.txt", "sqlite:///new.db"), limpet.errors.StoreForeign),
    (("restore", "missing", "sqlite:///new.db"), limpet.errors.BackupRefused),
    (
        ("migrate", "sqlite:///support.db", "--migrations", "no_such:X", "--plan"),
        limpet.InvalidInput,
    ),
    (("migrate", "sqlite:///support.db", "--migrations", "no_such:X"), limpet.InvalidInput),
]


@pytest.mark.parametrize(("args", "kind"), WRONG)
def test_an_error_is_its_code_its_words_and_its_exit_code(
    here: Path, args: tuple[str, ...], kind: type[limpet.LimpetError]
) -> None:
    """Never a traceback, never a password, and no file that was not there before."""
    before = sorted(here.iterdir())
    done = run(here, *args)
    assert done.returncode == kind.exit_code
    assert done.stdout == ""
    first, words, *rest = done.stderr.splitlines()
    assert (first, rest) == (f"limpet: {kind.code}", [])
    assert words.endswith(".")
    assert "secret" not in done.stderr
    code, told = answer(here, *args)
    assert code == kind.exit_code
    assert told["error"]["code"] == kind.code
    assert told["error"]["message"] == words.strip()
    assert told["error"]["docs"] == f"errors/#{kind.code}"
    assert sorted(here.iterdir()) == before


def test_a_database_without_a_store_is_not_given_one(here: Path, server: Server) -> None:
    """Looking after a store never makes one, on a server neither."""
    empty = server.url_as("limpet", database="template1")
    for _ in range(2):
        code, told = answer(here, "doctor", empty)
        assert (code, told["error"]["code"]) == (4, "store.unopened")
        assert "no schema" in told["error"]["message"]


USAGE: list[tuple[tuple[str, ...], str, str]] = [
    (("doctor", "sqlite:///support.db", "--loud"), "--loud", "limpet doctor --help"),
    (("doctor",), "STORE", "limpet doctor --help"),
    (("backup", "sqlite:///support.db"), "FILE", "limpet backup --help"),
    (("migrate", "sqlite:///support.db", "--plan"), "--migrations", "limpet migrate --help"),
    (("no_such",), "no_such", "limpet --help"),
    (("verify", "sqlite:///support.db", "--app"), "--app", "limpet verify --help"),
]


@pytest.mark.parametrize(("args", "word", "see"), USAGE)
def test_wrong_usage_is_an_invalid_request(
    here: Path, args: tuple[str, ...], word: str, see: str
) -> None:
    """It exits with 2, for people with a hint, and with --json in JSON like every error."""
    done = run(here, *args)
    assert (done.returncode, done.stdout, word in done.stderr) == (2, "", True)
    done = run(here, args[0], "--json", *args[1:])
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)["error"]
    assert told["code"] == "input.invalid"
    assert word in told["message"]
    assert told["message"].endswith(f"See {see}.")


# --- output -------------------------------------------------------------------------------------


def run_into(here: Path, stdout: int, *args: str) -> Done:
    """The command as a process of its own whose answers go to this file."""
    done = subprocess.run(
        [sys.executable, "-m", "limpet.cli", *args],
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, "", done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["words", "json"])
def test_an_answer_that_cannot_be_written_is_no_finding(here: Path, how: tuple[str, ...]) -> None:
    """A full disk under stdout has a code of its own, and no traceback."""
    for command in ("doctor", "verify"):
        with Path("/dev/full").open("w") as full:
            done = run_into(here, full.fileno(), command, "sqlite:///support.db", *how)
        assert done.returncode == 74
        first, words, *rest = done.stderr.splitlines()
        assert (first, rest) == ("limpet: output.lost", [])
        assert "No space left on device" in words


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["words", "json"])
def test_a_reader_that_goes_away_is_no_finding(here: Path, how: tuple[str, ...]) -> None:
    """As after `| head -1`: no words, and the code that a closed pipe has everywhere."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run_into(here, writing, "doctor", "sqlite:///support.db", *how)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupted_command_has_a_code_of_its_own(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them, not migrate alone; in JSON too; and what it was about to replace is there."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backups, "_put", stop)
    before = sorted(path.name for path in here.iterdir())
    done = run(here, "restore", "support.db", "sqlite:///new.db")
    assert (done.returncode, done.stderr.splitlines()[0]) == (130, "limpet: interrupted")
    code, told = answer(here, "restore", "support.db", "sqlite:///new.db")
    assert (code, told["error"]["code"]) == (130, "interrupted")
    assert sorted(path.name for path in here.iterdir()) == before


# --- the page -----------------------------------------------------------------------------------


def examples() -> list[str]:
    return re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def leveled(text: str) -> str:
    """Without what differs between machines: numbers, file systems, which clock is ahead."""
    text = re.sub(r"\d[\d.,]*", "N", text)
    text = re.sub(r"((?:file system|disk space) +)\S.*", r"\1…", text)
    return re.sub(r"\b(ahead|behind) \(", "off (", text)


@pytest.mark.parametrize("place", range(len(examples())))
def test_the_page_shows_what_happens(
    here: Path, server: Server, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of docs/cli.md, run in order, prints what stands below it."""
    later = datetime.now(UTC) + timedelta(hours=3)
    monkeypatch.setattr(limpet.Limpet, "now", lambda _: later)
    # The page was written on a disk; the tests' files may be in memory.
    monkeypatch.setattr("limpet.store.sqlite.doctor._FLEETING", frozenset())
    if "limpet migrate" in examples()[place]:
        chats.write_modules(here)
        asyncio.run(chats.fill(f"sqlite:///{here}/chats.db"))
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "chats", raising=False)
    if "old.db" in examples()[place]:
        shutil.copy(Path(__file__).parents[1] / "golden" / "store-1.db", here / "old.db")
    for part in re.split(r"^\$ ", examples()[place], flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        program, *args = shlex.split(line)
        assert program == "limpet"
        done = run(here, *(arg.replace(EXAMPLE, server.url) for arg in args))
        assert leveled(done.stdout + done.stderr) == leveled(expected)


def test_the_page_describes_every_check(here: Path, server: Server) -> None:
    """No check is shown that the tables do not explain."""
    explained = " ".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE))
    for url in ("sqlite:///support.db", server.url):
        for check in answer(here, "doctor", url)[1]["checks"]:
            assert f"`{check['name']}`" in explained
