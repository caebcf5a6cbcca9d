"""Importing: light, and without what only some need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import holdfast
import holdfast.model.diff


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
    assert not [name for name in loaded if name.startswith("google.protobuf")]
    assert not [name for name in loaded if name.startswith("holdfast.testing")]
    assert not {"holdfast.model.diff", "holdfast.model.merge"} & set(loaded)


def test_typed_state_without_its_extra_names_the_extra() -> None:
    """Everything else works; State alone says what to install, each time it is asked for."""
    program = (
        "import sys; sys.modules['pydantic'] = None\n"
        "import holdfast; holdfast.Ref.to('urn:x', b''); holdfast.reducers.append\n"
        "for name in ('State', 'Record', 'State'):\n"
        "    try:\n        getattr(holdfast, name)\n"
        "    except holdfast.ExtraMissing as error:\n        print(error.package, error.extra)\n"
        "    else:\n        print('found')\n"
        "print(hasattr(holdfast, 'Stat'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("pydantic state\n" * 3 + "False\n", "")


def test_every_public_name_is_there() -> None:
    """What __all__ promises can be had, and is sorted as a reader expects."""
    assert [name for name in holdfast.__all__ if not hasattr(holdfast, name)] == []
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    """Names that are loaded later do not make every name seem to exist."""
    assert holdfast.diff is holdfast.model.diff.diff
    with pytest.raises(AttributeError, match="has no attribute 'dif'"):
        holdfast.dif  # type: ignore[attr-defined]  # noqa: B018  # asked for on purpose
