"""limpet work and limpet trace, as a person or a job runs them."""

from __future__ import annotations

import json
import re
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


LOUD = """
print("imported")


async def support(turn):
    print("\\x1b[32mturn\\x1b[0m")
    await turn.say("done")
"""
ASKING = """
async def support(turn):
    await turn.approve("refund", {"eur": 5})
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


def test_a_setup_that_cannot_be_called_is_named(here: Path) -> None:
    """Before the store is opened: it is not a mistake of the command."""
    (here / "settings.py").write_text("SETTINGS = 5\n")
    work = ("work", "support.db", "--harness", "shop_agent:support", "--stop-when-idle")
    done = run(here, *work, "--setup", "settings:SETTINGS")
    assert done.returncode == 2
    assert "--setup 'settings:SETTINGS' is not a function. Name a function." in done.stderr


WAKE = ("wake", "support.db", "--harness", "shop_agent:support")


def test_a_session_is_created_sent_a_message_and_woken(here: Path) -> None:
    """One turn of that session alone; a second wake finds nothing to do."""
    made = ("create", "support.db", "--app", "support", "--user", "bob", "--state", '{"n": 1}')
    code, told = answer(here, *made, "--label", "plan=gold", "--id", "new")
    assert (code, told["session"]["id"], told["labels"]) == (0, "new", {"plan": "gold"})
    bob = ("--app", "support", "--user", "bob", "--id", "new")
    assert "did not run: nothing_pending" in run(here, *WAKE, *bob).stdout
    code, told = answer(here, "send", "support.db", "Where is it?", *bob, "--actor", "user:bob")
    sent = told["event"]
    assert (code, sent["type"], sent["actor"]) == (0, "user.message", "user:bob")
    code, told = answer(here, *WAKE, *bob)
    assert (code, told["ran"], told["reason"]) == (0, True, "end_turn")
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        s = lp.get("support", "bob", "new")
        assert s.values == {"n": 1}
        assert s.events[0].actor.startswith("cli:")
        assert [e.data["text"] for e in s.read(types=["agent.message"])] == ["Where is it?"]
        assert lp.get("support", "ada", "c0").head.pending == 1  # nobody else's turn


def test_the_first_session_makes_the_store(tmp_path: Path) -> None:
    """Of commands that write only create does; a directory that is missing is named."""
    made = ("--app", "support", "--user", "ada", "--id", "one")
    assert run(tmp_path, "send", "new.db", "hi", *made).returncode == 4
    assert not (tmp_path / "new.db").exists()
    assert run(tmp_path, "create", "new.db", *made).stdout == "ok: created support/ada/one\n"
    assert run(tmp_path, "send", "new.db", "hi", *made).returncode == 0
    done = run(tmp_path, "create", "nowhere/new.db", *made)
    assert (done.returncode, "nowhere" in done.stderr) == (4, True)


def test_a_wake_prints_what_the_agent_said(here: Path) -> None:
    """The text for people, line by line; the whole message as JSON."""
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        s = lp.session("support", "ada", "c1")
        s.append("user.message", {"text": "two\nlines"}, actor="user:ada")
    one = (*NAMED[:-1], "c1")
    lines = run(here, *WAKE, *one).stdout.splitlines()
    assert lines == ["hi", "two", "lines", "support/ada/c1 ran: end_turn"]
    _, told = answer(here, *WAKE, *NAMED)
    assert [data["text"] for data in told["said"]] == ["hi"]


def test_what_a_harness_prints_goes_to_stderr_as_it_is(here: Path) -> None:
    """So that the answer stays the only output, and JSON stays JSON."""
    (here / "loud_agent.py").write_text(LOUD)
    wake = ("wake", "support.db", "--harness", "loud_agent:support")
    done = run(here, *wake, *NAMED, "--json")
    assert json.loads(done.stdout)["ok"]
    assert done.stderr == "imported\n\x1b[32mturn\x1b[0m\n"


def test_one_session_tells_its_status_and_why_its_last_turn_ended(here: Path) -> None:
    """What it waits for, too; all three options name it."""
    (here / "asking_agent.py").write_text(ASKING)
    _, told = answer(here, "status", "support.db", *NAMED)
    assert (told["status"], told["stop_reason"], told["state"]) == ("idle", None, "due")
    assert run(here, "wake", "support.db", "--harness", "asking_agent:support", *NAMED).stdout
    _, told = answer(here, "status", "support.db", *NAMED)
    assert (told["stop_reason"], told["state"]) == ("requires_action", "blocked")
    first, *rest = run(here, "status", "support.db", *NAMED).stdout.splitlines()
    assert first == "support/ada/c0: idle, stopped: requires_action."
    assert "waits for" in rest[1]
    assert run(here, "status", "support.db", "--id", "c0").returncode == 2
    assert run(here, "status", "support.db", *NAMED[:-1], "none").returncode == 3


def test_a_turn_that_is_tried_again_says_why(here: Path) -> None:
    """In the status of the store and of the session, until it ends well or is a dead letter."""
    (here / "raising_agent.py").write_text(RAISING)
    run(here, "wake", "support.db", "--harness", "raising_agent:support", *NAMED)
    _, told = answer(here, "status", "support.db", *NAMED)
    assert (told["status"], told["stop_reason"]) == ("rescheduling", "rescheduling")
    assert told["state"] in ("held", "due")  # by now
    assert told["needs"] == ["RuntimeError: the model is down"]
    assert "the model is down" in run(here, "status", "support.db", *NAMED).stdout
    (row,) = [r for r in run(here, "status", "support.db").stdout.splitlines() if "/c0" in r]
    assert row.endswith("RuntimeError: the model is down")
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        s = lp.get("support", "ada", "c0")
        (woken,) = s.runs.activations()
        assert (woken.result, woken.error) == ("error", "RuntimeError: the model is down")
        assert s.runs.failure.message == woken.error


def test_what_cannot_be_created_sent_or_woken_is_named(here: Path) -> None:
    """A taken id, a state that is not an object, a session that is not there, a turn that fails."""
    made = ("create", "support.db", *NAMED)
    assert "Pass another id" in run(here, *made).stderr
    assert "--state takes a JSON object" in run(here, *made, "--state", "5").stderr
    nobody = (*NAMED[:-1], "nobody")
    for command in (("send", "support.db", "hi"), WAKE):
        done = run(here, *command, *nobody)
        assert (done.returncode, "limpet list STORE shows the sessions" in done.stderr) == (3, True)
    (here / "failing_agent.py").write_text(FAILING)
    wake = ("wake", "support.db", "--harness", "failing_agent:support", *NAMED)
    done = run(here, *wake)
    assert (done.returncode, "no compensation named 'take_back'" in done.stderr) == (1, True)
    code, told = answer(here, *wake, "--setup", "failing_agent:declare")
    assert (code, told["reason"], told["error"]) == (0, "end_turn", None)


@pytest.mark.parametrize(
    "command", [WAKE, ("requeue", "support.db"), ("confirm", "support.db", "--allow")]
)
def test_a_name_that_no_session_can_have_is_refused(here: Path, command: tuple[str, ...]) -> None:
    """In the form of every other error, with the exit code of a wrong request."""
    code, told = answer(here, *command, "--app", "support", "--user", "ada", "--id", "")
    assert (code, told["error"]["code"]) == (2, "key.invalid")


def test_json_that_is_too_deep_is_refused(here: Path) -> None:
    """As JSON that cannot be read is."""
    code, told = answer(here, "create", "support.db", *NAMED[:4], "--state", '{"a":' + "[" * 9_999)
    assert (code, told["error"]["code"]) == (2, "input.invalid")


RAISING = """
async def support(turn):
    raise RuntimeError("the model is down")
