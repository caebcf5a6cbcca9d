"""Importing: light, and without what only some need."""

from __future__ import annotations

import subprocess
import sys

import holdfast


def test_an_import_brings_in_nothing_that_was_not_asked_for() -> None:
    """Neither test tools nor the packages of extras are loaded before they are used."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, holdfast; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    roots = {name.split(".")[0] for name in loaded}
    assert not roots & {"pytest", "hypothesis", "cryptography", "rich", "pydantic", "asyncpg"}
    assert not [name for name in loaded if name.startswith("holdfast.testing")]
    assert not {"holdfast.model.diff", "holdfast.model.merge"} & set(loaded)


def test_every_public_name_is_there() -> None:
    """What __all__ promises can be had, and is sorted as a reader expects."""
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
