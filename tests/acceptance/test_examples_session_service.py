"""The walk through a session service, run as a reader would run it."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.test_examples_graph import ROOT, run


def test_a_session_service_says_the_same_in_memory_and_in_a_database(tmp_path: Path) -> None:
    """Every step of docs/session-service.md runs on both stores, with one result, and leaves
    nothing behind."""
    done = run(str(ROOT / "examples/session_service.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    steps = [line.split()[0] for line in lines[:-1]]
    assert list(dict.fromkeys(steps)) == [
        "create",
        "append_event",
        "partial",
        "get",
        "stale",
        "list_and_delete",
    ]
    assert "stale            stale: session.conflict" in lines
    assert "append_event     temp: is stored: False" in lines
    assert lines[-1] == "the same in memory and in the database"
    assert list(tmp_path.iterdir()) == []
