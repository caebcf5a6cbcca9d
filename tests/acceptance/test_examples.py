"""The demo, the README and the pages of docs/, run as a reader would run them."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest
from google.protobuf import descriptor_pool, message_factory

import limpet
from limpet import envelope
from limpet.model.envelope import protobuf

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_BLOCK = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced piece of a page."""

    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(found[1], found[2] or "", found[3], text.count("\n", 0, found.start(3)) + 1)
        for found in _BLOCK.finditer(text)
    ]


def titled(page: str, title: str) -> str:
    (block,) = [block for block in blocks(page) if block.title == title]
    return block.text


def python(
    *args: str, cwd: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run an unbuffered Python in `cwd`; warnings are errors there too."""
    return subprocess.run(
        [sys.executable, "-u", "-W", "error", *args],
        cwd=cwd,
        input=stdin,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# --- the demo -----------------------------------------------------------------------------------


def test_the_demo_keeps_its_word_and_leaves_its_stores_to_look_at(tmp_path: Path) -> None:
    """Without a terminal it ends well and has checked its claims; a second run begins again."""
    (tmp_path / "limpet-demo").mkdir()
    (tmp_path / "limpet-demo" / "office.db").write_text("left by an earlier run")
    (tmp_path / "limpet-demo" / "mine.txt").write_text("not the demo's")
    ran = python(str(EXAMPLES / "demo.py"), cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"^\d+ claims, all checked, in \d+ seconds\.$", ran.stdout, re.MULTILINE)
    assert "NOT TRUE" not in ran.stdout
    assert max(len(line.rstrip()) for line in ran.stdout.splitlines()) <= 80
    left = {path.name for path in (tmp_path / "limpet-demo").iterdir()}
    assert {"bank.txt", "laptop.db", "mine.txt", "office.db"} <= left
    assert not [name for name in left if name.startswith("forged")]
    command = re.search(r"^  limpet (studio \S+)", ran.stdout, re.MULTILINE)
    assert command is not None
    assert studied(command[1].split(), tmp_path) == {"shop/ada/refund", "support/ada/refund"}


def studied(arguments: list[str], cwd: Path) -> set[str]:
    """The sessions that the studio lists, for someone who follows the demo's last words."""
    command = [sys.executable, "-m", "limpet.cli", *arguments, "--no-browser"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as studio:
        try:
            assert studio.stdout is not None
            link = re.search(r"http://\S+", studio.stdout.readline())
            assert link is not None
            url, _, token = link[0].partition("/studio#token=")
            key = fetched(f"{url}/studio/sign_in", json.dumps({"token": token}).encode())["key"]
            sessions = fetched(f"{url}/limpet/v1/sessions", authorization=f"Bearer {key}")["data"]
        finally:
            studio.terminate()
    keys = [each["session"] for each in sessions]
    return {"/".join((key["app"], key["user"], key["id"])) for key in keys}


def fetched(url: str, body: bytes | None = None, **headers: str) -> dict[str, Any]:
    with urlopen(Request(url, body, headers), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_the_demo_runs_on_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    """Characters that cannot be shown are replaced, and the tour goes on."""
    ran = python(*falsified("pass"), cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()


@pytest.mark.parametrize(
    ("falsification", "claim"),
    [
        pytest.param(
            "demo.ids = lambda log: [event.id for event in log][:-9]",
            "after a kill every acknowledged event is there",
            id="events are lost",
        ),
        pytest.param(
            "demo.ids = lambda log: [log[-1].id] + [event.id for event in log]",
            "none is there twice",
            id="an event is doubled",
        ),
        pytest.param(
            "limpet.Report.ok = True", "a copy in which one word was changed", id="blind verify"
        ),
    ],
)
def test_a_false_claim_ends_the_demo_with_exit_code_1(
    tmp_path: Path, falsification: str, claim: str
) -> None:
    """What the demo says is checked: made untrue, it says so and fails."""
    ran = python(*falsified(falsification), cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert f"NOT TRUE: {claim}" in ran.stdout
    assert "all checked" not in ran.stdout


def falsified(change: str) -> tuple[str, str]:
    """A short demo in which something was changed first."""
    lines = ["import sys", f"sys.path.insert(0, {str(EXAMPLES)!r})", "import demo, limpet"]
    lines += ["demo.KILLS = 1", change]
    return "-c", "\n".join([*lines, "sys.exit(demo.main())"])


# --- the README ---------------------------------------------------------------------------------


def test_the_readme_crashes_and_resumes(tmp_path: Path) -> None:
    """Its first example dies once, goes on where it was, and prints what the page says."""
    program = titled("README.md", "crash.py")
    assert program == (EXAMPLES / "crash.py").read_text()
    first = python("-c", program, cwd=tmp_path)
    second = python("-c", program, cwd=tmp_path)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0)
    (shown,) = [block.text for block in blocks("README.md") if block.language == "text"]
    assert first.stdout + second.stdout == shown
    third = python("-c", program, cwd=tmp_path)
    assert third.stdout.count("did:") == 0


def test_the_landing_page_of_the_site_crashes_and_resumes(tmp_path: Path) -> None:
    """Its program prints what stands beside it, between the commands of the shell."""
    page = "docs/site/index.md"
    program = titled(page, "crash.py")
    printed = [python("-c", program, cwd=tmp_path).stdout for _ in range(2)]
    (shown,) = [block.text for block in blocks(page) if block.language == "text"]
    between = [line for line in shown.splitlines() if not line.startswith(("$ ", "Killed"))]
    assert "".join(printed).splitlines() == between


@pytest.mark.parametrize("name", ["agent.py", "counter.py", "writer.py"])
def test_an_example_that_needs_arguments_says_which(name: str, tmp_path: Path) -> None:
    """In place of a traceback."""
    ran = python(str(EXAMPLES / name), cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.search(rf"\n    python (examples/)?{name} \S", ran.stderr)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/agent.md", "docs/api.md"])
def test_a_program_of_the_first_pages_runs(page: str, tmp_path: Path) -> None:
    """Every other Python block is a program that ends well."""
    programs = [b for b in blocks(page) if b.language == "python" and not b.title]
    assert programs
    for program in programs:
        ran = python("-c", program.text, cwd=tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "")


# --- the pages ----------------------------------------------------------------------------------


_KEYS = pytest.mark.skipif(find_spec("cryptography") is None, reason="needs limpet[security]")
_POLICIES = pytest.mark.skipif(find_spec("cedarpy") is None, reason="needs limpet[security]")
_TOKENS = pytest.mark.skipif(find_spec("joserfc") is None, reason="needs limpet[security]")


@pytest.mark.parametrize(
    ("page", "left"),
    [
        ("docs/tutorial.md", "tutorial-backup.db"),
        ("docs/envelopes.md", None),
        ("docs/diff.md", None),
        ("docs/state.md", None),
        ("docs/evolution.md", "trip-3.0.0.json"),
        ("docs/workers.md", "workers.db"),
        ("docs/runtime.md", "agents.db"),
        ("docs/agents.md", "desk.db"),
        ("docs/documents.md", None),
        ("docs/blobs.md", "blobs.db"),
        ("docs/history.md", "shop.db"),
        ("docs/move.md", "ada.limpet"),
        ("docs/forgetting.md", "forgetting.db"),
        ("docs/life.md", None),
        ("docs/analytics.md", "failing.json"),
        pytest.param("docs/tokens.md", "tokens.pem", marks=_TOKENS),
        ("docs/access.md", None),
        ("docs/between.md", None),
        ("docs/isolation.md", None),
        pytest.param("docs/security.md", "sealed.db", marks=_KEYS),
        ("docs/audit.md", "audit.jsonl"),
        pytest.param("docs/policies.md", "rules.cedar", marks=_POLICIES),
        ("docs/files.md", "support/limpet.json"),
        ("docs/cluster.md", None),
    ],
    ids=[
        "tutorial",
        "envelopes",
        "diff",
        "state",
        "evolution",
        "workers",
        "runtime",
        "agents",
        "documents",
        "blobs",
        "history",
        "move",
        "forgetting",
        "life",
        "analytics",
        "tokens",
        "access",
        "between",
        "isolation",
        "security",
        "audit",
        "policies",
        "files",
        "cluster",
    ],
)
def test_a_page_prints_what_it_shows(
    page: str,
    left: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its pieces run one after the other, and each prints the text below it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    shown: list[tuple[int, str]] = []
    printed: list[tuple[int, str]] = []
    for block in blocks(page):
        if block.language == "python" and not block.title:
            # Padded, so that a traceback names the line of the page; without what this file has
            # imported from __future__, as a reader runs it.
            padded = "\n" * (block.line - 1) + block.text
            exec(compile(padded, page, "exec", dont_inherit=True), names)
            if out := capsys.readouterr().out:
                printed.append((block.line, out))
        elif block.language == "text":
            shown.append((printed[-1][0], block.text))
    assert printed == shown
    assert left is None or (tmp_path / left).is_file()


@pytest.mark.parametrize(
    ("page", "begins"),
    [
        ("docs/ARCHITECTURE.md", "await session.append("),
        ("docs/ARCHITECTURE.md", "for lease in await"),
        ("docs/agent.md", "worker = limpet.Worker("),
        ("docs/logging.md", "import logging"),
        ("docs/postgres.md", "from urllib.parse"),
        ("docs/serving.md", "import limpet\n\ntls ="),
    ],
)
async def test_a_fragment_runs(
    page: str, begins: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands without a program around it, with the names that the text around it has."""
    for logger in ("limpet", "limpet.store.sqlite"):
        caplog.set_level(logging.INFO, logger)  # put back afterwards
    for name in ("POOLED_URL", "DIRECT_URL"):
        monkeypatch.setenv(name, "postgresql://app@db/agents")
    (fragment,) = [block for block in blocks(page) if block.text.startswith(begins)]
    code = compile(fragment.text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with limpet.open("memory://") as lp:
        session = await lp.create("support", "ada", actor="user:ada", state={"step": 0})
        await session.append("user.message", {"text": "hi"}, inc={"app:visits": 1})
        names = {"limpet": limpet, "lp": lp, "session": session, "harness": print, "os": os}
        running = eval(code, names)
        if inspect.iscoroutine(running):
            await running


def test_the_chat_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A second process continues the conversation of the first."""
    chat = titled("docs/tutorial.md", "chat.py")
    first = python("-c", chat, cwd=tmp_path, stdin="hello\n\n")
    assert first.stdout == "> That was message 1: hello\n> "
    second = python("-c", chat, cwd=tmp_path, stdin="still there?\n\n")
    assert second.stdout == "> That was message 3: still there?\n> "


@pytest.mark.parametrize("moment", ["def model(messages):\n", "            await s.mark_processed"])
def test_the_chat_answers_first_what_a_dead_process_left_open(tmp_path: Path, moment: str) -> None:
    """Killed while the model thinks, or just after the answer, it answers once, on restart."""
    chat = titled("docs/tutorial.md", "chat.py")
    indent = "    " if moment.endswith("\n") else "            "
    death = f"{indent}__import__('os').kill(__import__('os').getpid(), 9)\n"
    deadly = chat.replace(moment, moment + death if moment.endswith("\n") else death + moment)
    assert python("-c", deadly, cwd=tmp_path, stdin="hello\n\n").returncode == -signal.SIGKILL
    again = python("-c", chat, cwd=tmp_path, stdin="\n")
    assert again.returncode == 0
    last = python("-c", chat, cwd=tmp_path, stdin="and now?\n\n")
    assert last.stdout == "> That was message 3: and now?\n> "


def test_the_row_of_values_is_read_as_the_page_says() -> None:
    """The lines that other languages are to follow give the fields of a message."""
    names: dict[str, Any] = {}
    exec(titled("docs/envelopes.md", "take.py"), names)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(protobuf.described())
    message = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("limpet.envelope.Envelope")
    )
    fields = {"a": [1, [], {"b": None}, -0.5], "c": {"": {"d": "é"}}, "e": True}
    raw = envelope.encode(
        fields, schema_version=None, state_version=0, serialized_at_us=0, format="protobuf"
    )
    assert names["fields_of"](message.FromString(raw)) == fields
