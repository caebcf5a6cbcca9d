"""The pages on frameworks: the tests they name exist."""

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
