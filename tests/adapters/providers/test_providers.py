"""limpet.providers with the official clients of four model APIs, in an environment of their own.

They are not in our development lock, so the files check_*.py beside this one run in
.venv-providers, which `make frameworks` makes. Their tests are listed there.
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
        return venvs.python_of("providers")
    except venvs.NotInstalled as error:
        pytest.skip(f"the clients of the providers are not tested here: {error}")


def test_the_suites_with_the_official_clients(python: Path) -> None:
    """Every test of every suite passes, in one run: the clients import slowly."""
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    code, said = venvs.run(python, *options, *suites, timeout=SECONDS_MAX)
    assert code == 0, said[-8_000:]
