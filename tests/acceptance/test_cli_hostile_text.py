"""Every command on a store whose every text tries to command the terminal: none succeeds."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

import limpet
from limpet.cli.app import app
from limpet.cli.output import one_line
from limpet.errors import AccessDenied
from tests.support.command import invoke

NAME = "n\x9b2J\x85\u202e\u2066\u200f\u2028\ufeff\U000e0041e"  # names refuse only C0 and DEL
TEXT = f"t\x1b]0;owned\x07\x1b[38;5;201m\r\x08\x7f{NAME}\nforged: line"
KEY = limpet.Key(NAME, NAME, NAME)
NAMED = ("--app", NAME, "--user", NAME, "--id", NAME)
BLOCKED = ("--app", NAME, "--user", NAME, "--id", "blocked")
DEAD = ("--app", NAME, "--user", NAME, "--id", "dead")
FORK = ("--app", NAME, "--user", NAME, "--id", "fork")
ENDED = ("--app", NAME, "--user", NAME, "--id", "ended")
UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
# What the command itself tells a terminal: colors, and how a line is written again.
OURS = re.compile(r"\x1b\[(?!38;5;201m)[0-9;]*m|\x1b\[\?25[lh]|\x1b\[K|\x1b\[2K|\x1b\[1A|\r")


MODULE = f"""
import limpet

TEXT = {TEXT!a}
registry = limpet.MigrationRegistry("planted")


@registry.migration("1.0.0", "2.0.0")
def fails(fields):
    raise ValueError(TEXT)


async def fail(turn):
    raise ValueError(TEXT)


async def talk(turn):
    await turn.say(TEXT)
