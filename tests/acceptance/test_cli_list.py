"""`limpet list`: the sessions of a store in pages, for people and as JSON."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.cli.options import refuse_unknown, refuse_unknown_user
from tests.support.command import answer, run, run_terminal


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with sessions of two apps, one of them deleted. Nothing here writes to it."""
    found = tmp_path_factory.mktemp("list")
    asyncio.run(fill(found / "a.db"))
    return found


async def fill(path: Path) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        for number in range(3):
            labels = {"plan": "gold"} if number else {}
            await lp.create("support", "ada", id=f"s{number}", labels=labels, state={"n": number})
        await lp.create("billing", "bob", id="gone")
        await lp.delete("billing", "bob", "gone")


def ids(told: dict[str, Any]) -> list[str]:
    return [one["session"]["id"] for one in told["items"]]


def test_pages_follow_each_other_until_there_is_no_cursor(here: Path) -> None:
    """The newest first; a cursor leads on, and the last page has none."""
    code, told = answer(here, "list", "a.db", "--limit", "2")
    assert (code, ids(told)) == (0, ["s2", "s1"])
    code, told = answer(here, "list", "a.db", "--cursor", told["cursor"])
    assert (code, ids(told), told["cursor"]) == (0, ["s0"], None)


def test_a_listing_is_filtered_and_brings_states(here: Path) -> None:
    """By app, user and labels; the same form as any other page."""
    _, told = answer(here, "list", "a.db", "--label", "plan=gold", "--app", "support")
    assert ids(told) == ["s2", "s1"]
    _, told = answer(here, "list", "a.db", "--user", "ada", "--app", "support", "--order", "key")
    assert ids(told) == ["s2", "s1", "s0"]
    assert "state" not in told["items"][0]
    _, told = answer(here, "list", "a.db", "--state", "--limit", "1")
    assert told["items"][0]["state"] == {"n": 2}
    _, told = answer(here, "list", "a.db", "--deleted")
    assert [(one["session"]["app"], one["phase"]) for one in told["items"]] == [("billing", None)]


def test_people_see_a_line_for_each_session_and_whether_there_are_more(here: Path) -> None:
    """Its key, version, phase, time and labels; a table on a terminal."""
    lines = run(here, "list", "a.db", "--limit", "1").stdout.splitlines()
    assert lines[0].split() == ["session", "version", "status", "phase", "updated", "labels"]
    assert lines[1].startswith("support/ada/s2        1  idle    active  20")
    assert lines[1].endswith("Z  plan=gold")
    assert lines[2].startswith("and more; ")
    assert (
        "billing/bob/gone        1          deleted  20"
        in run(here, "list", "a.db", "--deleted").stdout
    )
    code, shown = run_terminal(here, "list", "a.db", "--limit", "2")
    assert code == 0
    assert "plan=gold" in shown
    assert " ago" in shown or "now" in shown
    assert "and more; " in shown


@pytest.mark.parametrize(
    ("option", "code"),
    [
        (("--label", "gold"), "input.invalid"),
        (("--label", "plan=gold", "--label", "plan=free"), "input.invalid"),
        (("--app", "support", "--app", "billing"), "input.invalid"),
        (("--app", "support", "--app=support"), "input.invalid"),
        (("--order", "updated"), "query.invalid"),
    ],
)
def test_what_cannot_be_listed_is_refused(here: Path, option: tuple[str, ...], code: str) -> None:
    """A label without a value or with two, an option given twice, an order without an index."""
    exit_code, told = answer(here, "list", "a.db", *option)
    assert (exit_code, told["error"]["code"]) == (2, code)


def test_what_is_said_twice_is_no_question(here: Path) -> None:
    """Several labels, one label said twice, and a flag said twice leave nothing open."""
    labels = ("--label", "plan=gold", "--label", "plan=gold", "--label", "a=b=c")
    labels += ("--app", "support")
    assert answer(here, "list", "a.db", *labels, "--state", "--state")[0] == 0
    done = run(here, "list", "a.db", "--app", "a", "--app", "b")
    assert done.returncode == 2
    assert "--app is given 2 times. Pass it once." in done.stderr


async def test_an_app_whose_newest_session_is_hidden_is_known() -> None:
    """The first page of a principal may be empty, and the app is still there."""
    async with limpet.open("memory://") as lp:
        await lp.create("support", "ada", "seen", actor="user:ada")
        for number in range(200):
            apart = limpet.Isolation(model="per_task", task=f"t{number}")
            await lp.create("support", "ada", f"t{number}", isolation=apart, actor="user:ada")
        ada = limpet.Principal("user:ada", role="owner", app="support", user="ada")
        await refuse_unknown(lp.acting_as(ada), "support")
        await refuse_unknown_user(lp.acting_as(ada), "support", "ada")


