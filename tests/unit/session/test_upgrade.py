"""Bringing state forward: which names a migration may leave."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from limpet import Key, MigrationRegistry, SchemaVersion, errors
from limpet.model.events import Draft
from limpet.model.head import blank
from limpet.model.values import freeze
from limpet.session.schema.upgrade import Upgrade


def migrated(before: dict[str, Any], after: dict[str, Any]) -> Draft | None:
    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", lambda _: after)
    head = structs.replace(
        blank(Key("a", "u", "i"), "uid", 0), facts=freeze({"schema_version": "1.0.0"})
    )
    return Upgrade(SchemaVersion.parse("2.0.0"), registry).migration(head, freeze(before))


@pytest.mark.parametrize("name", ["apps:b", "App:x", "app:b", "user:b", "temp:b", ""])
def test_a_migration_makes_fields_of_the_session_only(name: str) -> None:
    """What others share, and what has an unknown scope, is not its to write."""
    with pytest.raises(errors.MigrationFailed, match="not one of the session's own fields"):
        migrated({"n": 1}, {"n": 1, name: 1})


def test_a_name_that_an_earlier_release_stored_may_stay_or_go() -> None:
    """A session that has one is not stuck at its old version."""
    kept = migrated({"apps:b": 1, "n": 1}, {"apps:b": 1, "n": 2})
    assert kept is not None
    assert [op.path for op in kept.ops] == [("n",)]
    gone = migrated({"apps:b": 1, "n": 1}, {"n": 1})
    assert gone is not None
    assert [(type(op).__name__, op.path) for op in gone.ops] == [("Delete", ("apps:b",))]
