"""What a person sees of conversations at the command line: inbox, transcript, tail, interrupt."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.cli.conversation import Tail, entry_of
from limpet.cli.output import Output
from tests.support.command import run, run_terminal

STORE = "support.db"
KEY = "support/ada/c1"


@limpet.tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"grey in {city}"


def model(request: limpet.ModelRequest) -> limpet.Reply:
    if request.messages[-1]["role"] == "user":
        return limpet.Reply("I look.", (limpet.ToolCall("1", "weather", {"city": "Kyiv"}),))
    return limpet.Reply("It is grey. " + "A long sentence follows here. " * 6)


async def harness(turn: limpet.Turn) -> None:
    if turn.inputs[0].data["text"] == "pay":
        await turn.approve("refund", {"order": 7}, timedelta(hours=1))
        await turn.say("Paid.")
    elif turn.inputs[0].data["text"] == "fail":
        raise RuntimeError("no bank")
    else:
        await limpet.Agent(model, [weather]).run(turn)


async def session(here: Path, id: str, *texts: str) -> None:
    async with limpet.open(f"sqlite:///{here}/{STORE}") as lp:
        s = await lp.get_or_create("support", "ada", id)
        for text in texts:
            await s.append("user.message", {"text": text}, actor="user:ada")
            await lp.wake(s.key, harness, retries=0)


def done(here: Path, *args: str) -> Any:
    result = run(here, *args, "--json")
    assert result.returncode == 0, result
    return json.loads(result.stdout)


def test_the_inbox_shows_who_waits_and_the_command_that_answers(tmp_path: Path) -> None:
    """The command can be run as it is shown, and then nobody waits."""
    asyncio.run(session(tmp_path, "c1", "pay"))
    shown = run(tmp_path, "inbox", STORE).stdout
    assert "approval  refund" in shown
    assert "deadline" in shown
    (waiting,) = done(tmp_path, "inbox", STORE)["waiting"]
    assert waiting["request"]["input"] == {"order": 7}
    assert waiting["command"] in shown
    assert waiting["choices"] == ["--allow", "--deny"]
    _, screen = run_terminal(tmp_path, "inbox", STORE)
    assert f"\n    {waiting['command']}\n" in screen.replace("\r", "")
    line = shlex.split(waiting["command"])
    assert line[:4] == ["limpet", "confirm", STORE, KEY]
    assert run(tmp_path, *line[1:]).returncode == 0
    assert run(tmp_path, "inbox", STORE).stdout == "nobody waits.\n"
    assert run(tmp_path, "inbox", STORE, "--kind", "nonsense").returncode == 2


def test_the_transcript_is_the_conversation_as_people_read_it(tmp_path: Path) -> None:
    """Who said what, calls and results, who decided, errors; within 80 columns."""
    asyncio.run(session(tmp_path, "c1", "How is it?", "pay"))
    assert run(tmp_path, "confirm", STORE, KEY, "--deny", "--note", "too much").returncode == 0
    asyncio.run(session(tmp_path, "c2", "fail"))
    shown = run(tmp_path, "transcript", STORE, KEY).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("user:ada  20")
    assert lines[1] == "  How is it?"
    assert [line for line in lines if "weather" in line] == [
        '  -> weather {"city":"Kyiv"}',
        '  <- weather "grey in Kyiv"',
    ]
    assert '  ?  refund approval {"order":7}' in lines
    assert [line for line in lines if line.endswith(" refund denied: too much")]
    entries = done(tmp_path, "transcript", STORE, KEY)["entries"]
    assert [e["kind"] for e in entries][:5] == ["message", "message", "call", "result", "message"]
    (last,) = done(tmp_path, "transcript", STORE, KEY, "--last", "1")["entries"]
    assert (last["kind"], last["name"], last["text"]) == ("answer", "refund", "denied: too much")
    assert last["actor"].startswith("cli:")
    failed = run(tmp_path, "transcript", STORE, "support/ada/c2").stdout
    assert "turn.failed" in failed
    assert "no bank" in failed


async def changed_code(here: Path) -> None:
    async def before(turn: limpet.Turn) -> None:
        await turn.effect("refund", lambda: 1)
        await turn.approve("close", {})

    async def after(turn: limpet.Turn) -> None:
        await turn.effect("pay_back", lambda: 1)

    async with limpet.open(f"sqlite:///{here}/{STORE}") as lp:
        s = await lp.get_or_create("support", "ada", "c1")
        await s.append("user.message", {"text": "pay"}, actor="user:ada")
        await lp.wake(s.key, before)
        await s.refresh()
        await s.confirm(s.blocked_on[0].id, allow=True)
        await lp.wake(s.key, after)


def test_a_mismatch_says_why_within_80_columns(tmp_path: Path) -> None:
    """In the inbox, the status and the transcript; a row of the log is one line and its data."""
    asyncio.run(changed_code(tmp_path))
    for args in (["inbox", STORE], ["status", STORE], ["transcript", STORE, KEY]):
        _, screen = run_terminal(tmp_path, *args)
        lines = [line for line in plain(screen) if not line.startswith("    limpet resolve")]
        assert max(map(len, lines)) <= 80
        assert "because the effect was recorded, and this run makes the effect" in " ".join(
            " ".join(lines).split()
        )
    _, screen = run_terminal(tmp_path, "log", STORE, KEY, "--type", "session.status_idle")
    header, *rows = plain(screen)
    assert [row[header.index("type") :] for row in rows[::2]] == ["session.status_idle"] * 2
    assert "worker:" in run(tmp_path, "log", STORE, KEY).stdout


def plain(screen: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", screen).splitlines()


AGENT = """
import limpet

