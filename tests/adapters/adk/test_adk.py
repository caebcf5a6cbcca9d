"""The suites of limpet.adapters.adk, each run with the interpreter of google-adk's environment.

google-adk and our development lock do not agree on versions, so the files check_*.py beside this
one run in .venv-adk, which the first run makes. Their tests are listed there.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import postgres, venvs

HERE = Path(__file__).parent
SUITES = sorted(file.name for file in HERE.glob("check_*.py"))
SECONDS_MAX = 240
# Warnings that google-adk and its packages raise about themselves.
WARNINGS = ("DeprecationWarning", "UserWarning", "FutureWarning", "PendingDeprecationWarning")


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("adk")
    except (venvs.NotInstalled, OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"google-adk is not tested here: {error}")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_with_the_real_google_adk(
    suite: str, python: Path, any_postgres: postgres.Server | postgres.Elsewhere
) -> None:
    """Every test of the suite passes on google-adk itself."""
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    ignored = [f"-Wignore::{kind}" for kind in WARNINGS]
    there = str((HERE / suite).relative_to(venvs.ROOT))
    named = {postgres.ENVIRONMENT: any_postgres.url}
    code, said = venvs.run(
        python, *options, "-Werror", *ignored, there, timeout=SECONDS_MAX, **named
    )
    assert code == 0, said[-8_000:]
