"""The suites of limpet.adapters.openai_agents, run with an interpreter that has the package.

openai-agents is not in our development lock, so the files check_*.py beside this one run in
.venv-openai-agents, which `make frameworks` makes. Their tests are listed there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import postgres, venvs

HERE = Path(__file__).parent
SECONDS_MAX = 280  # below the limit of one test


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("openai-agents")
    except venvs.NotInstalled as error:
        pytest.skip(f"openai-agents is not tested here: {error}")


def test_the_suites_with_the_real_openai_agents(
    python: Path, any_postgres: postgres.Server | postgres.Elsewhere
) -> None:
    """Every test of every suite passes on openai-agents itself, in one run: it imports slowly."""
    suites = sorted(str(file.relative_to(venvs.ROOT)) for file in HERE.glob("check_*.py"))
    assert suites
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *suites]
    named = {postgres.ENVIRONMENT: any_postgres.url, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    code, said = venvs.run(python, *options, timeout=SECONDS_MAX, **named)
    assert code == 0, said[-8_000:]
