"""The pages docs/coming-from: each program runs and prints what its page shows.

The programs that use a framework run in tests/adapters/test_coming_from.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.acceptance.test_examples import ROOT, blocks, python, titled
from tests.adapters.test_coming_from import FOLDER, FRAMEWORKS

OTHERS = ("dbos", "others", "temporal")


@pytest.mark.parametrize("page", OTHERS)
def test_a_program_without_a_framework_prints_what_the_page_shows(
    page: str, tmp_path: Path
) -> None:
    """The programs of a page, one after the other."""
    found = blocks(f"{FOLDER}/{page}.md")
    printed = ""
    for program in [b for b in found if b.language == "python" and not b.title]:
        ran = python("-c", program.text, cwd=tmp_path)
        assert (ran.returncode, ran.stderr) == (0, "")
        printed += ran.stdout
    assert [printed] == [b.text for b in found if b.language == "text"]


@pytest.mark.parametrize("page", ["dbos", "temporal"])
def test_a_program_of_a_package_that_we_do_not_install_is_python(page: str) -> None:
    """It is parsed: these need a server or a package of their own."""
    ast.parse(titled(f"{FOLDER}/{page}.md", "before.py"))


def test_every_page_of_the_folder_is_tried_here() -> None:
    """A new page has to be added to one of the two lists."""
    pages = {path.stem for path in (ROOT / FOLDER).glob("*.md")}
    assert pages == {*FRAMEWORKS, *OTHERS}
