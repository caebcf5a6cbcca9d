"""The steps that upgrade a store from an earlier schema, for the doctor.

SQLite and PostgreSQL have the same numbered schemas. A new one describes its step here, and a test
runs the code of the schema before it beside this code. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from limpet.store.protocol import Check


class UpgradeStep(NamedTuple):
    """The changes of one migration, and whether it takes longer the larger the store is."""

    change: str
    rewrites: bool


STEPS: Final = {
    2: UpgradeStep("sessions get a column for a MAC, empty without keys", rewrites=False),
}
_BACKUP: Final = (
    "Run `limpet backup` first; it copies a store as it is. Then start your application with this "
    "release: the first process that opens the store to write upgrades it, in one transaction."
)


def upgrade_checks(installed: int, known: int) -> tuple[Check, ...]:
    """Describe the way from the schema of a store to that of this release."""
    steps = [STEPS[number] for number in range(installed + 1, known + 1)]
    changes = "; ".join(step.change for step in steps)
    short = "under a second, however large the store: no row is rewritten"
    long = "grows with the store, about a minute for each GiB: rows are rewritten"
    return (
        Check("upgrade", f"schema {installed} → {known}: {changes}", "warning", _BACKUP),
        Check("upgrade time", long if any(step.rewrites for step in steps) else short),
        Check(
            "upgrade undone",
            f"only from a backup: a release for schema {installed} refuses schema {known}",
        ),
        Check(
            "older processes",
            "those that have the store open go on reading and writing until they close it; "
            "then they refuse it (store.newer) and change nothing",
        ),
    )
