"""The suites of limpet.adapters.openai_agents, each run with an interpreter that has the package.

openai-agents is not in our development lock, so the files check_*.py beside this one run in
.venv-openai-agents, which the first run makes. Their tests are listed there.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import postgres, venvs

HERE = Path(__file__).parent
SUITES = sorted(file.name for file in HERE.glob("check_*.py"))
SECONDS_MAX = 240


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("openai-agents")
    except (venvs.NotInstalled, OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"openai-agents is not tested here: {error}")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_with_the_real_openai_agents(
    suite: str, python: Path, any_postgres: postgres.Server | postgres.Elsewhere
) -> None:
    """Every test of the suite passes on openai-agents itself."""
    there = str((HERE / suite).relative_to(venvs.ROOT))
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", there]
    named = {postgres.ENVIRONMENT: any_postgres.url, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    code, said = venvs.run(python, *options, timeout=SECONDS_MAX, **named)
    assert code == 0, said[-8_000:]
