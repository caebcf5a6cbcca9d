"""The studio in a real browser, in an environment of its own: see tests/support/venvs.py.

The files check_*.py beside this one run in .venv-browser, which `make frameworks` makes, with the
Chromium that is installed. Their tests are listed there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import venvs
from tests.support.browser import chromium

HERE = Path(__file__).parent
SECONDS_MAX = 280  # below the limit of one test


@pytest.fixture(scope="session")
def python() -> Path:
    if chromium() is None:
        pytest.skip("the studio is not tested here: no Chromium is installed")
    try:
        return venvs.python_of("browser")
    except venvs.NotInstalled as error:
        pytest.skip(f"the studio is not tested here: {error}")


@pytest.mark.parametrize("part", [f"{n}/4" for n in range(4)])
def test_the_studio_in_a_browser(python: Path, part: str) -> None:
    """Every test of every suite passes; in four runs, each within the limit of one test."""
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    options += ["-p", "tests.support.halves"]
    code, said = venvs.run(python, *options, *suites, timeout=SECONDS_MAX, PART=part)
    assert code == 0, said[-8_000:]
