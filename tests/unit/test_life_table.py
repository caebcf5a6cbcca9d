"""The table of docs/life.md names only what the API has, and leaves out no part of a life."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import limpet
from limpet.model import Head
from limpet.session.blobs import SessionBlobs
from limpet.session.history.history import SessionHistory
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.tools import SessionTools
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.work import StoreWork

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = (DOCS / "life.md").read_text().partition("## Where each part of a life is")[2].splitlines()
TABLE = [line for line in ROWS if line.startswith("| ")][1:]
PARTS = (
    "id, state, phase",
    "phases and table",
    "durations",
    "typed state",
    "nested sessions",
    "persistence tiers",
    "checkpoints",
    "resumption",
    "integrity check",
    "migration",
    "timeouts",
    "sweeper, cleanup",
    "idle detection",
)
FACETS = {
    "history": SessionHistory,
    "lifecycle": SessionLifecycle,
    "tools": SessionTools,
    "runs": SessionRuns,
    "blobs": SessionBlobs,
    "outcome": SessionOutcome,
    "setup": SessionSetup,
    "work": StoreWork,
    "maintenance": StoreMaintenance,
    "policies": StorePolicies,
}
OWNERS: dict[str, Any] = {
    "s": limpet.Session,
    "lp": limpet.Limpet,
    "limpet": limpet,
    "s.head": Head,
    **{f"{of}.{name}": facet for name, facet in FACETS.items() for of in ("s", "lp")},
}


def test_every_name_in_the_table_is_one_of_the_api() -> None:
    """Attributes of a session, a store or the package; errors by their class."""
    names = re.findall(r"`((?:s|lp|limpet)\.[\w.]+)", "\n".join(TABLE))
    assert len(names) > 30
    for name in names:
        owner, _, attribute = name.rpartition(".")
        assert hasattr(OWNERS[owner], attribute), name
    for name in re.findall(r"`([A-Z]\w+)`", "\n".join(TABLE)):
        assert issubclass(getattr(limpet.errors, name), limpet.LimpetError), name


def test_every_part_of_a_life_has_a_row() -> None:
    """From identity to cleanup."""
    topics = [line.split("|")[1].strip() for line in TABLE]
    for part in PARTS:
        assert any([part in topic for topic in topics]), part


def test_every_link_in_the_table_leads_to_a_page() -> None:
    """Of our own documentation."""
    links = re.findall(r"\]\(([\w./-]+\.md)", "\n".join(ROWS))
    assert links
    for link in links:
        assert (DOCS / link).exists(), link
