"""How a suite runs in the environment of its framework: the files check_*.py of one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import postgres, venvs

SECONDS_MAX = 280  # below the limit of one test


def run_checks(
    environment: str, folder: Path, server: postgres.Server | postgres.Elsewhere
) -> None:
    """Run every check_*.py of a folder, or skip the test where the packages are not installed."""
    try:
        python = venvs.python_of(environment)
    except venvs.NotInstalled as error:
        pytest.skip(f"{environment} is not tested here: {error}")
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in folder.glob("check_*.py"))
    assert suites
    # What a framework warns of on import is its own business.
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=", *suites]
    code, said = venvs.run(
        python, *options, timeout=SECONDS_MAX, **{postgres.ENVIRONMENT: server.url}
    )
    assert code == 0, said[-8_000:]
