"""The suites that need certain packages, in an environment of their own: see environments."""

from __future__ import annotations

from pathlib import Path

from tests.support import postgres
from tests.support.environments import run_checks


def test_the_suites_with_the_real_packages(
    any_postgres: postgres.Server | postgres.Elsewhere,
) -> None:
    """Every check beside this file passes with the packages themselves."""
    run_checks("agent-libraries", Path(__file__).parent, any_postgres)