"""
FAILING = """
import asyncio

asyncio.run(asyncio.sleep(0))  # a module may run a loop of its own


async def support(turn):
    await look_up(turn)


async def look_up(turn):
    await turn.effect("refund", lambda order: order, order=7, compensate="take_back")


async def take_back(session, effect): ...


async def declare(lp):
    lp.policies.lifecycle("support", compensations={"take_back": take_back})
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


PARENT = """
async def support(turn):
    if turn.session.app == "research":
        raise ValueError("nothing found")
    await (await turn.delegate("research", "look")).result()
"""


def test_a_parent_shows_the_child_that_it_waits_for(here: Path) -> None:
    """A child that is a dead letter keeps it waiting: both are shown."""
    (here / "parent_agent.py").write_text(PARENT)
    work = ("work", "support.db", "--harness", "parent_agent:support", "--stop-when-idle")
    run(here, *work, "--retries", "0")
    code, told = answer(here, "status", "support.db")
    assert (code, told["blocked"], told["dead"]) == (0, 3, 3)
    first = told["shown"][0]
    (need,) = first["needs"]
    assert (first["state"], need.startswith("waits for child research/ada/")) == ("blocked", True)


ASKING = """
async def support(turn):
    if turn.session.id == "c1":
        raise ValueError("no such order")
    if turn.session.id == "c0" and not await turn.approve("wire", {"eur": 900}):
        return
    await turn.say(str(await turn.ask("rating", {"of": 5})))
"""


