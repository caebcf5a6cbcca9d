"""Reasons: what a session was claimed for, and what of it is left when it is given back."""

from __future__ import annotations

from msgspec.structs import replace

from limpet.model.facts.timers import Timer
from limpet.model.head import blank
from limpet.model.keys import Key
from limpet.model.lease import LEFT_US, given_back, lease_of, taken
from limpet.model.reasons import NONE, Reasons, is_unchanged, reasons_at

FREE = blank(Key("shop", "ada", "1"), "uid", 5)
NOW = 1_000
DUE = replace(FREE, timers={"a": Timer(900), "b": Timer(100), "end": Timer(50, "deadline")})
ASKED = replace(FREE, pending=2, pending_us=700)


def test_reasons_are_due_wake_timers_and_pending_inputs() -> None:
    """The longest due first; neither deadlines nor what is still to come."""
    later = replace(DUE, timers={**DUE.timers, "later": Timer(NOW + 1)}, pending=1, pending_us=3)
    assert reasons_at(later, NOW) == Reasons((("b", 100), ("a", 900)), 1, 3)
    assert reasons_at(FREE, NOW) == NONE


def test_what_was_left_is_unchanged_and_what_is_new_is_not() -> None:
    """A timer fewer is the same; a timer more, another time, an input more or fewer are not."""
    given = reasons_at(DUE, NOW)
    assert is_unchanged(given, DUE, NOW)
    assert is_unchanged(given, replace(DUE, timers={"a": Timer(900)}), NOW)
    assert not is_unchanged(given, replace(DUE, timers={"a": Timer(901)}), NOW)
    assert not is_unchanged(given, replace(DUE, timers={"c": Timer(900)}), NOW)
    assert not is_unchanged(given, replace(DUE, pending=1, pending_us=950), NOW)
    asked = reasons_at(ASKED, NOW)
    assert is_unchanged(asked, ASKED, NOW)
    assert not is_unchanged(asked, replace(ASKED, pending=3), NOW)
    assert not is_unchanged(asked, replace(ASKED, pending=1), NOW)
    assert not is_unchanged(asked, replace(ASKED, pending_us=950), NOW)


def test_what_is_not_due_is_not_left() -> None:
    """Nothing to do, or nothing yet: its own time stays."""
    assert not is_unchanged(NONE, FREE, NOW)
    assert not is_unchanged(reasons_at(ASKED, NOW), replace(ASKED, pending_us=NOW + 1), NOW)
    assert not is_unchanged(NONE, replace(FREE, timers={"a": Timer(NOW + 1)}), NOW)


def test_a_claim_left_as_found_is_held_back_for_just_the_moment() -> None:
    """From the release on; a lock, and a time to retry, are taken as they are."""
    head = taken(DUE, "w", NOW + 60)
    lease = lease_of(head, 60, NOW)
    held = given_back(head, lease, NOW + 5)
    assert held is not None
    assert (held.lease_us, held.worker) == (NOW + 5 + LEFT_US, None)
    for other, retry_us in ((replace(lease, lock=True), None), (lease, NOW + 7)):
        after = given_back(head, other, NOW + 5, retry_us)
        assert after is not None
        assert after.lease_us == retry_us
