"""The table that leads from chapter 18 to our API names only what there is, and no section less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import limpet
from limpet.model import Head
from limpet.session.blobs import SessionBlobs
from limpet.session.history.history import SessionHistory
from limpet.session.life.lifecycle import SessionLifecycle, SessionTools
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.work import StoreWork

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = (DOCS / "life.md").read_text().partition("## From chapter 18")[2].splitlines()
TABLE = [line for line in ROWS if line.startswith("| 18.")]
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


def test_every_section_has_a_row() -> None:
    """From 18.1 to 18.9."""
    found = {int(number) for number in re.findall(r"18\.(\d+)", "\n".join(TABLE))}
    assert found == set(range(1, 10))


def test_every_link_in_the_table_leads_to_a_page() -> None:
    """Of our own documentation."""
    links = re.findall(r"\]\(([\w./-]+\.md)", "\n".join(ROWS))
    assert links
    for link in links:
        assert (DOCS / link).exists(), link
