"""A disk without any space left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT


def test_a_full_disk_is_named_and_can_be_looked_at(tmp_path: Path) -> None:
    """Exports and mirrors say so and leave no part; opening says what is wrong; whoever only
    looks reads everything, and the doctor says it."""
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*apart, sys.executable, "-m", "tests.support.full", str(tmp_path)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.stdout == "no mount\n" or done.stderr.startswith("unshare:"):
        pytest.skip("nothing may be mounted here")
    files = ["store.full True", "store.full True", "0"]
    assert done.stdout.splitlines() == [*files, "store.full True", "problem"], done.stderr
