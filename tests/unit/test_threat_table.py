"""The threat table of docs/security.md names tests that exist, for every threat it has to name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
# The threats of the design, and the risks of OWASP's list that a session layer can act on.
NAMED = [
    "Session hijack",
    "Tampering",
    "Eavesdropping",
    "Replay",
    "Privilege escalation",
    "Cross-session leakage",
    "ASI03",
    "ASI06",
    "ASI07",
    "ASI08",
    "ASI10",
]


def _rows() -> dict[str, list[str]]:
    """The tests that each line of the tables names, by the threat."""
    section = PAGE.partition("\n## Threats\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| **")]
    return {line.split("**")[1]: re.findall(r"`([\w/]+\.py(?:::\w+)?)`", line) for line in lines}


def _places() -> list[tuple[str, str]]:
    return [(threat, test) for threat, tests in _rows().items() for test in tests]


@pytest.mark.parametrize("name", NAMED)
def test_every_threat_stands_in_the_table(name: str) -> None:
    """With a mechanism and at least two tests."""
    found = [tests for threat, tests in _rows().items() if threat.startswith(name)]
    assert len(found) == 1
    assert len(found[0]) >= 2


@pytest.mark.parametrize(("threat", "place"), _places())
def test_a_test_that_the_table_names_exists(threat: str, place: str) -> None:
    """Under this name, in this file."""
    file, _, name = place.partition("::")
    path = ROOT / "tests" / (file if "/" in file else f"acceptance/{file}")
    assert path.exists(), f"{threat}: {path} is not there"
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    assert not name or name in defined, f"{threat}: {place} is not there"


def test_every_line_of_the_table_has_tests() -> None:
    """A promise without one is not made."""
    assert all(_rows().values())
