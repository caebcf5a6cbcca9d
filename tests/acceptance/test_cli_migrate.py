"""`limpet migrate`, as a person runs it before and after a new release of their program."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet.session.schema import migrate
from limpet.session.schema.migrate import FATES
from tests.support import chats, later
from tests.support.command import PAGE, Done, answer, run, run_process, run_terminal
from tests.support.postgres import functions

URL = "sqlite:///chats.db"
REGISTRY = ("--migrations", "chats:MIGRATIONS")
STATE = (*REGISTRY, "--state", "chats:Chat")
MIXED = {
    "untyped": 1,
    "compatible": 1,
    "migratable": 2,
    "missing": 1,
    "failed": 1,
    "incompatible": 1,
    "unfit": 1,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a mixed store and the modules of its owner."""
    chats.write_modules(tmp_path)
    asyncio.run(chats.fill(f"sqlite:///{tmp_path}/chats.db"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, here: Path) -> str:
    """The mixed store, in a file and on a server."""
    if request.param == "sqlite":
        return f"sqlite:///{here}/chats.db"
    found: str = request.getfixturevalue("postgres_store_url")
    asyncio.run(chats.fill(found))
    return found


def versions(url: str) -> dict[str, tuple[int, str | None]]:
    return asyncio.run(chats.versions(url))


def counts(told: Any) -> dict[str, int]:
    return {outcome["fate"]: outcome["sessions"] for outcome in told["outcomes"]}


# --- the plan -----------------------------------------------------------------------------------


def test_a_plan_counts_every_fate_and_names_one_session_of_each(here: Path, url: str) -> None:
    """With the reason in the words of the error; impossible ones make the exit code 1."""
    code, told = answer(here, "migrate", url, *STATE, "--plan")
    assert (code, told["ok"], told["applied"]) == (1, False, False)
    assert (told["target"], told["sessions"]) == ("2.0.0", 8)
    assert counts(told) == MIXED
    examples = {o["fate"]: (o["session"]["id"], o["reason"]) for o in told["outcomes"]}
    assert examples["migratable"] == ("old", "1.0.0 → 2.0.0")
    assert examples["missing"][0] == "ancient"
    assert "no migration path leads from schema 0.9.0 to 2.0.0" in examples["missing"][1]
    assert examples["failed"][0] == "bare"
    assert re.search(
        r"raised KeyError in chats\.\w+, chats\.py line \d+\..* It said: 'plan'$",
        examples["failed"][1],
    )
    assert examples["unfit"][0] == "wrong"
    assert examples["unfit"][1].startswith("goal must be str; found int 5.")
    assert examples["incompatible"][0] == "future"


@pytest.mark.parametrize("how", ["--plan", "--apply"])
def test_every_session_without_a_way_is_named_in_json(
    here: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own reason, however many they are and whatever the plan itself holds."""
    asyncio.run(more_wrong(here))
    monkeypatch.setattr(migrate, "NAMED_MAX", 2)
    told = answer(here, "migrate", URL, *STATE, "--plan")[1]
    by_fate = {outcome["fate"]: outcome for outcome in told["outcomes"]}
    unfit = by_fate["unfit"]
    assert {one["id"] for one in unfit["named"]} == {"wrong", *(f"wrong-{n}" for n in range(4))}
    (last,) = [one for one in unfit["named"] if one["id"] == "wrong-3"]
    assert (last["app"], last["user"]) == ("support", "ada")
    assert last["reason"].startswith("goal must be str; found int 3.")
    assert unfit["sessions"] == 5
    assert by_fate["migratable"]["named"] == []
    paged = ("--limit", "1", "--skip", "3")
    told = answer(here, "migrate", URL, *STATE, how, *paged)[1]
    (again,) = [outcome for outcome in told["outcomes"] if outcome["fate"] == "unfit"]
    assert again == unfit


async def more_wrong(here: Path) -> None:
    async with limpet.open(f"sqlite:///{here}/chats.db") as lp:
        for n in range(4):
            await lp.create("support", "ada", id=f"wrong-{n}", state=chats.Old(plan=n))


@pytest.mark.parametrize(
    ("paging", "shown", "more"),
    [
        ((), ["wrong", "wrong-0", "wrong-1", "wrong-2", "wrong-3"], None),
        (("--limit", "2"), ["wrong", "wrong-0"], "and 3 more: --skip 2 continues, --json has all"),
        (("--limit", "2", "--skip", "2"), ["wrong-1", "wrong-2"], "and 1 more: --skip 4 continues"),
        (("--limit", "2", "--skip", "4"), ["wrong-3"], None),
        (("--skip", "9"), [], None),
    ],
)
def test_every_session_without_a_way_is_listed_by_pages(
    here: Path, paging: tuple[str, ...], shown: list[str], more: str | None
) -> None:
    """Each on a line of its own, with a count of those behind the page and how to see them."""
    asyncio.run(more_wrong(here))
    lines = run(here, "migrate", URL, *STATE, "--plan", *paging).stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("unfit"))
    assert lines[start].split()[1] == "5"
    found = re.findall(r"support/ada/(wrong\S*)  ", "\n".join(lines[start:]))
    assert found == shown
    assert ("more: --skip" in "\n".join(lines)) == (more is not None)
    assert more is None or any(more in line for line in lines[start:])


async def test_a_program_is_told_of_every_session_without_a_way(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan holds no more than a bound; `failure` is told of all of them, with the reasons."""
    await more_wrong(here)
    monkeypatch.setattr(migrate, "NAMED_MAX", 2)
    told: list[tuple[limpet.Key, str, str]] = []
    renaming = limpet.MigrationRegistry()
    renaming.register("1.0.0", "2.0.0", lambda fields: {"goal": fields["plan"]})
    async with limpet.open(f"sqlite:///{here}/chats.db") as lp:
        plan = await lp.maintenance.migrate(
            migrations=renaming,
            state_type=chats.New,
            failure=lambda key, fate, reason: told.append((key, fate, reason)),
        )
    unfit = [key.id for key, fate, _ in told if fate == "unfit"]
    assert sorted(unfit) == ["wrong", *(f"wrong-{n}" for n in range(4))]
    (outcome,) = [outcome for outcome in plan.outcomes if outcome.fate == "unfit"]
    assert (len(outcome.named), outcome.left_off) == (2, 3)
    assert len(told) == sum(outcome.sessions for outcome in plan.outcomes if not outcome.ok)


def test_a_plan_changes_nothing(here: Path, url: str) -> None:
    """Neither a version nor, in a file, a single byte; and no file is left behind."""
    before = versions(url)
    content, names = (here / "chats.db").read_bytes(), sorted(here.glob("*.db*"))
    answer(here, "migrate", url, *STATE, "--plan")
    assert (here / "chats.db").read_bytes() == content
    assert sorted(here.glob("*.db*")) == names
    assert versions(url) == before


def test_without_a_class_the_newest_version_is_the_target(here: Path) -> None:
    """And nothing can be unfit: whatever the migration makes of it is taken."""
    code, told = answer(here, "migrate", URL, *REGISTRY, "--plan")
    assert (code, told["target"]) == (1, "2.0.0")
    assert counts(told) == {**{k: n for k, n in MIXED.items() if k != "unfit"}, "migratable": 3}


def test_several_equal_ways_are_an_impossible_one(here: Path) -> None:
    """Ambiguity is told with the ways."""
    _, told = answer(here, "migrate", URL, "--migrations", "chats:TANGLED", "--plan")
    (tangled,) = [o for o in told["outcomes"] if o["fate"] == "ambiguous"]
    assert tangled["sessions"] == 4
    assert "1.0.0 → 1.1.0, 1.1.0 → 2.0.0" in tangled["reason"]


def test_one_app_may_be_looked_at_alone(here: Path) -> None:
    """Other apps are neither tried nor counted."""

    async def another() -> None:
        async with limpet.open(f"sqlite:///{here}/chats.db") as lp:
            await lp.create("billing", "ada")

    asyncio.run(another())
    code, told = answer(here, "migrate", URL, *STATE, "--plan", "--app", "billing")
    assert (code, told["sessions"], counts(told)) == (0, 1, {"untyped": 1})
    assert answer(here, "migrate", URL, *STATE, "--plan", "--app", "support")[1]["sessions"] == 8


@pytest.mark.parametrize("how", ["--plan", "--apply"])
def test_an_app_without_sessions_is_told(here: Path, url: str, how: str) -> None:
    """A mistake in its name is not called success; the names that there are are given."""
    code, told = answer(here, "migrate", url, *STATE, how, "--app", "supprot")
    assert (code, told["error"]["code"]) == (3, "session.not_found")
    assert "'supprot'" in told["error"]["message"]
    assert told["error"]["message"].endswith("Check --app: this store has sessions of support.")


def test_one_app_and_all_apps_are_not_asked_for_at_once(here: Path) -> None:
    """One of the two was meant, and nobody can tell which."""
    args = (*STATE, "--plan", "--app", "support", "--all-apps")
    code, told = answer(here, "migrate", URL, *args)
    assert (code, told["error"]["code"]) == (2, "input.invalid")


def test_several_apps_are_not_migrated_unless_that_is_said(here: Path) -> None:
    """One registry is of one kind of state: the other app's sessions would not load any more."""

    async def another() -> None:
        async with limpet.open(f"sqlite:///{here}/chats.db") as lp:
            await lp.create("billing", "ada", state=chats.SESSIONS["old"])

    asyncio.run(another())
    for how in ("--plan", "--apply"):
        code, told = answer(here, "migrate", URL, *STATE, how)
        assert (code, told["error"]["code"]) == (2, "input.invalid")
        assert "billing, support" in told["error"]["message"]
    assert answer(here, "migrate", URL, *STATE, "--plan", "--all-apps")[1]["sessions"] == 9
    assert answer(here, "migrate", URL, *STATE, "--plan", "--app", "support")[1]["sessions"] == 8


def test_what_a_migration_leaves_behind_is_told(here: Path) -> None:
    """A name that the class does not declare was perhaps forgotten: the plan says so."""
    (here / "lazy.py").write_text(
        "import limpet\n"
        "registry = limpet.MigrationRegistry()\n"
        "registry.register('1.0.0', '2.0.0', lambda fields: {**fields, 'goal': 'x'})\n"
    )
    lazy = ("--migrations", "lazy:registry", *STATE[2:], "--plan")
    told = answer(here, "migrate", URL, *lazy)[1]
    assert told["leftovers"]["plan"] > 0
    done = run(here, "migrate", URL, *lazy)
    assert "left over: plan, in " in done.stdout


def test_a_damaged_session_is_told_and_left_alone(here: Path) -> None:
    """The plan sees what a load sees, an apply verifies the log first; the others go on."""
    content = (here / "chats.db").read_bytes()
    assert content.count(b'["plan"],"answer"') == 1
    damaged = content.replace(b'["plan"],"answer"', b'["plan"],"anSwer"')
    (here / "damaged.db").write_bytes(damaged)
    for how in ("--plan", "--apply"):
        _, told = answer(here, "migrate", "sqlite:///damaged.db", *STATE, how)
        (found,) = [o for o in told["outcomes"] if o["fate"] == "damaged"]
        assert (found["sessions"], found["session"]["id"]) == (1, "old")
    after = versions(f"sqlite:///{here}/damaged.db")
    assert (after["old"], after["older"]) == ((1, "1.0.0"), (2, "2.0.0"))


@pytest.mark.parametrize("kind", ["older", "empty", "copied"])
def test_a_plan_does_not_bring_the_file_itself_forward(
    here: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older schema and an empty file are refused, a copy outside WAL is read as it is."""
    path = here / "other.db"
    if kind == "empty":
        path.touch()
    else:
        conn = apsw.Connection(str(here / "chats.db"))
        conn.execute("VACUUM INTO ?", (str(path),))
        conn.close()
    if kind == "older":
        later.release(monkeypatch)
    before = path.read_bytes()
    code, told = answer(here, "migrate", "sqlite:///other.db", *STATE, "--plan")
    if kind == "copied":
        assert (code, counts(told)) == (1, MIXED)
    else:
        expected = limpet.errors.StoreOlder if kind == "older" else limpet.errors.StoreUnopened
        assert (code, told["error"]["code"]) == (4, expected.code)
    assert path.read_bytes() == before
    assert sorted(here.glob("other.db*")) == [path]


def test_a_plan_does_not_bring_a_servers_functions_forward(
    here: Path, postgres_store_url: str
) -> None:
    """They are the schema's as well: refused, and left as they are."""
    asyncio.run(chats.fill(postgres_store_url))
    asyncio.run(functions(postgres_store_url, b"x"))
    code, told = answer(here, "migrate", postgres_store_url, *STATE, "--plan")
    assert (code, told["error"]["code"]) == (4, "store.unopened")
    assert asyncio.run(functions(postgres_store_url)) == b"x"


# --- applying -----------------------------------------------------------------------------------


def test_what_can_be_is_migrated_and_the_rest_is_left(here: Path, url: str) -> None:
    """One event each; a second run finds nothing more to do; the store verifies."""
    before = versions(url)
    code, told = answer(here, "migrate", url, *STATE, "--apply")
    assert (code, told["applied"]) == (1, True)
    done = {"migrated" if fate == "migratable" else fate: n for fate, n in MIXED.items()}
    assert counts(told) == done
    after = versions(url)
    assert {id for id in after if after[id] != before[id]} == {"old", "older"}
    assert after["old"] == after["older"] == (2, "2.0.0")
    code, told = answer(here, "migrate", url, *STATE, "--apply")
    again = {fate: n for fate, n in done.items() if fate != "migrated"}
    assert (code, counts(told)) == (1, {**again, "compatible": 3})
    assert versions(url) == after
    assert run(here, "verify", url).returncode == 0


def test_after_an_apply_the_plan_says_that_all_is_compatible(here: Path) -> None:
    """Exit code 0 on every turn, where nothing is impossible."""
    asyncio.run(chats.fill(f"sqlite:///{here}/able.db", *chats.ABLE))
    url = "sqlite:///able.db"
    for how, fates in (
        ("--plan", {"untyped": 1, "compatible": 1, "migratable": 2}),
        ("--apply", {"untyped": 1, "compatible": 1, "migrated": 2}),
        ("--plan", {"untyped": 1, "compatible": 3}),
        ("--apply", {"untyped": 1, "compatible": 3}),
    ):
        code, told = answer(here, "migrate", url, *STATE, how)
        assert (code, told["ok"], counts(told)) == (0, True, fates)


def test_an_interrupted_apply_goes_on_when_run_again(here: Path) -> None:
    """Interrupted by Ctrl-C in the middle: what was done is done, nothing is half done."""
    (here / "stopping.py").write_text(
        "import os, signal, chats\nfrom chats import Chat\n"
        "from limpet import MigrationRegistry\n\nSTOPPING = MigrationRegistry()\nseen = []\n\n\n"
        "@STOPPING.migration('1.0.0', '2.0.0')\ndef once(fields):\n    seen.append(fields)\n"
        "    if len(seen) == 90:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return chats.renamed(fields)\n"
    )
    url = f"sqlite:///{here}/many.db"

    async def fill() -> None:
        async with limpet.open(f"{url}?sync=normal") as lp:
            for n in range(150):
                await lp.create("support", "ada", id=str(n), state=chats.Old(plan=str(n)))

    asyncio.run(fill())
    stopped = run_process(
        here,
        "migrate",
        url,
        "--migrations",
        "stopping:STOPPING",
        "--state",
        "chats:Chat",
        "--apply",
    )
    assert stopped.returncode == 130
    assert stopped.stderr.startswith("limpet: interrupted\n")
    assert "run the same command again" in stopped.stderr
    assert (stopped.stdout, "Traceback" in stopped.stderr) == ("", False)
    half = versions(url)
    assert set(half.values()) == {(1, "1.0.0"), (2, "2.0.0")}
    code, told = answer(here, "migrate", url, *STATE, "--apply")
    done = sum(version == 2 for version, _ in half.values())
    assert (code, counts(told)) == (0, {"compatible": done, "migrated": 150 - done})
    assert set(versions(url).values()) == {(2, "2.0.0")}
    assert run(here, "verify", url).returncode == 0


# --- words --------------------------------------------------------------------------------------


def test_in_a_pipe_there_is_a_line_for_each_fate(here: Path) -> None:
    """And one that sums up."""
    done = run_process(here, "migrate", URL, *STATE, "--plan")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["outcome", "sessions", "session", "why"]
    assert [line.split()[0] for line in lines[1:-1]] == list(MIXED)
    assert lines[-1] == (
        "not ok: 2 sessions of 8 to be migrated to schema 2.0.0, 4 cannot be migrated; "
        "nothing was written."
    )


def test_on_a_terminal_there_is_a_table_and_a_bar(here: Path) -> None:
    """With colours that tell what is possible from what is not."""
    code, shown = run_terminal(here, "migrate", URL, *STATE, "--plan")
    assert code == 1
    for words in ("trying sessions", "outcome", "\x1b[32mmigratable", "\x1b[1;31mfailed"):
        assert words in shown


def test_the_page_explains_every_fate() -> None:
    """No outcome is shown that docs/cli.md does not explain."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (fine|impossible) \|$", PAGE.read_text(), re.MULTILINE)
    assert [fate for fate, _ in rows] == list(FATES)


def test_what_migrations_print_is_no_part_of_the_answer(here: Path) -> None:
    """It goes to stderr; stdout is JSON alone."""
    done = run_process(here, "migrate", URL, "--migrations", "loud:MIGRATIONS", "--plan", "--json")
    assert done.stderr == "loud\n"
    assert json.loads(done.stdout)["target"] == "2.0.0"


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--migrations", "chats"), "Write it like myapp.module:name"),
    (("--migrations", "chats:"), "Write it like myapp.module:name"),
    (("--migrations", ":MIGRATIONS"), "Write it like myapp.module:name"),
    (("--migrations", "../chats:MIGRATIONS"), "Write it like myapp.module:name"),
    (("--migrations", "no_such:MIGRATIONS"), "the module 'no_such' was not found"),
    (("--migrations", "chats.no_such:MIGRATIONS"), "the module 'chats.no_such' was not found"),
    (("--migrations", "chats:MIGRATION"), "the module chats has no 'MIGRATION'"),
    (("--migrations", "chats:NUMBER"), "int 5 is not a registry"),
    (("--migrations", "chats:Chat"), "is not a registry"),
    (("--migrations", "chats:EMPTY"), "no version to migrate to"),
    (("--migrations", "broken:X"), "ZeroDivisionError: division by zero (broken.py, line 3)"),
    (("--migrations", "unfinished:X"), "(unfinished.py, line 1)"),
    (("--migrations", "needy:X"), "No module named 'no_such_package' (needy.py, line 1)"),
    (("--migrations", "leaving:X"), "cannot be imported: SystemExit: 0"),
    (("--migrations", "exiting:EXITING"), "called sys.exit"),
    ((*REGISTRY, "--state", "chats:NUMBER"), "is not a State class"),
    ((*REGISTRY, "--state", "chats:Chad"), "the module chats has no 'Chad'"),
    ((*REGISTRY, "--app", ""), "the app ''"),
]


@pytest.mark.parametrize(("args", "words"), WRONG)
def test_a_name_that_leads_nowhere_is_told_with_what_to_do(
    here: Path, args: tuple[str, ...], words: str
) -> None:
    """A wrong request: exit code 2, never a traceback, nothing written."""
    before = versions(f"sqlite:///{here}/chats.db")
    done = run(here, "migrate", URL, *args, "--apply")
    assert (done.returncode, done.stdout) == (2, "")
    first, told, *rest = done.stderr.splitlines()
    assert first in ("limpet: input.invalid", "limpet: query.invalid")
    assert (words in told, told[-1], rest) == (True, ".", [])
    assert versions(f"sqlite:///{here}/chats.db") == before


def test_an_error_of_ours_in_the_module_is_told_as_what_it_is(here: Path) -> None:
    """A migration that is registered twice, for one."""
    done = run(here, "migrate", URL, "--migrations", "twice:TWICE", "--plan")
    assert done.returncode == limpet.errors.MigrationAmbiguous.exit_code
    assert done.stderr.startswith("limpet: migration.ambiguous\n")


@pytest.mark.parametrize("both", [(), ("--plan", "--apply")])
def test_it_must_be_said_whether_to_write(here: Path, both: tuple[str, ...]) -> None:
    """Neither is the default, and not both at once."""
    done: Done = run(here, "migrate", URL, *STATE, *both)
    assert done.returncode == 2
    assert "Pass one of the two." in done.stderr


def test_a_store_that_is_not_there_is_not_made(here: Path) -> None:
    """As with every other command."""
    for how in ("--plan", "--apply"):
        code, told = answer(here, "migrate", "sqlite:///missing.db", *STATE, how)
        assert (code, told["error"]["code"]) == (4, "store.unopened")
    assert not (here / "missing.db").exists()
