"""The laws of the LangGraph adapter, run where LangGraph is installed: `inside/laws_*.py`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import postgres, venvs

_HERE = Path(__file__).parent
_EXAMPLES = sorted((venvs.ROOT / "examples").glob("langgraph_*.py"))


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("langgraph")
    except venvs.NotInstalled as error:
        pytest.skip(f"LangGraph is not tested here: {error}")


def _run(python: Path, *args: str, cwd: Path = venvs.ROOT, **env: str) -> str:
    paths = {**venvs.environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(python), *args],
        cwd=cwd,
        env={**paths, **env},
        capture_output=True,
        text=True,
        timeout=280,  # below the limit of one test
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-4_000:]
    return done.stdout


def test_langgraph_runs_on_limpet(
    python: Path, any_postgres: postgres.Server | postgres.Elsewhere
) -> None:
    """Every law holds on memory, SQLite and PostgreSQL. One run of all: it imports slowly."""
    where = f"{_HERE.relative_to(venvs.ROOT)}/inside"
    command = ("-m", "pytest", "-q", "-c", f"{where}/pytest.ini", where)
    _run(python, *command, LIMPET_INSIDE_POSTGRES=any_postgres.url)


def test_the_programs_of_the_page_run(python: Path, tmp_path: Path) -> None:
    """docs/langgraph.md: run again, the first goes on with its thread, as the page shows."""
    page = (venvs.ROOT / "docs" / "langgraph.md").read_text()
    blocks = dict(re.findall(r"^```(\S+ ?\S*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    ran = [
        _run(python, "-c", blocks[f"python title={name}.py"], cwd=tmp_path)
        for name in ("chat", "chat", "mood")
    ]
    assert ran[0] + ran[1] == blocks["text"]
    assert ran[2] == "('users', 'ada') mood {'text': 'fine'}\n"


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda path: path.stem)
def test_each_langgraph_example_runs(example: Path, python: Path) -> None:
    """An example ends without an error, on its own, without a network."""
    _run(python, str(example))
