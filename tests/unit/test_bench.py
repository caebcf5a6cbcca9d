"""The benchmarks start; what they measure is no test."""

from __future__ import annotations

import subprocess
import sys

from tests.support.venvs import ROOT


def test_the_benchmarks_can_be_imported() -> None:
    """Every workload is loaded before the first one runs, so one broken import stops them all."""
    said = subprocess.run(
        [sys.executable, "-m", "bench", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "--postgres" in said.stdout
