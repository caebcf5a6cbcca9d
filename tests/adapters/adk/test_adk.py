"""The suites of limpet.adapters.adk, run with the interpreter of google-adk's environment.

google-adk and our development lock do not agree on versions, so the files check_*.py beside this
one run in .venv-adk, which `make frameworks` makes. Their tests are listed there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import postgres, venvs

HERE = Path(__file__).parent
# Of the suites that start processes, which mostly wait, and of the others. To import google-adk
# takes seconds, so each of the two is one run.
PROCESSES = ("check_import.py", "check_processes.py", "check_web.py")
SUITES = {
    "processes": PROCESSES,
    "service": tuple(f.name for f in sorted(HERE.glob("check_*.py")) if f.name not in PROCESSES),
}
SECONDS_MAX = 280  # below the limit of one test
# Warnings that google-adk and its packages raise about themselves.
WARNINGS = ("DeprecationWarning", "UserWarning", "FutureWarning", "PendingDeprecationWarning")


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("adk")
    except venvs.NotInstalled as error:
        pytest.skip(f"google-adk is not tested here: {error}")


@pytest.mark.parametrize("which", SUITES)
def test_the_suites_with_the_real_google_adk(
    which: str, python: Path, any_postgres: postgres.Server | postgres.Elsewhere
) -> None:
    """Every test of every suite passes on google-adk itself."""
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    ignored = [f"-Wignore::{kind}" for kind in WARNINGS]
    there = [str((HERE / suite).relative_to(venvs.ROOT)) for suite in SUITES[which]]
    named = {postgres.ENVIRONMENT: any_postgres.url}
    code, said = venvs.run(
        python, *options, "-Werror", *ignored, *there, timeout=SECONDS_MAX, **named
    )
    assert code == 0, said[-8_000:]
