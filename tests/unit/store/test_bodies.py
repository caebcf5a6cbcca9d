"""Bodies besides events: what a snapshot holds is taken only if it is what was written."""

from __future__ import annotations

import msgspec
import pytest

from limpet.model.values import FrozenDict
from limpet.store import bodies
from limpet.store.codec import Damaged

FIELDS, VERSIONS = FrozenDict({"n": 1, "text": "x"}), FrozenDict({"n": 3, "text": 2})


def test_a_snapshot_reads_back_as_it_was_written() -> None:
    """State and versions, and both read-only."""
    fields, versions = bodies.snapshot_from(bodies.snapshot_body(FIELDS, VERSIONS))
    assert (fields, versions) == (FIELDS, VERSIONS)
    assert type(fields) is FrozenDict
    assert type(versions) is FrozenDict


@pytest.mark.parametrize("changed", [{"n": 2, "text": "x"}, {"n": 1}, {"n": 1.0, "text": "x"}])
def test_a_snapshot_whose_state_has_changed_is_refused(changed: dict[str, object]) -> None:
    """It is well formed in every other respect: only the SHA-256 inside can tell."""
    body = msgspec.json.decode(bodies.snapshot_body(FIELDS, VERSIONS))
    body["fields"] = changed
    with pytest.raises(Damaged, match="checksum"):
        bodies.snapshot_from(msgspec.json.encode(body))
