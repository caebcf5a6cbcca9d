"""Times for people, and tables that fit a terminal without breaking a key."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from rich.cells import cell_len

import limpet
from limpet.cli.render import Cell, CommandResult, Grid, Screen, TreeNode, age, instant, timed

NOW = 1_777_629_600_000_000  # 2026-05-01T10:00:00Z
SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000


@pytest.mark.parametrize(
    ("past_us", "told"),
    [
        (0, "now"),
        (SECOND - 1, "now"),
        (SECOND, "1 s ago"),
        (MINUTE - 1, "59 s ago"),
        (MINUTE, "1 min ago"),
        (HOUR - 1, "59 min ago"),
        (3 * HOUR + 59 * MINUTE, "3 h ago"),
        (DAY - 1, "23 h ago"),
        (DAY, "1 d ago"),
        (1_000 * DAY, "1,000 d ago"),
        (-SECOND + 1, "now"),
        (-SECOND, "in 1 s"),
        (-5 * MINUTE, "in 5 min"),
        (-2 * DAY, "in 2 d"),
    ],
)
def test_an_age_is_in_the_largest_unit_that_fits(past_us: int, told: str) -> None:
    """Rounded down, in the past and in the future."""
    assert age(NOW - past_us, NOW) == told


def test_a_time_has_its_age_beside_it() -> None:
    """In UTC, to the second."""
    assert timed(NOW, NOW + 3 * HOUR) == "2026-05-01T10:00:00Z (3 h ago)"


def test_an_instant_is_exact_and_may_be_unknown() -> None:
    """A place in a history, as it is written and read; of a removed event nothing is known."""
    assert instant(NOW + 1) == "2026-05-01T10:00:00.000001Z"
    assert instant(0) == "-"


LONG = "support/grace.hopper@navy.example.com/0191b2c3-7d4e-7f00-8a1b-2c3d4e5f6071"
GRID = Grid(
    ("state", "session", "pending"),
    [
        (Cell("due", severity="warning"), "a/b/c", "1", "short"),
        ("blocked", LONG, "12", "waits for approval wire (96b4d5096ac1bda1a275d2bed78c8849) " * 2),
        ("idle", "日本/太郎/一", "0", ""),
    ],
    "why",
    right=("pending",),
)


def shown(part: Grid | TreeNode, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> list[str]:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    with contextlib.redirect_stdout(stream):
        Screen(as_json=False).show(CommandResult({}, [part]))
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_a_terminal_breaks_no_key_and_shows_what_is_wide_below_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that is too long for its column stands whole; its row goes on in the next line."""
    lines = shown(GRID, monkeypatch, terminal=True)
    assert lines[0].split() == ["state", "session", "pending"]
    assert lines[1].split() == ["due", "a/b/c", "1"]
    assert lines[2] == "    short"
    assert lines[3] == f"blocked  {LONG}"
    assert lines[4].strip() == "12"
    assert [line[:4] for line in lines[5:-1]] == ["    "] * 2
    assert all("(96b4d5096ac1bda1a275d2bed78c8849)" in line for line in lines[5:-1])
    assert max(len(line) for line in lines if LONG not in line) <= 80
    assert len({cell_len(line) for line in (lines[0], lines[1], lines[4], lines[-1])}) == 1


def test_a_pipe_has_a_header_and_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligned by spaces, however wide; an empty table says so."""
    lines = shown(GRID, monkeypatch, terminal=False)
    assert len(lines) == 4
    assert (
        len(
            {
                cell_len(line[: line.index(word)])
                for line, word in zip(
                    lines, ("pending", "      1", "     12", "      0"), strict=True
                )
            }
        )
        == 1
    )
    assert "\t" not in "".join(lines)
    empty = Grid(("a",), [], empty="no sessions.")
    assert shown(empty, monkeypatch, terminal=False) == ["no sessions."]
    assert shown(empty, monkeypatch, terminal=True) == ["no sessions."]


def test_a_tree_has_branches_on_a_terminal_and_wraps_between_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pipe its lines are indented, and never broken."""
    words = "word " * 30
    tree = TreeNode("root", "", (TreeNode(words.strip(), "", (TreeNode("leaf"),)), TreeNode("end")))
    assert shown(tree, monkeypatch, terminal=False) == [
        "root",
        f"  {words.strip()}",
        "    leaf",
        "  end",
    ]
    lines = shown(tree, monkeypatch, terminal=True)
    assert lines[0] == "root"
    assert lines[1].startswith("├── word word")
    assert lines[2].startswith("│   │ word word")
    assert lines[-2:] == ["│   └── leaf", "└── end"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("terminal", [True, False])
def test_a_person_sees_where_an_error_is_explained(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal the last line names the error's anchor, within 80 columns; in a pipe none."""

    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    stream = Stream()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    with contextlib.redirect_stderr(stream):
        Screen(as_json=False).error(limpet.SessionNotFound(limpet.Key("a", "b", "c")))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "limpet: session.not_found"
    assert (lines[-1] == "  See docs/errors.md#session.not_found") is terminal
    assert terminal is False or max(map(len, lines)) <= 80
