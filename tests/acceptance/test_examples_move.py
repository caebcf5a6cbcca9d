"""The five scenarios of a move, as the examples show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.test_examples_session_service import ROOT, run

SHOWN = {
    "failover": ["moved: True | last: answered at attempt 1"],
    "balance": ["moved: 2 | refused: capacity"],
    "region": ["in eu: {'n': 1, 'user:lang': 'de'} | left in us: None"],
    "upgrade": ["without refund: tools", "with all tools: True", "version 2"],
    "scale_out": ["moved: 2", "events sent in the moves themselves: 3", "{'n1': 2, 'n2': 2}"],
}


@pytest.mark.parametrize("scenario", SHOWN)
def test_a_scenario_runs_as_shown(tmp_path: Path, scenario: str) -> None:
    """It prints what its page says."""
    done = run(str(ROOT / f"examples/move_{scenario}.py"), cwd=tmp_path)
    assert done.stdout.splitlines() == SHOWN[scenario], done.stderr
