"""The benchmarks start; what they measure is no test."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

from bench.picture import picture
from bench.table import Row
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


def _row(workload: str, what: str, ours: float, peer: float | None, raw: float | None) -> Row:
    return Row(workload, what, "per second", {}, ours, raw, peer)


def test_the_picture_is_well_formed_and_shows_ratios() -> None:
    """Ours and the limit against the peer; of rows that differ in size alone, the largest."""
    rows = [
        _row("W2", "lanes: 64 sessions × 20", 1.0, 1.0, 1.0),
        _row("W2", "lanes: 64 sessions × 100", 12.0, 1.0, 150.0),
        _row("W4", "clean <1>", 3.0, None, 4.0),
        _row("W5", "nobody beside it", 1.0, None, None),
    ]
    svg = picture(rows, {"limpet": "0", "load": 1.5})
    found = ElementTree.fromstring(svg)
    texts = [each.text for each in found.iter() if each.tag.endswith("text")]
    assert [t for t in texts if t and t.startswith("W")] == [
        "W2 · lanes: 64 sessions × 100",
        "W4 · clean <1>",
    ]
    assert {"12 ×", "1 ×", "150 ×", "0.75 ×"} <= {*texts}
    assert "prefers-color-scheme: dark" in svg
