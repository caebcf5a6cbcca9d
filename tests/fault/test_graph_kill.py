"""A graph that is killed with kill -9 at any node goes on exactly where it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.examples import tries
from tests.support.processes import Child

NODES = [
    *[f"count {number}" for number in range(4)],
    *["one", "two"],
    *[f"{side} {item}" for item in "abc" for side in ("left", "right")],
    "finish",
]
FINAL = {
    "rounds": 0,
    "items": ["a", "b", "c"],
    "trail": [name for name in NODES if not name.startswith(("left", "right"))],
    "parts": [[f"left {item}", f"right {item}"] for item in "abc"],
}


def run(folder: Path, die_at: int, *more: str) -> str | None:
    """What the process printed, or None if it was killed."""
    arguments = (folder / "graph.db", folder / "log", die_at, *more)
    with Child("tests.support.graph_runner", *arguments) as child:
        printed = child.output()
        if child.ended() == -signal.SIGKILL:
            return None
        child.end()
        assert child.complaint() == ""
    return printed


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


@pytest.mark.deeper
@pytest.mark.parametrize("place", tries([1, 3, 5, 6, 8, 9, 13], list(range(1, 14))))
def test_a_killed_run_repeats_only_the_node_that_was_killed(tmp_path: Path, place: int) -> None:
    """In a cycle, a subgraph and a fan-out: every other node runs once, and the result is whole."""
    assert run(tmp_path, place) is None
    assert log(tmp_path) == NODES[:place]
    printed = run(tmp_path, 0)
    assert printed is not None
    assert json.loads(printed) == FINAL
    assert log(tmp_path) == NODES[:place] + NODES[place - 1 :]


def test_a_run_that_is_killed_over_and_over_still_ends_right(tmp_path: Path) -> None:
    """Every process dies in its fifth node: each carries the run four nodes further."""
    printed = None
    for _ in range(len(NODES)):
        printed = run(tmp_path, 5)
        if printed is not None:
            break
    assert printed is not None
    assert json.loads(printed) == FINAL
    deaths = len(log(tmp_path)) - len(NODES)
    assert deaths == (len(NODES) - 1) // 4


@pytest.mark.parametrize("place", [1, 6, 13])
def test_the_turn_of_a_session_is_saved_once_wherever_it_was_killed(
    tmp_path: Path, place: int
) -> None:
    """The run that goes on saves the session with its end, and a new turn starts from there."""
    assert run(tmp_path, place, "s") is None
    printed = run(tmp_path, 0, "s")
    assert printed is not None
    state, *saves = printed.splitlines()
    assert json.loads(state) == FINAL
    assert saves == ["session.created 0 3"]
