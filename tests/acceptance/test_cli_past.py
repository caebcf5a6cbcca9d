"""The commands about a session's past, run on a real file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.command import run, run_terminal

KEY = ("--app", "shop", "--user", "ada", "--id", "1")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A store with a session whose total goes below zero at event 5, and a fork of it."""

    async def fill() -> None:
        async with limpet.open(f"sqlite:///{tmp_path}/shop.db") as lp:
            s = await lp.create("shop", "ada", "1", state={"total": 30}, actor="agent:main")
            for number in range(5):
                await s.append("agent.paid", {"number": number}, inc={"total": -10})
            fork = await s.fork(3, id="try")
            await fork.append("agent.did", set={"note": "other"})

    asyncio.run(fill())
    return tmp_path


def answer(here: Path, command: str, *args: str) -> Any:
    done = run(here, command, "shop.db", *args, *KEY, "--json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def test_log_and_show_tell_of_events(here: Path) -> None:
    """The newest first, a page of them, of a type; one event with what it changed."""
    assert [e["seq"] for e in answer(here, "log")["events"]] == [6, 5, 4, 3, 2, 1]
    older = answer(here, "log", "--before", "4", "--limit", "1", "--type", "agent.*")["events"]
    assert [e["seq"] for e in older] == [3]
    one = answer(here, "show", "2")
    assert (one["event"]["type"], one["diff"]) == (
        "agent.paid",
        [{"path": ["total"], "kind": "modify", "old": 30, "new": 20}],
    )
    assert answer(here, "show", "1")["diff"][0]["kind"] == "add"
    assert "event 2  agent.paid" in run(here, "show", "shop.db", "2", *KEY).stdout
    assert run(here, "show", "shop.db", "9", *KEY).returncode == 2


def test_an_event_that_changed_nothing_is_shown_without_a_table(here: Path) -> None:
    """On a terminal and in a pipe the same: what it is, and that nothing changed."""
    with limpet.open_sync(f"sqlite:///{here}/shop.db") as lp:
        lp.session("shop", "ada", "1").append("agent.paused", actor="agent:main")
    lines = run(here, "show", "shop.db", "7", *KEY).stdout.splitlines()
    assert lines[4:] == ["", "no data", "", "no changes"]
    _, shown = run_terminal(here, "show", "shop.db", "7", *KEY)
    assert "no changes" in shown
    assert "path" not in shown


def test_state_and_diff_take_places_in_the_history(here: Path) -> None:
    """A seq, a time or a checkpoint; nonsense is refused."""
    assert answer(here, "state")["state"] == {"total": -20}
    assert answer(here, "state", "--at", "2")["state"] == {"total": 20}
    at = answer(here, "log")["events"][2]["at"]
    assert answer(here, "state", "--at", at)["state"] == {"total": 0}
    answer(here, "checkpoint", "--trigger", "why")
    assert answer(here, "state", "--at", "#1")["state"] == {"total": -20}
    assert run(here, "diff", "shop.db", "2", "4", *KEY).stdout == "~ total: 20 → 0\n"
    assert answer(here, "diff", "6")["changes"] == []
    for wrong in ("soon", "#x", "0"):
        assert run(here, "state", "shop.db", "--at", wrong, *KEY).returncode == 2
    assert run(here, "state", "shop.db", "--at", "#7", *KEY).returncode == 3


def test_blame_and_bisect_find_the_event(here: Path) -> None:
    """Bisect asks a command, which reads the state as JSON."""
    assert [c["seq"] for c in answer(here, "blame", "total")["changes"]] == [6, 5, 4, 3, 2, 1]
    assert "inc total -10" in run(here, "blame", "shop.db", "total", *KEY).stdout
    assert "no event has changed totl." in run(here, "blame", "shop.db", "totl", *KEY).stdout
    found = answer(here, "bisect", "--command", "grep -v '\"total\":-'")
    assert found["event"]["seq"] == 5
    assert found["asked"] <= 4
    assert answer(here, "bisect", "--command", "true")["event"] is None
    for broken in ("no-such-command", "kill -9 $$", "exit 126"):
        refused = run(here, "bisect", "shop.db", *KEY, "--command", broken)
        assert (refused.returncode, "the command ended with" in refused.stderr) == (2, True)


def test_fork_rewind_and_merge_record_events(here: Path) -> None:
    """By who is named, or by the one at the terminal."""
    made = answer(here, "fork", "--at", "2", "--new-id", "mine")
    assert (made["session"]["id"], made["version"]) == ("mine", 3)
    done = answer(here, "rewind", "3", "--actor", "user:ada")
    assert (done["event"]["actor"], done["restored"]) == ("user:ada", ["total"])
    assert answer(here, "rewind", "3")["event"] is None
    done = answer(here, "merge", "try")
    assert done["event"]["actor"].startswith("cli:")
    assert answer(here, "state")["state"] == {"total": 10, "note": "other"}
    assert "nothing new" in run(here, "merge", "shop.db", "try", *KEY).stdout
    assert run(here, "merge", "shop.db", "try", *KEY, "--prefer", "x").returncode == 2


def test_a_merge_with_conflicts_is_refused_unless_a_side_is_preferred(here: Path) -> None:
    """The error names the places."""

    async def both() -> None:
        async with limpet.open(f"sqlite:///{here}/shop.db") as lp:
            for id in ("1", "try"):
                await lp.session("shop", "ada", id, actor="a").append("agent.did", set={"x": id})

    asyncio.run(both())
    refused = run(here, "merge", "shop.db", "try", *KEY)
    assert (refused.returncode, "changed x" in refused.stderr) == (3, True)
    assert "Pass --prefer ours" in refused.stderr  # the advice of the error is for programs
    refused = run(here, "fork", "shop.db", *KEY, "--new-id", "try")
    assert "Pass another --new-id" in refused.stderr
    answer(here, "merge", "try", "--prefer", "theirs")
    assert answer(here, "state")["state"]["x"] == "try"


def test_checkpoints_are_made_listed_restored_and_let_go(here: Path) -> None:
    """Each by one option; two at once are refused."""
    assert answer(here, "checkpoint", "--full")["checkpoint"]["number"] == 1
    answer(here, "rewind", "1")
    assert answer(here, "checkpoint", "--restore", "1")["event"]["data"]["checkpoint"] == 1
    assert answer(here, "state")["state"] == {"total": -20}
    (listed,) = answer(here, "checkpoint", "--list")["checkpoints"]
    assert (listed["type"], listed["trigger"], listed["seq"]) == ("full", "manual", 6)
    header, line = run(here, "checkpoint", "shop.db", *KEY, "--list").stdout.splitlines()
    assert header.split() == ["number", "event", "type", "at", "tier", "trigger"]
    assert line.split()[:3] == ["#1", "6", "full"]
    answer(here, "checkpoint", "--unpin", "1")
    assert answer(here, "checkpoint", "--list")["checkpoints"] == []
    assert run(here, "checkpoint", "shop.db", *KEY, "--list", "--unpin", "1").returncode == 2


def test_a_lineage_is_a_tree(here: Path) -> None:
    """In lines, in JSON, and on a terminal with branches."""
    key = ("--app", "shop", "--user", "ada", "--id", "try")
    lines = run(here, "lineage", "shop.db", *key).stdout.splitlines()
    assert lines == ["shop/ada/1", "  shop/ada/try (from event 3)"]
    assert answer(here, "lineage")["lineage"]["forks"][0]["session"]["id"] == "try"
    code, text = run_terminal(here, "lineage", "shop.db", *KEY)
    assert code == 0
    assert "└── shop/ada/try" in text


@pytest.mark.parametrize("command", ["log", "diff", "blame", "state", "show"])
def test_answers_are_coloured_on_a_terminal(here: Path, command: str) -> None:
    """As a table or as JSON with colours."""
    more = {"diff": ["1"], "blame": ["total"], "show": ["2"]}.get(command, [])
    code, text = run_terminal(here, command, "shop.db", *more, *KEY)
    assert code == 0
    assert "\x1b[" in text


def test_a_session_that_is_not_there_is_named(here: Path) -> None:
    """With advice for the command line; reading commands make no store."""
    done = run(here, "log", "shop.db", "--app", "shop", "--user", "ada", "--id", "9")
    assert (done.returncode, "limpet list STORE" in done.stderr) == (3, True)
    assert run(here, "log", "none.db", *KEY).returncode == 4
    assert not (here / "none.db").exists()


def test_compact_moves_what_is_beyond_the_limits(here: Path) -> None:
    """Limits are set with it, or were before; what was moved is still shown."""
    done = run(here, "compact", "shop.db", "--app", "shop", "--events", "2", "--json")
    assert json.loads(done.stdout)["events"] == 4
    assert [e["seq"] for e in answer(here, "log")["events"]] == [6, 5, 4, 3, 2, 1]
    assert "0 events of 0 sessions moved." in run(here, "compact", "shop.db").stdout
    assert run(here, "compact", "shop.db", "--events", "2").returncode == 2
