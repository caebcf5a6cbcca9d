"""A strict program of a user under pyright; mypy checks the same one in tests/unit/test_typing.py.

The checker comes with its Node in wheels, in an environment that `make frameworks` makes, and loads
nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import strict_user, venvs

SETTINGS = {"include": ["."], "typeCheckingMode": "strict", "enableTypeIgnoreComments": False}
WRONG = """

async def wrong(lp: limpet.Limpet, s: Session[Desk]) -> None:
    s.state.titel  # wrong
    await s.apend("user.message")  # wrong
    await lp.get(7)  # wrong
"""


@pytest.fixture
def checker() -> Path:
    try:
        return venvs.python_of("pyright").with_name("basedpyright")
    except venvs.NotInstalled as error:
        pytest.skip(f"pyright is not here: {error}")


def test_a_strict_program_has_no_error_and_a_wrong_one_has(checker: Path, tmp_path: Path) -> None:
    """What is marked wrong is found, so the rest was looked at; nothing else is."""
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
    shutil.copy(strict_user.__file__, tmp_path / "right.py")
    wrong = Path(strict_user.__file__).read_text() + WRONG
    (tmp_path / "wrong.py").write_text(wrong)
    command = [checker, "--pythonpath", sys.executable, "-p", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r"(\w+)\.py:(\d+):\d+ - error", done.stdout)
    lines = wrong.splitlines()
    marked = [str(n) for n, line in enumerate(lines, 1) if line.endswith("# wrong")]
    assert sorted(set(found)) == [("wrong", n) for n in marked], done.stdout + done.stderr