def model(request):
    return limpet.Reply(tool_calls=(limpet.ToolCall("1", "pay", {}),))

@limpet.tool(permission="always_ask")
def pay() -> str:
    return "paid"

agent = limpet.Agent(model, [pay])
"""


def test_a_wake_that_waits_names_the_inbox(tmp_path: Path) -> None:
    """A message that only calls tools is no empty line."""
    (tmp_path / "payer.py").write_text(AGENT)
    assert run(tmp_path, "create", STORE, KEY).returncode == 0
    assert run(tmp_path, "send", STORE, KEY, "pay").returncode == 0
    woken = run(tmp_path, "wake", STORE, KEY, "--harness", "payer:agent")
    assert woken.stdout == f"{KEY} ran: requires_action; limpet inbox shows what it waits for\n"


def test_an_interrupt_clears_what_a_session_waits_for(tmp_path: Path) -> None:
    """With no worker alive; its note is in the transcript."""
    asyncio.run(session(tmp_path, "c1", "pay"))
    done_so = run(tmp_path, "interrupt", STORE, KEY, "--note", "call her")
    assert done_so.returncode == 0
    assert "a worker begins a turn with the note" in done_so.stdout
    assert done(tmp_path, "inbox", STORE)["waiting"] == []
    assert "interrupted: call her" in run(tmp_path, "transcript", STORE, KEY).stdout
    assert run(tmp_path, "interrupt", STORE, "support/ada/none").returncode == 3


def test_a_tail_begins_with_the_last_entries_and_ends_when_idle(tmp_path: Path) -> None:
    """As many as are asked for, in a pipe, on a terminal and in JSON lines."""
    asyncio.run(session(tmp_path, "c1", "one", "two"))
    shown = run(tmp_path, "tail", STORE, KEY, "--last", "1", "--stop-when-idle")
    assert shown.returncode == 0
    assert shown.stdout.startswith("agent:support  20")
    assert "  It is grey." in shown.stdout
    code, shown_too = run_terminal(tmp_path, "tail", STORE, KEY, "--last", "1", "--stop-when-idle")
    assert (code, "It is grey." in shown_too) == (0, True)
    lines = run(tmp_path, "tail", STORE, KEY, "--last", "3", "--stop-when-idle", "--json").stdout
    assert len([json.loads(line) for line in lines.splitlines()]) == 3


def piece(text: str, index: int, attempt: int = 1) -> limpet.Event:
    data = {"text": text, "index": index}
    return limpet.Event(0, "m", "agent.message", "agent:a", 0, data, partial=True, attempt=attempt)


def recorded(text: str, id: str = "m", type: str = "agent.message") -> limpet.Event:
    return limpet.Event(5, id, type, "agent:a", 10**15, {"text": text})


def tailed(*events: limpet.Event) -> list[str]:
    """The lines that a tail shows of these events."""
    out = io.StringIO()
    shown = Tail(Output(out), as_json=False)
    for event in events:
        shown.show(event)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("lost", [False, True])
def test_a_tail_shows_pieces_and_starts_over_on_a_new_attempt(lost: bool) -> None:
    """What was streamed is not shown twice; what a lost piece had comes with the record."""
    pieces = [piece("Hel", 0), piece("Hello\nwor", 0, attempt=2), piece("ld", 1, attempt=2)]
    lines = tailed(*pieces[: 2 if lost else 3], recorded("Hello\nworld"))
    assert lines == ["agent:a", "  Hel", "agent:a (starts over)", "  Hello", "  world"]


def test_a_tail_shows_what_was_lost_once_it_is_known() -> None:
    """Each word once: a gap is marked while the message comes, and filled when it is recorded."""
    pieces = [piece("two ", 1), piece("four ", 3), piece("five ", 4)]
    lines = tailed(*pieces, recorded("one two three four five six"))
    assert lines == [
        "agent:a",
        "  … two … four five six",
        "agent:a (was lost)",
        "  one ",
        "agent:a (was lost)",
        "  three ",
    ]


def test_a_tail_goes_on_after_what_came_between() -> None:
    """Another event ends the line; a piece after the record is an old one."""
    between = limpet.Event(4, "x", "user.message", "user:u", 10**15, {"text": "quick!"})
    lines = tailed(piece("one ", 0), between, piece("two", 1), recorded("one two"), piece("two", 1))
    assert lines[:2] == ["agent:a", "  one "]
    assert lines[3:] == ["  quick!", "agent:a (goes on)", "  two"]


def test_a_message_that_was_recorded_in_other_words_is_shown_as_it_was() -> None:
    lines = tailed(piece("on", 0), recorded("two"))
    assert lines == ["agent:a", "  on", "agent:a (as recorded)", "  two"]


def test_a_transcript_names_the_parts_that_are_not_words(tmp_path: Path) -> None:
    """Kind, type and size, in a line of their own; never the bytes, and no JSON that is cut."""
    image = {"type": "image", "uri": "limpet:x", "media_type": "image/png", "size": 12_345}
    inline = {"type": "base64", "media_type": "application/pdf", "data": "QUJD" * 900_000}
    content = [
        {"type": "text", "text": "Look at these."},
        image,
        {"type": "document", "source": inline, "title": "bill.pdf"},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/cat.png"}},
        {"type": "data", "data": {"order": 7}},
        {"type": "text", "text": "Which is it?"},
    ]

    async def said() -> None:
        async with limpet.open(f"sqlite:///{tmp_path}/{STORE}") as lp:
            s = await lp.create("support", "ada", "c1")
            await s.append("agent.message", {"content": content}, actor="agent:a")

    asyncio.run(said())
    for command in (("transcript",), ("tail", "--stop-when-idle")):
        lines = run(tmp_path, command[0], STORE, KEY, *command[1:]).stdout.splitlines()
        assert lines[1:] == [
            "  Look at these.",
            "  [image image/png 12 KB]",
            "  [document application/pdf 3 MB bill.pdf]",
            "  [image https://x.test/cat.png]",
            '  [data {"order":7}]',
            "  Which is it?",
        ]


async def test_a_tail_in_another_process_shows_pieces_and_ctrl_c_ends_it_with_0(
    tmp_path: Path,
) -> None:
    """Live: the text is there before the message is recorded."""
    go = asyncio.Event()

    async def pieces(request: limpet.ModelRequest) -> AsyncIterator[limpet.Piece]:
        while not go.is_set():  # again and again: what nobody hears yet is lost
            yield limpet.Piece(text="tick ")
            await asyncio.sleep(0.05)

    async def speak(turn: limpet.Turn) -> None:
        await turn.model("think", pieces)

    async with limpet.open(f"sqlite:///{tmp_path}/{STORE}") as lp:
        s = await lp.create("support", "ada", "c1", actor="user:ada")
        await s.append("user.message", {"text": "hi"})
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "limpet.cli", "tail", STORE, KEY),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        running = asyncio.ensure_future(lp.wake(s.key, speak))
        async with asyncio.timeout(60):
            seen = b""
            while b"tick tick" not in seen:
                seen += await process.stdout.read(64)
            go.set()
            assert (await running).reason == "end_turn"
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_what_cannot_be_read_has_an_entry() -> None:
    """A damaged or removed event does not end a transcript."""
    gone = limpet.Event(3, "x", "user.message", "user:ada", 0, None, removed=True)
    entry = entry_of(gone, {})
    assert entry is not None
    assert entry.text == "(removed)"