def test_what_needs_a_person_is_shown_and_answered(here: Path) -> None:
    """Status names requests and dead letters; confirm, answer and requeue let a worker go on."""
    (here / "asking_agent.py").write_text(ASKING)
    work = ("work", "support.db", "--harness", "asking_agent:support", "--stop-when-idle")
    run(here, *work, "--retries", "0")
    counts, _, *lines = run(here, "status", "support.db").stdout.splitlines()
    assert counts == "3 sessions: 3 with pending input, 0 due, 0 leased, 2 blocked, 1 dead."
    assert [line.split()[:2] for line in lines] == [
        ["blocked", "support/ada/c0"],
        ["blocked", "support/ada/c2"],
        ["dead", "support/ada/c1"],
    ]
    assert 'waits for approval wire {"eur":900} (' in lines[0]
    assert lines[2].endswith("ValueError: no such order")
    named = {id: ("--app", "support", "--user", "ada", "--id", id) for id in ("c0", "c1", "c2")}
    assert "choose --allow or --deny" in run(here, "confirm", "support.db", *named["c0"]).stderr
    code, told = answer(here, "confirm", "support.db", "--allow", "--deny", *named["c0"])
    assert (code, "--allow or --deny is given 2 times" in told["error"]["message"]) == (2, True)
    code, told = answer(here, "confirm", "support.db", "--allow", "--note", "ok", *named["c0"])
    assert (code, told["event"]["data"]["allow"]) == (0, True)
    assert "waits for no answer" in run(here, "answer", "support.db", "5", *named["c0"]).stderr
    assert "lone surrogate" in run(here, "answer", "support.db", "\udcff", *named["c2"]).stderr
    code, told = answer(here, "answer", "support.db", "4", "--note", "by phone", *named["c2"])
    assert told["event"]["data"]["output"] == 4
    assert told["event"]["data"]["note"] == "by phone"
    assert "is not a dead letter" in run(here, "requeue", "support.db", *named["c2"]).stderr
    assert run(here, "requeue", "support.db", *named["c1"]).returncode == 0
    assert run(here, "status", "support.db").stdout.startswith(
        "3 sessions: 3 with pending input, 3 due, 0 leased."
    )
    run(here, *work)
    code, told = answer(here, "status", "support.db")
    assert (told["blocked"], told["dead"], told["held"]) == (1, 0, 1)  # c1 is tried again later
    assert [line["state"] for line in told["shown"]] == ["blocked", "held"]


PAYING = """
async def pay(eur):
    with open("paid.txt", "a") as file:
        file.write("paid ")
    raise TimeoutError


async def support(turn):
    await turn.say(str(await turn.effect("pay", pay, eur=900)))
"""