"""


async def chat(turn: limpet.Turn) -> None:
    await turn.learn("lesson", TEXT)
    await turn.step(NAME, lambda: TEXT)
    await turn.effect(NAME, lambda note: TEXT, note=TEXT)
    await turn.delegate(NAME, TEXT, title=TEXT)
    turn.revisit(timedelta(days=1), NAME)
    await turn.say(TEXT)


async def ask(turn: limpet.Turn) -> None:
    if await turn.approve(NAME, {NAME: TEXT}):
        await turn.say(TEXT)


async def fail(turn: limpet.Turn) -> None:
    raise ValueError(TEXT)


class Old(limpet.State):
    schema_version = "1.0.0"
    plan: str = ""


async def plant(url: str) -> None:
    async with limpet.open(url) as lp:
        await lp.agents.put(NAME, {NAME: TEXT}, actor=NAME)
        await lp.environments.put(NAME, {NAME: TEXT}, actor=NAME)
        state = {NAME: TEXT, f"user:{NAME}": TEXT, f"app:{NAME}": TEXT}
        s = await lp.create(
            NAME,
            NAME,
            NAME,
            state=state,
            labels={NAME: NAME},
            actor=NAME,
            agent=NAME,
            environment=NAME,
        )
        s = lp.session(KEY, actor=NAME)
        await s.append("user.message", {"text": TEXT}, set={NAME: [TEXT]}, id=NAME)
        await s.append("agent.noted", {NAME: TEXT})
        await s.lifecycle.set_timer(NAME, timedelta(days=1))
        await s.outcome.define(TEXT, TEXT, [TEXT])
        await s.memory.session_state.write(TEXT)
        assert (await lp.wake(KEY, chat)).error is None
        await s.outcome.evaluate(lambda *_: limpet.Evaluation("pass", (True,), note=TEXT))
        await s.checkpoint(NAME)
        fork = await s.fork(id="fork", actor=NAME)
        await fork.append("agent.changed", set={"fork": TEXT}, actor=NAME)
        await s.merge(fork.key)
        await (await lp.create(NAME, NAME, "compared", actor=NAME)).suspend(TEXT, actor=NAME)
        for id, harness in (("blocked", ask), ("dead", fail)):
            other = await lp.create(NAME, NAME, id, actor=NAME)
            await other.append("user.message", {"text": TEXT}, actor=NAME)
            await lp.wake(other.key, harness, retries=0)
        waiting = await lp.create(NAME, NAME, "waiting", actor=NAME)
        await waiting.append("user.message", {"text": TEXT}, actor=NAME)
        await lp.work.lock(waiting.key, worker=NAME, lease_seconds=86_400)
        ended = await lp.create(NAME, NAME, "ended", actor=NAME)
        await ended.terminate(TEXT, actor=NAME)
        await lp.create(NAME, NAME, "fresh", actor=NAME)
        await lp.create(NAME, NAME, "typed", state=Old(plan=TEXT), actor=NAME)
        for id in ("typed", "fresh"):
            await lp.session(NAME, NAME, id).append("user.message", {"text": TEXT}, actor=NAME)
        await lp.create(NAME, NAME, "gone", actor=NAME)
        await lp.delete(NAME, NAME, "gone")
        await lp.promote(NAME, (await lp.learnings(NAME))[0], actor=NAME)
        await lp.propose(TEXT, provenance=KEY, confidence=1, to=f"org:{NAME}", actor=NAME)
        who = limpet.Principal(f"user:{NAME}", role="owner", app=NAME, user=NAME)
        with contextlib.suppress(AccessDenied):
            await lp.acting_as(who).get(NAME, f"{NAME}2", NAME)


PLAN = ("--writes", "1", "--reads", "1", "--state-bytes", "1", "--retention", "1d")

# Each command, in all the ways in which it shows what is stored.
CALLS: dict[str, list[tuple[str, ...]]] = {
    "access": [("--app", NAME, "--user", NAME, "--role", "owner"), ("--role", TEXT)],
    "agents": [(), (NAME,), (NAME, "--history")],
    "answer": [(TEXT, *BLOCKED), (TEXT, *NAMED)],
    "archive": [ENDED, NAMED],
    "audit": [(), ("--principal", TEXT), ("--session", TEXT), ("--since", TEXT)],
    "backup": [(f"{NAME}.copy",), (f"{NAME}/{NAME}",)],
    "bisect": [
        ("--command", "exit 1", *NAMED),
        ("--command", "printf '\\033[31m' >&2; exit 127", *NAMED),
    ],
    "blame": [(f"user:{NAME}", *NAMED), (NAME, *NAMED), (TEXT, *NAMED)],
    "checkpoint": [
        NAMED,
        ("--list", *NAMED),
        ("--restore", "1", *NAMED),
        ("--trigger", TEXT, *NAMED),
    ],
    "children": [NAMED],
    "compact": [(), ("--app", NAME, "--events", "1")],
    "complete": [NAMED, ENDED, FORK],
    "confirm": [
        ("--allow", *BLOCKED),
        (TEXT, "--allow", *BLOCKED),
        ("--deny", "--note", TEXT, *BLOCKED),
    ],
    "copy": [
        ("new.db",),
        ("new.db", "--app", NAME, "--family", NAME, "--check"),
        (f"{NAME}/none/{NAME}.db",),
    ],
    "create": [
        ("--app", NAME, "--user", NAME),
        NAMED,
        (*NAMED, "--state", TEXT),
        (*NAMED, "--label", TEXT),
    ],
    "decide": [(TEXT, "--accept", "--reason", TEXT), (TEXT,)],
    "diff": [("1", *NAMED), (TEXT, *NAMED)],
    "doctor": [(), ("--strict",)],
    "documents": [("agents",), ("environments", NAME), ("agents", NAME), (TEXT,)],
    "erase": [(*NAMED, "--yes"), (*NAMED, "--forks", TEXT), NAMED],
    "erase-user": [
        ("--app", NAME, "--user", NAME, "--yes"),
        ("--app", TEXT, "--user", NAME, "--yes"),
    ],
    "export": [(f"{NAME}.limpet", *NAMED), (f"{NAME}://x", *NAMED)],
    "fork": [NAMED, (*NAMED, "--at", TEXT), (*NAMED, "--new-id", "fork")],
    "graph": [NAMED, FORK, (*NAMED, "--mermaid")],
    "inbox": [(), ("--app", NAME), ("--kind", TEXT), ("--app", NAME, "--user", TEXT)],
    "interrupt": [BLOCKED, ("--note", TEXT, *BLOCKED), ("--note", "", *NAMED)],
    "import": [(f"{NAME}.none",)],
    "import-adk": [("x.db",)],
    "import-claude": [("y.db",)],
    "keys": [("status",), ("rotate",), ("renew", TEXT)],
    "receipt": [NAMED, (*NAMED, "--prove", "1")],
    "learnings": [(NAME,), (NAME, "--promote", TEXT)],
    "lineage": [NAMED, FORK],
    "list": [
        (),
        ("--state",),
        ("--deleted",),
        ("--status", TEXT),
        ("--status", "idle"),
        ("--sort", "status"),
        ("--label", TEXT),
        ("--app", NAME, "--cursor", TEXT),
    ],
    "log": [(*NAMED, "--limit", "100"), (*NAMED, "--type", TEXT)],
    "login": [()],
    "memory": [NAMED, ("session_state", *NAMED), (TEXT, *NAMED)],
    "acp": [("--app", NAME, "--user", TEXT, "--harness", "planted:talk")],  # likewise
    "mcp": [("--app", NAME, "--user", TEXT)],  # without its package here
    "merge": [("fork", *NAMED), (NAME, *BLOCKED), (NAME, *NAMED)],
    "migrate": [
        ("--migrations", "planted:registry", "--app", NAME, "--plan"),
        ("--migrations", "planted:registry", "--app", TEXT, "--plan"),
        ("--migrations", f"planted:{TEXT}", "--plan"),
    ],
    "move": [(f"{NAME}.moved.db", *NAMED), (f"{NAME}://x", *NAMED)],
    "drain": [("drained.db", "--app", NAME, "--deadline", "0.1")],
    "reclaim": [
        (*NAMED, "--target-is-lost", TEXT, "--epoch", "1", "--reason", TEXT),
        (*NAMED, "--target-is-lost", "b", "--epoch", "1", "--reason", "its disk is gone"),
    ],
    "push": [(TEXT,)],
    "pull": [(TEXT,)],
    "where": [(TEXT,), ("support/ada/none",)],
    "mirror": [("files",), ("files", *NAMED)],
    "outcomes": [NAMED, (*NAMED, "--history"), (*NAMED, "--define", TEXT)],
    "phases": [()],
    "plan": [(*PLAN, "--criticality", TEXT), (*PLAN, "--prices", NAME)],
    "metrics": [NAMED, DEAD],
    "report": [(), ("--app", NAME), ("--failing",), ("--prometheus",), ("--app", TEXT)],
    "proposals": [(), ("--status", TEXT), ("--memory", f"org:{NAME}"), ("--memory", TEXT)],
    "policy": [
        ("check", "rules.cedar"),
        ("check", f"{NAME}.cedar"),
        ("test", "rules.cedar", "cases.jsonl"),
    ],
    "requeue": [DEAD, NAMED],
    "restore": [("copied.db",)],
    "resolve": [
        (TEXT, "--run-again", "--yes", *BLOCKED),
        (TEXT, "--happened", TEXT, "--yes", *BLOCKED),
        ("--give-up", "--note", TEXT, *BLOCKED),
    ],
    "resume": [("--app", NAME, "--user", NAME, "--id", "compared"), NAMED],
    "rewind": [("1", *NAMED), ("#1", *NAMED), (TEXT, *NAMED)],
    "send": [(TEXT, *NAMED), (TEXT, *NAMED[:-1], TEXT)],
    "certs": [("pin",), ("dev", "--name", TEXT)],
    "studio": [("--port", TEXT)],
    "serve": [("--host", f"no.{TEXT}.invalid"), ("--tls-cert", TEXT), ("--client-ca", TEXT)],
    "setup": [NAMED, (*NAMED, "--compare", "compared")],
    "share": [
        NAMED,
        ("compared", *NAMED, "--field", TEXT),
        (TEXT, *NAMED, "--field", "plan", "--live", "--write"),
        (*NAMED, "--end", TEXT),
    ],
    "show": [("1", *NAMED), ("2", *NAMED), ("3", *NAMED)],
    "state": [NAMED, (*NAMED, "--at", "2")],
    "status": [(), ("--app", TEXT), ("--app", NAME)],
    "suspend": [(*NAMED, "--reason", TEXT), ENDED],
    "sweep": [()],
    "terminate": [(*NAMED, "--reason", TEXT), ENDED],
    "tail": [("--stop-when-idle", *NAMED), ("--stop-when-idle", *BLOCKED)],
    "trace": [NAMED, DEAD, (*NAMED, "--list"), (*NAMED, "--wake", TEXT)],
    "tokens": [("new-key",)],
    "transcript": [NAMED, BLOCKED, DEAD, (*NAMED, "--last", "1")],
    "unarchive": [NAMED, (*NAMED[:-1], f"{NAME}2")],
    "verify": [(), NAMED],
    "wake": [
        ("--harness", "planted:talk", *BLOCKED[:-1], "fresh"),
        ("--harness", "planted:fail", *BLOCKED[:-1], "typed"),
        ("--harness", f"planted:{TEXT}", *NAMED),
    ],
    "work": [("--harness", "planted:fail", "--app", NAME, "--stop-when-idle", "--retries", "0")],
}
SILENT = {"doctor", "verify", "compact", "sweep", "restore", "mirror", "import-adk", "work"}
# What these are asked for here is refused without the text.
SILENT |= {
    "acp",
    "decide",
    "import-claude",
    "certs",
    "login",
    "mcp",
    "serve",
    "studio",
    "resolve",
    "keys",
    "tokens",
    "receipt",
}
SHOW_WHOLE_TEXTS = {
    "memory",
    "learnings",
    "work",
    "wake",
    "transcript",
    "tail",
}  # as they are, line by line


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    made = tmp_path_factory.mktemp("planted")
    asyncio.run(plant(f"sqlite:///{made}/x.db"))
    (made / "planted.py").write_text(MODULE, encoding="ascii")
    shutil.copy(made / "x.db", made / "copied.db")
    policy = f'@id("{NAME}") permit(principal, action, resource);'
    (made / "rules.cedar").write_text(policy, encoding="utf-8")
    case = {"principal": NAME, "role": "admin", "action": "read", "resource": NAME}
    (made / "cases.jsonl").write_text(json.dumps({**case, "expect": "deny"}))
    return made


@pytest.fixture
def here(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the planted store, and a working directory of one's own."""
    there = tmp_path / "here"
    shutil.copytree(planted, there)
    monkeypatch.chdir(there)
    monkeypatch.syspath_prepend(str(there))
    return there


