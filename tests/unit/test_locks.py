"""The locks under requirements/: complete, and each installed by a check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.venvs import FRAMEWORKS, ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
# `make venv` and `make demo` install the first two; the bill of materials is made of the third.
ELSEWHERE = {"dev", "demo", "extras"}
PINNED = re.compile(r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,._-]+\])?==[^ ]+( ; .+)? ?\\?")


def test_every_lock_is_installed_by_a_check() -> None:
    """`make frameworks`, which .ci/run calls, installs the rest: of benches too."""
    assert {lock.stem for lock in LOCKS} == ELSEWHERE | set(FRAMEWORKS)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_versions_and_names_no_place(lock: Path) -> None:
    """Packages with hashes, and nothing of the machine or the index that it was made with."""
    lines = [line.strip() for line in lock.read_text().splitlines()]
    wrong = [
        line
        for line in lines
        if line and not line.startswith(("#", "--hash=sha256:")) and not PINNED.fullmatch(line)
    ]
    assert wrong == []


def test_a_lock_names_the_extras_that_its_packages_ask_for() -> None:
    """pip refuses a lock with hashes in which a package is named without them."""
    text = (ROOT / "requirements" / "bench-dbos.txt").read_text()
    assert re.findall(r"^(?:psycopg|sqlalchemy)\S*?(?===)", text, re.M) == [
        "psycopg[binary]",
        "psycopg-binary",
        "sqlalchemy[asyncio]",
    ]
