"""The names of metrics: alerts listen for them, so they stay what they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from limpet.session.services import MetricName

NAMES = {
    "session.absolute_timeout",
    "session.analytics",
    "session.checkpoint",
    "session.deadline_reached",
    "session.grace_expired",
    "session.idle_timeout",
    "session.migrated",
    "session.permanently_deleted",
    "session.resumed_by_input",
    "session.suspended_often",
}
ROOT = Path(__file__).resolve().parents[3]


def test_no_metric_is_renamed() -> None:
    """An alert that listens for a name would hear nothing, and nobody would notice."""
    assert set(get_args(MetricName)) == NAMES


def test_every_metric_is_documented() -> None:
    """In the table of docs/logging.md, and no other."""
    table = (ROOT / "docs/logging.md").read_text().partition("\n## Metrics\n")[2]
    assert set(re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE)) == NAMES


def test_every_name_is_recorded_somewhere() -> None:
    """And what is recorded is one of them: that is what the type says."""
    code = [path.read_text() for path in (ROOT / "src/limpet").rglob("*.py")]
    for name in NAMES:
        assert sum(text.count(f'"{name}"') for text in code) >= 2, name