class Terminal(io.StringIO):
    """Both streams of a person at a terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def on_terminal(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    out, err = contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen)
    with out, err, contextlib.suppress(SystemExit):
        app(list(args), prog_name="limpet")
    return screen.getvalue()


def in_pipe(args: tuple[str, ...]) -> str:
    result = invoke(*args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_every_command_is_tried() -> None:
    """A new command is added to the calls above."""
    assert set(typer.main.get_command(app).commands) == set(CALLS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", sorted(CALLS))
def test_no_stored_text_commands_a_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch, command: str, form: str
) -> None:
    """Neither on a terminal nor in a pipe, in answers and in errors; JSON means the same text."""
    shown = ""
    store = here / "x.db"
    for number, rest in enumerate(CALLS[command]):
        for surface in ("pipe", "terminal"):
            shutil.copy(store, here / f"{number}-{surface}.db")
            args = (command, *arguments(command, f"{number}-{surface}.db", rest))
            args += ("--json",) if form == "json" else ()
            if surface == "pipe":
                out = in_pipe(args)
                found = UNSAFE.search(out)
            else:
                out = on_terminal(args, monkeypatch)
                found = UNSAFE.search(OURS.sub("", out))
            assert found is None, (args, out[max(0, found.start() - 80) : found.end() + 20])
            if form == "json":
                for document in documents_in(out):
                    shown += "".join(texts_in(document))
            else:
                shown += out
                if command not in SHOW_WHOLE_TEXTS:
                    assert not re.search(r"^\s*forged: line", out, re.MULTILINE), (args, out)
    wanted = NAME[:4] if form == "json" else one_line(NAME)[:10]
    assert wanted in shown or command in SILENT


def arguments(command: str, store: str, rest: tuple[str, ...]) -> tuple[str, ...]:
    if command == "access":
        return ("create", store, *rest)
    if command == "restore":
        return (*rest, f"{NAME}.{store}")
    if command in ("plan", "policy"):
        return rest
    if command in ("push", "where"):  # named by app/user/id alone
        to = ("pushed.db",) if command == "push" else ()
        return (f"{NAME}/{NAME}/{NAME}", *to, "--store", store)
    if command == "pull":
        return (store, f"{NAME}/{NAME}/{NAME}", "--store", "pulled.db")
    return (store, *rest)


def documents_in(out: str) -> list[Any]:
    """One document, or one in each line."""
    try:
        return [json.loads(out)]
    except ValueError:
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *[text for each in value.values() for text in texts_in(each)]]
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    return [value] if isinstance(value, str) else []
