"""limpet work and limpet trace, as a person or a job runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import limpet
from tests.support.command import answer, run, run_terminal

NAMED = ("--app", "support", "--user", "ada", "--id", "c0")
AGENT = """
import limpet


async def support(turn: limpet.Turn) -> None:
    for message in turn.inputs:
        await turn.effect("refund", lambda order: order, order=7)
        await turn.say(message.data["text"])
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with an agent, and a store of three sessions that wait for it."""
    (tmp_path / "shop_agent.py").write_text(AGENT)
    with limpet.open_sync(f"sqlite:///{tmp_path}/support.db") as lp:
        for number in range(3):
            s = lp.create("support", "ada", f"c{number}")
            s.append("user.message", {"text": "hi"}, actor="user:ada")
    return tmp_path


WORK = ("work", "support.db", "--harness", "shop_agent:support", "--stop-when-idle")


def test_work_runs_what_is_due_and_says_so(here: Path) -> None:
    """JSON lines in a pipe; the last one has the sums."""
    done = run(here, *WORK, "--app", "support")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["turns"], last["failed"], last["running"]) == (3, 0, 0)
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        assert all(not head.pending for head in lp.list().items)


def test_work_shows_rates_on_a_terminal(here: Path) -> None:
    """One line, rewritten in place."""
    code, shown = run_terminal(here, *WORK)
    assert code == 0
    assert "3 turns" in shown


@pytest.mark.parametrize("name", ["shop_agent", "shop_agent:nothing", "nowhere:support"])
def test_a_harness_that_cannot_be_loaded_is_named(here: Path, name: str) -> None:
    """Before anything is claimed."""
    done = run(here, "work", "support.db", "--harness", name)
    assert done.returncode == 2
    assert name.partition(":")[0] in done.stderr


FAILING = """
import asyncio

asyncio.run(asyncio.sleep(0))  # a module may run a loop of its own


async def support(turn):
    await look_up(turn)


async def look_up(turn):
    await turn.effect("refund", lambda order: order, order=7, compensate="take_back")


async def take_back(session, effect): ...


async def declare(lp):
    lp.lifecycle("support", compensations={"take_back": take_back})
"""


def test_work_says_why_a_turn_failed(here: Path) -> None:
    """On stderr, with the lines of the harness; `--setup` declares what it misses."""
    (here / "failing_agent.py").write_text(FAILING)
    work = ("work", "support.db", "--harness", "failing_agent:support", "--stop-when-idle")
    done = run(here, *work, "--max-turns", "1")
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == 1
    first, _, line, *_ = done.stderr.splitlines()
    assert first == "limpet: a turn of support/ada/c0 failed"
    assert "failing_agent.py" in line
    assert line.endswith("in support")
    assert "there is no compensation named 'take_back'" in done.stderr
    done = run(here, *work, "--max-turns", "2", "--setup", "failing_agent:declare")
    assert json.loads(done.stdout.splitlines()[-1])["turns"] == 2
    assert done.stderr == ""


def test_trace_prints_a_tree_with_times(here: Path) -> None:
    """The wake, its tools and its events; as JSON too."""
    assert run(here, "trace", "support.db", *NAMED).returncode == 2
    run(here, *WORK)
    done = run(here, "trace", "support.db", *NAMED)
    assert done.returncode == 0, done.stderr
    assert "tool refund" in done.stdout
    assert "ms" in done.stdout
    code, told = answer(here, "trace", "support.db", *NAMED)
    assert code == 0
    assert [span["kind"] for span in told["spans"]] == ["wake", "tool"]
    assert "woken by input (input 2), claimed" in " ".join(done.stdout.split())
    assert told["activation"]["why"] == "input"
    listed = run(here, "trace", "support.db", *NAMED, "--list")
    assert listed.stdout.startswith(f"{told['wake_id']}  success")
    assert run(here, "trace", "support.db", *NAMED, "--wake", "x").returncode == 2
