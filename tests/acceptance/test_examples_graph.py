"""The examples and pages of graphs, run as a reader would run them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_examples import blocks, titled

ROOT = Path(__file__).parents[2]


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in `cwd`; warnings are errors there too."""
    return subprocess.run(
        [sys.executable, "-u", "-W", "error", *args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(cwd), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_both_ways_of_keeping_a_conversation_say_the_same(tmp_path: Path) -> None:
    """Sessions as checkpoints, and sessions: the same answers, and a log for the latter."""
    done = run(str(ROOT / "examples/session_as_checkpoint.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    answers = [
        "Hello Ada, that was message 1.",
        "Hello Ada, that was message 2.",
        "Hello Ada, that was message 3.",
        "Hello stranger, that was message 1.",
    ]
    assert lines[1:5] == answers
    assert lines[6:10] == answers
    assert lines[10] == "the log of ada: ['session.created', 'graph.saved', 'graph.saved']"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("page", ["graph-tutorial", "graph-sessions", "graph"])
def test_a_page_prints_what_it_shows(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its pieces run one after the other, and each prints the text below it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    shown: list[str] = []
    printed: list[str] = []
    for block in blocks(f"docs/{page}.md"):
        if block.language == "python" and not block.title:
            padded = "\n" * (block.line - 1) + block.text  # a traceback names the page's line
            exec(compile(padded, page, "exec", dont_inherit=True), names)
            if out := capsys.readouterr().out:
                printed.append(out)
        elif block.language == "text":
            shown.append(block.text)
    assert printed == shown


def test_the_graph_of_the_first_page_runs_and_is_drawn_as_shown(tmp_path: Path) -> None:
    """Twice in one folder: the second process remembers the turn of the first."""
    program = titled("docs/api.md", "graph.py")
    (shown,) = [block.text for block in blocks("docs/api.md") if block.language == "mermaid"]
    for turn in (1, 2):
        done = run("-c", program, cwd=tmp_path)
        said, drawn = done.stdout.split("\n", 1)
        assert (done.stderr, drawn.rstrip()) == ("", shown.rstrip())
        assert said.count("hello") == turn


def test_the_graph_of_a_killed_worker_pays_once(tmp_path: Path) -> None:
    """The first worker dies while it pays: the second asks, and repeats no node before."""
    done = run(str(ROOT / "examples/graph_worker.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "did: reserve",
        "approval pay/charge: 5 euros",
        "killed: True, payments: 1",
        "unknown_effect pay/charge",
        "said: 5 euros: reserve, receipt 7",
        "payments: 1",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_the_tutorial_dies_and_goes_on(tmp_path: Path) -> None:
    """Killed before it ships, it ships in the next process, and does nothing twice."""
    program = titled("docs/graph-tutorial.md", "order.py")
    first = run("-c", program, "die", cwd=tmp_path)
    second = run("-c", program, cwd=tmp_path)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0)
    assert first.stdout == "did: reserve\ndid: charge\n"
    assert (second.stdout, second.stderr) == (
        "did: ship\nall: ['reserve', 'charge', 'ship']\n",
        "",
    )
    (shown,) = [b.text for b in blocks("docs/graph-tutorial.md") if b.language == "console"]
    lines = [line for line in shown.splitlines() if not line.startswith(("$", "Killed"))]
    assert lines == (first.stdout + second.stdout).splitlines()
