"""The Managed Agents wire with the official client, in an environment of its own.

The client is not in our development lock, so the files check_*.py beside this one run in
.venv-providers, which `make frameworks` makes, against `limpet serve` in this environment.
"""

from __future__ import annotations

import sys
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
        pytest.skip(f"the official client is not tested here: {error}")


def test_the_official_client_drives_every_route(python: Path) -> None:
    """Every test of every suite passes, in one run: the client imports slowly."""
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    code, said = venvs.run(
        python, *options, *suites, timeout=SECONDS_MAX, LIMPET_SERVER_PYTHON=sys.executable
    )
    assert code == 0, said[-8_000:]
