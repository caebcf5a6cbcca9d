"""limpet.mcp with the official client, in an environment of its own: see tests/support/venvs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import venvs

HERE = Path(__file__).parent
SECONDS_MAX = 240  # below the limit of one test


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("mcp")
    except venvs.NotInstalled as error:
        pytest.skip(f"the Model Context Protocol is not tested here: {error}")


def test_the_suite_with_the_official_client(python: Path) -> None:
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings="]
    suite = str((HERE / "check_mcp.py").relative_to(venvs.ROOT))
    code, said = venvs.run(python, *options, suite, timeout=SECONDS_MAX)
    assert code == 0, said[-8_000:]
