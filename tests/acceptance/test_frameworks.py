"""The pages on frameworks: the tests they name exist, and each shows how to switch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_NAMED = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


@pytest.mark.parametrize("page", ["frameworks.md", "openai-agents.md"])
def test_every_failure_names_tests_that_exist(page: str) -> None:
    """A test that a page links to is in the file that it links to."""
    named = _NAMED.findall((DOCS / page).read_text())
    assert len(named) > 6
    for name, file in named:
        assert re.search(rf"def {name}\(", (DOCS / file).read_text()), f"{name} is not in {file}"


PAGES = [
    "a2a",
    "adk",
    "agent-framework",
    "claude-agent-sdk",
    "langgraph",
    "openai-agents",
    "pydantic-ai",
    "strands",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_framework_page_names_exists(page: str) -> None:
    """A name without a link is that of a test in the suites of the frameworks."""
    named = set(re.findall(r"`(test_\w+)`", (DOCS / f"{page}.md").read_text()))
    suites = (DOCS.parent / "tests/adapters").rglob("*.py")
    there = "\n".join(file.read_text() for file in suites)
    assert len(named) > 2
    assert {name for name in named if f"def {name}(" not in there} == set()


@pytest.mark.parametrize("page", PAGES)
def test_switching_takes_three_lines(page: str) -> None:
    """The first program of the page is the import, ours in the place of theirs, and its use."""
    program = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.S | re.M)
    lines = [line for line in program[0].splitlines() if line]
    assert len(lines) == 3
    assert lines[0].startswith(f"from limpet.adapters.{page.replace('-', '_')} import Limpet")
    compile("async def switched():\n    " + "\n    ".join(lines), page, "exec")
