"""The laws of the LangGraph adapter, run where LangGraph is installed: `inside/laws_*.py`."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from limpet.server.routes.agui import json_patch
from tests.support import postgres, venvs
from tests.support.served import served_elsewhere

_HERE = Path(__file__).parent
_EXAMPLES = sorted((venvs.ROOT / "examples").glob("langgraph_*.py"))


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return venvs.python_of("langgraph")
    except venvs.NotInstalled as error:
        pytest.skip(f"LangGraph is not tested here: {error}")


def _run(python: Path, *args: str, cwd: Path = venvs.ROOT, **env: str) -> str:
    paths = venvs.environment()
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


def _with_client(folder: Path) -> str:
    """Return the path of our sources and of what a server's client needs, which LangGraph's
    environment lacks: it is of the same Python as ours."""
    for name in ("picows", "multidict", "aiofastnet", "python_socks"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (folder / name).symlink_to(Path(spec.origin).parent)
    return os.pathsep.join([venvs.environment()["PYTHONPATH"], str(folder)])


@pytest.mark.parametrize("part", ["0/2", "1/2"])
def test_langgraph_runs_on_limpet(
    part: str,
    python: Path,
    any_postgres: postgres.Server | postgres.Elsewhere,
    tmp_path: Path,
) -> None:
    """Every law holds on memory, SQLite, PostgreSQL and over HTTP. In two runs, each within the
    limit of one test also on a busy machine."""
    where = f"{_HERE.relative_to(venvs.ROOT)}/inside"
    command = ("-m", "pytest", "-q", "-c", f"{where}/pytest.ini", where)
    with served_elsewhere() as served:
        urls = {"LIMPET_INSIDE_POSTGRESQL": any_postgres.url, "LIMPET_INSIDE_HTTP": served}
        parts = {"PART": part, "PYTHONPATH": _with_client(tmp_path)}
        _run(python, *command, "-p", "tests.support.halves", **parts, **urls)


def test_the_programs_of_the_page_run(python: Path, tmp_path: Path) -> None:
    """docs/langgraph.md: run again, the first goes on with its thread, as the page shows."""
    page = (venvs.ROOT / "docs" / "langgraph.md").read_text()
    blocks = dict(re.findall(r"^```(\S+ ?\S*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    ran = [
        _run(python, "-c", blocks[f"python title={name}.py"], cwd=tmp_path)
        for name in ("chat", "chat", "mood", "meaning")
    ]
    assert ran[0] + ran[1] == blocks["text"]
    assert ran[2] == "('users', 'ada') mood {'text': 'fine'}\n"
    assert ran[3] == "harbor 1.0\nnight 0.71\n"


_APPLY = """
import json, sys, jsonpatch
for old, patch, new in json.load(open(sys.argv[1])):
    assert jsonpatch.apply_patch(old, patch) == new, (old, patch, new)
"""


def test_state_deltas_are_patches_for_another_library(python: Path, tmp_path: Path) -> None:
    """What /agui sends as STATE_DELTA, applied by the jsonpatch that LangChain brings."""
    chance = random.Random(11)

    def value(depth: int) -> Any:
        kind = chance.randrange(4 if depth else 2)
        if kind < 2:
            return chance.choice([1, "a/b", None, True, "~", 2.5])
        if kind == 2:
            return [value(depth - 1) for _ in range(chance.randrange(5))]
        return {chance.choice(["a", "b", "~", "/", ""]): value(depth - 1) for _ in range(3)}

    states = [{"x": value(3), "y": value(2)} for _ in range(300)]
    pairs = itertools.pairwise(states)
    file = tmp_path / "patches.json"
    file.write_text(json.dumps([[old, list(json_patch(old, new)), new] for old, new in pairs]))
    _run(python, "-c", _APPLY, str(file))


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda path: path.stem)
def test_each_langgraph_example_runs(example: Path, python: Path) -> None:
    """An example ends without an error, on its own, without a network."""
    _run(python, str(example))
