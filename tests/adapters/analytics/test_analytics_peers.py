"""limpet.analytics beside scikit-learn, scipy, duckdb and polars, in an environment of their own.

They are not in our development lock, so check_*.py beside this one runs in .venv-analytics, which
`make frameworks` makes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import venvs

HERE = Path(__file__).parent
SECONDS_MAX = 240  # below the limit of one test


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("analytics")
    except venvs.NotInstalled as error:
        pytest.skip(f"the peers of analytics are not installed here: {error}")


def test_the_suites_beside_the_peers(python: Path) -> None:
    """Every test of every suite passes, in one run: the peers import slowly."""
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    code, said = venvs.run(python, *options, *suites, timeout=SECONDS_MAX)
    assert code == 0, said[-8_000:]
