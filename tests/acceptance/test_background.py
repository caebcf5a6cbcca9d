"""The tests themselves, begun as a background job."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import ROOT


def test_processes_of_a_background_job_can_be_interrupted() -> None:
    """A shell without job control has SIGINT ignored in what it begins with `&`: a test that sends
    it to a process of its own passes even so."""
    test = "tests/acceptance/test_sync.py::test_an_interrupted_script_ends_as_any_other"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
