"""The tour of PostgreSQL, run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(*args: str, cwd: Path, tmp: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with warnings as errors; what it makes goes to `tmp`."""
    return subprocess.run(
        [sys.executable, "-u", "-W", "error", *args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def tmp() -> Iterator[Path]:
    """Short enough for a socket's name, and open to the server's user."""
    with tempfile.TemporaryDirectory(prefix="limpet-demo-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize("demo", ["demo_postgres.py", "demo_cluster.py"])
def test_the_demo_keeps_its_word_and_leaves_nothing_behind(tmp: Path, demo: str) -> None:
    """Without a terminal it ends well, has checked its claims; server and files are gone."""
    ran = python(str(EXAMPLES / demo), cwd=tmp, tmp=tmp)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"^\d+ claims, all checked, in \d+ seconds\.$", ran.stdout, re.MULTILINE)
    assert "NOT TRUE" not in ran.stdout
    assert max(len(line.rstrip()) for line in ran.stdout.splitlines()) <= 80
    assert list(tmp.iterdir()) == []


@pytest.mark.parametrize(
    ("falsification", "claim"),
    [
        pytest.param(
            "demo.ids = lambda log: [event.id for event in log][:-40]",
            "after a kill every acknowledged event is there",
            id="events are lost",
        ),
        pytest.param(
            "limpet.Report.ok = True",
            "UPDATE events SET actor = 'user:eve' is found out",
            id="blind verify",
        ),
    ],
)
def test_a_false_claim_ends_the_demo_with_exit_code_1(
    tmp: Path, falsification: str, claim: str
) -> None:
    """What the demo says is checked: made untrue, it says so and fails, and cleans up."""
    short = "tour.KILLS, tour.COUNTS, tour.WORDS = 1, 3, 3"
    first = ["import sys", "sys.path.insert(0, '.')", "import demo, limpet"]
    lines = [*first, "import demo_postgres as tour", short, falsification]
    ran = python("-c", "\n".join([*lines, "sys.exit(tour.main())"]), cwd=EXAMPLES, tmp=tmp)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert f"NOT TRUE: {claim}" in ran.stdout
    assert "all checked" not in ran.stdout
    assert list(tmp.iterdir()) == []