def test_an_app_without_sessions_is_named_with_those_that_there_are(here: Path) -> None:
    """A misspelled --app is not an empty store; of a known one the deleted can still be listed."""
    done = run(here, "list", "a.db", "--app", "suport")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no session of the app 'suport'" in done.stderr
    assert "sessions of support" in done.stderr
    code, told = answer(here, "list", "a.db", "--app", "suport")
    assert (code, told["error"]["code"]) == (3, "session.not_found")
    _, told = answer(here, "list", "a.db", "--app", "billing", "--deleted")
    assert ids(told) == ["gone"]
    assert run(here, "list", "a.db", "--app", "support", "--user", "nobody").returncode == 0


async def test_labels_of_limpets_own_are_not_shown(tmp_path: Path) -> None:
    """By which dead letters are found: neither on the object nor in the table nor in JSON."""

    async def fails(turn: limpet.Turn) -> None:
        raise ValueError

    async with limpet.open(f"sqlite:///{tmp_path}/a.db") as lp:
        s = await lp.create("support", "ada", id="dead", labels={"plan": "gold"}, actor="user:ada")
        await s.append("user.message", {"text": "hi"})
        await lp.wake(s.key, fails, retries=0)
        await s.refresh()
        (dead,) = (await lp.work.dead_letters(app="support")).items
        assert s.labels == dead.labels == {"plan": "gold"}
        assert "$dead" in dead.indexed_labels
    assert "$" not in (await asyncio.to_thread(run, tmp_path, "list", "a.db")).stdout
    _, told = await asyncio.to_thread(answer, tmp_path, "list", "a.db")
    assert told["items"][0]["labels"] == {"plan": "gold"}


# --- statuses -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a session of each status, the oldest of them dead, and documents."""
    folder = tmp_path_factory.mktemp("waiting")

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs[0].data["text"] == "fail":
            raise ValueError
        await turn.approve("refund", {"order": 7})

    async def filled() -> None:
        async with limpet.open(f"sqlite:///{folder}/a.db") as lp:
            for id, text in (("dead", "fail"), ("blocked", "ask"), ("idle", None), ("ended", None)):
                s = await lp.create("support", "ada", id, actor="user:ada")
                if text is not None:
                    await s.append("user.message", {"text": text})
                    await lp.wake(s.key, harness, retries=0)
            await s.complete()
            running = await lp.create("support", "ada", "running", actor="user:ada")
            await running.append("user.message", {"text": "hi"})
            assert await lp.work.claim("w", lease_seconds=3_600)
            await lp.agents.put("helper", {"name": "helper"}, actor="user:root")

    asyncio.run(filled())
    return folder


def test_a_listing_shows_the_status_of_each_session(waiting: Path) -> None:
    """In the table, within 80 columns, and in JSON; dead and blocked are said in place of idle."""
    expected = {"dead": "dead", "blocked": "blocked", "idle": "idle", "running": "running"}
    expected["ended"] = "terminated"
    _, told = answer(waiting, "list", "a.db")
    assert {one["session"]["id"]: one["status"] for one in told["items"]} == expected
    _, shown = run_terminal(waiting, "list", "a.db")
    lines = re.sub(r"\x1b\[[0-9;]*m|\r", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    for id, status in expected.items():
        assert [line for line in lines if f"/{id} " in line and f" {status} " in line], shown


@pytest.mark.parametrize("status", ["dead", "blocked", "idle", "running", "terminated"])
def test_a_listing_is_of_one_status(waiting: Path, status: str) -> None:
    _, told = answer(waiting, "list", "a.db", "--status", status)
    assert ids(told) == ["ended" if status == "terminated" else status]


def test_dead_and_blocked_sessions_come_first_if_asked(waiting: Path) -> None:
    """Then what is under way; a short page says that there is more."""
    order = ["dead", "blocked", "running", "idle", "ended"]
    _, told = answer(waiting, "list", "a.db", "--sort", "status")
    assert (ids(told), told["cursor"]) == (order, None)
    done = run(waiting, "list", "a.db", "--sort", "status", "--limit", "2")
    assert [line.split()[0].rpartition("/")[2] for line in done.stdout.splitlines()[1:3]] == order[
        :2
    ]
    assert done.stdout.splitlines()[3] == "and more; use --limit to show more."
    for wrong in (("--status", "nonsense"), ("--sort", "status", "--deleted")):
        assert run(waiting, "list", "a.db", *wrong).returncode == 2


@pytest.mark.parametrize("command", ["verify", "doctor"])
def test_sessions_are_counted_alike_and_internal_logs_apart(waiting: Path, command: str) -> None:
    """As many as `list` shows; a document and what Limpet remembers are counted for themselves."""
    shown = run(waiting, command, "a.db").stdout
    assert f"{len(answer(waiting, 'list', 'a.db')[1]['items'])} sessions, 2 internal, " in shown
