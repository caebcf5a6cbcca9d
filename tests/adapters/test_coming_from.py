"""The pages docs/coming-from of frameworks: each program prints the same before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.test_examples import blocks, titled
from tests.support import venvs

FOLDER = "docs/coming-from"
FRAMEWORKS = ("adk", "langgraph", "openai-agents")


@pytest.mark.parametrize("page", FRAMEWORKS)
def test_a_program_with_a_framework_prints_the_same_before_and_after(
    page: str, tmp_path: Path
) -> None:
    """Both run in the environment of the framework."""
    path = f"{FOLDER}/{page}.md"
    try:
        interpreter = venvs.python_of(page)
    except venvs.NotInstalled as error:
        pytest.skip(f"{page} is not tested here: {error}")
    (shown,) = [block.text for block in blocks(path) if block.language == "text"]
    for name in ("before.py", "after.py"):
        file = tmp_path / name
        file.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{titled(path, name)}")
        code, said = venvs.run(interpreter, str(file), timeout=240)
        assert (code, said[-len(shown) :]) == (0, shown), said