def test_an_effect_that_may_have_happened_is_resolved_and_never_confirmed(here: Path) -> None:
    """Its idempotency key is shown whole; resolve says what it will do, and asks."""
    (here / "paying_agent.py").write_text(PAYING)
    run(here, "work", "support.db", "--harness", "paying_agent:support", "--stop-when-idle")
    one, other, third = [
        ("--app", "support", "--user", "ada", "--id", id) for id in ("c0", "c1", "c2")
    ]
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        (request,) = lp.get("support", "ada", "c0").blocked_on
    key = request.input["idempotency_key"]
    shown = run(here, "status", "support.db", *one).stdout
    assert f'waits for unknown_effect pay {{"eur":900}}, idempotency key {key}, since ' in shown
    assert f", by {request.input['worker']} ({request.id})" in shown
    code, told = answer(here, "confirm", "support.db", "--allow", *one)
    assert (code, told["error"]["code"]) == (2, "request.mismatch")
    assert (
        "Use limpet resolve --happened JSON | --run-again | --give-up" in told["error"]["message"]
    )
    assert "limpet resolve" in run(here, "answer", "support.db", "5", *one).stderr
    assert "choose one of --happened" in run(here, "resolve", "support.db", *one).stderr
    both = run(here, "resolve", "support.db", "--run-again", "--give-up", "--yes", *one)
    assert "choose one of --happened" in both.stderr
    asked = run(here, "resolve", "support.db", "--run-again", *one)
    assert asked.returncode == 2
    assert f"Pass --yes to perform the effect 'pay' (idempotency key {key}) again" in asked.stderr
    done = run(here, "resolve", "support.db", "--happened", '"receipt 7"', "--yes", *one)
    assert f"record the result of the effect 'pay' (idempotency key {key})" in done.stdout
    assert run(here, "resolve", "support.db", "--run-again", "-y", *other).returncode == 0
    code, told = answer(here, "resolve", "support.db", "--give-up", "--note", "no", "-y", *third)
    assert (code, told["event"]["data"]["decision"]) == (0, "give_up")
    run(here, "work", "support.db", "--harness", "paying_agent:support", "--stop-when-idle")
    assert (here / "paid.txt").read_text() == "paid " * 4
    with limpet.open_sync(f"sqlite:///{here}/support.db") as lp:
        stops = {id: lp.get("support", "ada", id).stop_reason for id in ("c0", "c1", "c2")}
    assert stops == {"c0": "end_turn", "c1": "requires_action", "c2": "end_turn"}


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
    (woken,) = [line for line in done.stdout.splitlines() if "woken by" in line]
    assert re.fullmatch(
        r"  woken by input \(input 2\), claimed \S+Z by worker-\S+, fence 1, attempt 1, "
        r"began after \S+ ms",
        woken,
    )
    assert told["activation"]["why"] == "input"
    listed = run(here, "trace", "support.db", *NAMED, "--list")
    header, line = listed.stdout.splitlines()
    assert header.split() == ["wake", "result", "why"]
    assert line.startswith(f"{told['wake_id']}  success  woken by input")
    assert run(here, "trace", "support.db", *NAMED, "--wake", "x").returncode == 2


def test_dead_letters_are_requeued_together(here: Path) -> None:
    """By app or all of them, and by the reason; one session is named apart."""
    (here / "raising_agent.py").write_text(RAISING)
    work = ("work", "support.db", "--harness", "raising_agent:support", "--stop-when-idle")
    requeue = ("requeue", "support.db")

    def dead() -> int:
        return int(answer(here, "status", "support.db")[1]["dead"])

    run(here, *work, "--retries", "0")
    assert dead() == 3
    assert answer(here, *requeue, "--app", "other") == (0, {"ok": True, "requeued": 0})
    assert answer(here, *requeue, "--all", "--reason", "died") == (0, {"ok": True, "requeued": 0})
    assert dead() == 3
    assert answer(here, *requeue, "--app", "support", "--reason", "raised") == (
        0,
        {"ok": True, "requeued": 3},
    )
    assert dead() == 0
    run(here, *work, "--retries", "0")
    assert run(here, *requeue, "--all").stdout == "3 requeued.\n"
    for odd in ((), ("--all", "--app", "support"), ("--all", *NAMED)):
        code, told = answer(here, *requeue, *odd)
        assert (code, told["error"]["code"]) == (2, "input.invalid")
        assert "choose --app NAME or --all" in told["error"]["message"]
    code, told = answer(here, *requeue, *NAMED, "--reason", "died")
    assert (code, "--reason chooses among" in told["error"]["message"]) == (2, True)
    assert run(here, *requeue, "--all", "--reason", "tired").returncode == 2
