"""Bodies besides events: a snapshot or a base is taken only if it is what was written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet import ops
from limpet.model.commit import Base
from limpet.model.fold import Fold, ScopeValue, ScopeWrite
from limpet.model.head import Head, blank, buried
from limpet.model.keys import Key
from limpet.model.values import FrozenDict, checksum, freeze
from limpet.store.coding import bodies
from limpet.store.coding.codec import Damaged

KEY, LINK = Key("shop", "ada", "1"), b"l" * 32
FIELDS, VERSIONS = FrozenDict({"n": 1, "text": "x"}), FrozenDict({"n": 3, "text": 2})
FACTS = freeze(
    {"labels": {"plan": "gold"}, "timers": {"t": {"at_us": 5, "kind": "wake", "seq": 2}}}
)
HEAD = Head(KEY, "uid", 3, LINK, 10, 30, 20, FACTS)
FOLD = Fold(HEAD, FIELDS, VERSIONS)
START = blank(KEY, "uid", 10)
BASE = Base(Key("shop", "bob", "p"), "parent", 7, LINK, FIELDS, VERSIONS, checksum(FIELDS))
CHANGES = [{"n": 2, "text": "x"}, {"n": 1}, {"n": 1.0, "text": "x"}]


def test_a_snapshot_reads_back_as_it_was_written() -> None:
    """State, versions, facts and times, and all of it read-only."""
    found = bodies.snapshot_from(bodies.snapshot_body(FOLD), START, 3, LINK)
    assert found == FOLD
    assert type(found.fields) is type(found.versions) is type(found.head.facts) is FrozenDict


@pytest.mark.parametrize("changed", CHANGES)
def test_a_snapshot_whose_state_has_changed_is_refused(changed: dict[str, object]) -> None:
    """It is well formed in every other respect: only the SHA-256 inside can tell."""
    body = msgspec.json.decode(bodies.snapshot_body(FOLD))
    body["fields"] = changed
    with pytest.raises(Damaged, match="checksum"):
        bodies.snapshot_from(msgspec.json.encode(body), START, 3, LINK)


@pytest.mark.parametrize("link", [b"x" * 32, None])
def test_a_snapshot_of_another_history_is_refused(link: bytes | None) -> None:
    """The log has another event at its seq, or none."""
    with pytest.raises(Damaged, match="does not have"):
        bodies.snapshot_from(bodies.snapshot_body(FOLD), START, 3, link)


def test_a_base_reads_back_as_it_was_written() -> None:
    """State, versions, and what it stands on."""
    assert bodies.base_from(bodies.base_body(BASE)) == BASE


@pytest.mark.parametrize("changed", CHANGES)
def test_a_base_whose_state_has_changed_is_refused(changed: dict[str, object]) -> None:
    """Its checksum is inside and is compared before anything is folded onto it."""
    body = msgspec.json.decode(bodies.base_body(BASE))
    body["fields"] = changed
    with pytest.raises(Damaged, match="checksum"):
        bodies.base_from(msgspec.json.encode(body))


@pytest.mark.parametrize("part", [bodies.snapshot_body(FOLD), bodies.base_body(BASE)])
def test_members_that_a_later_release_adds_are_passed_over(part: bytes) -> None:
    """A reader takes what it knows."""
    body = msgspec.json.encode({**msgspec.json.decode(part), "later": [1]})
    if b"parent" in body:
        assert bodies.base_from(body) == BASE
    else:
        assert bodies.snapshot_from(body, START, 3, LINK) == FOLD


@pytest.mark.parametrize(
    "change",
    [
        {"key": Key("shop", "ada", "2")},
        {"uid": "other"},
        {"version": 4},
        {"link": b"x" * 32},
        {"created_us": 11},
        {"updated_us": 31},
        {"active_us": 21},
        {"floor": 1},
        {"deleted_us": 41},
        {"ending": "moved"},
    ],
    ids=str,
)
def test_the_checksum_of_a_tombstone_covers_all_it_keeps(change: dict[str, Any]) -> None:
    """Whatever changes in the row, the checksum is another."""
    tomb = buried(HEAD, 40)
    assert bodies.tomb_crc(tomb) != bodies.tomb_crc(msgspec.structs.replace(tomb, **change))


def test_a_shared_name_is_written_whole_until_its_changes_are_smaller() -> None:
    """Whole up to 512 bytes, and again once the changes since then outweigh it; a deleted one is
    nothing, and what comes after it is whole."""
    key, op = ("app", "", "app:n"), ops.Add(("app:n",), ["x"])
    step = msgspec.json.encode(op)

    def body(size: int, since_base: int, *, deleted: bool = False) -> tuple[int, bytes, int]:
        at = ScopeValue(2, None, deleted)
        return bodies.scope_body(ScopeWrite(key, at, op, 3, b"w" * size), since_base)

    assert body(0, 700, deleted=True) == (bodies.DELETED, b"", -1)
    assert body(5_000, -1) == (bodies.WHOLE, b"w" * 5_000, 0)
    assert body(512, 0) == (bodies.WHOLE, b"w" * 512, 0)
    assert body(513, 0) == (bodies.BY_OP, step, len(step))
    assert body(700 + len(step), 700) == (bodies.WHOLE, b"w" * (700 + len(step)), 0)
    assert body(701 + len(step), 700) == (bodies.BY_OP, step, 700 + len(step))


def test_a_stored_change_reads_back_with_values_that_nobody_can_change() -> None:
    """Handles share what was read: one of them must not change it for the others."""
    op = bodies.scope_op_from(msgspec.json.encode(ops.Set(("app:n",), {"list": [1]})))
    assert isinstance(op, ops.Set)
    assert op == ops.Set(("app:n",), {"list": [1]})
    with pytest.raises(TypeError):
        op.value["list"].append(2)
