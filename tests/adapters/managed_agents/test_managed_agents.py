"""The Managed Agents wire with the official client, in three generations of it.

The client is not in our development lock, so the files check_*.py beside this one run in
environments of their own, which `make frameworks` makes, against `limpet serve` in this one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import venvs

HERE = Path(__file__).parent
SECONDS_MAX = 240  # below the limit of one test


# 2.9, and two that are still in use: they send other headers, and read streams differently.
GENERATIONS = ("providers", "anthropic-0", "anthropic-1")


@pytest.mark.parametrize("environment", GENERATIONS)
def test_the_official_client_drives_every_route(environment: str) -> None:
    """Every test of every suite passes, in one run: the client imports slowly."""
    try:
        python = venvs.python_of(environment)
    except venvs.NotInstalled as error:
        pytest.skip(f"the official client is not tested here: {error}")
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    code, said = venvs.run(
        python, *options, *suites, timeout=SECONDS_MAX, LIMPET_SERVER_PYTHON=sys.executable
    )
    assert code == 0, said[-8_000:]
