"""Reasons: what a session was claimed for, and what of it is left when it is given back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from limpet.model.due import NO_REASONS, Reasons, is_unchanged, reasons_at
from limpet.model.facts.timers import Timer
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.lease import given_back, lease_of, taken
from limpet.model.limits import LEFT_SECONDS
from limpet.model.values import freeze

FREE = blank(Key("shop", "ada", "1"), "uid", 5)
NOW = 1_000


def with_facts(
    timers: Mapping[str, Timer] | None = None, pending: int = 0, since_us: int | None = None
) -> Head:
    """A head with these timers and inputs."""
    facts: dict[str, Any] = {}
    if timers:
        facts["timers"] = {name: msgspec.structs.asdict(timer) for name, timer in timers.items()}
    if pending:
        facts["inputs"] = {"pending": pending, "since_us": since_us}
    return replace(FREE, facts=freeze(facts))


TIMERS = {"a": Timer(900), "b": Timer(100), "end": Timer(50, "deadline")}
DUE = with_facts(TIMERS)
ASKED = with_facts(pending=2, since_us=700)


def test_reasons_are_due_wake_timers_and_pending_inputs() -> None:
    """The longest due first; neither deadlines nor what is still to come."""
    later = with_facts({**TIMERS, "later": Timer(NOW + 1)}, 1, 3)
    assert reasons_at(later, NOW) == Reasons((("b", 100), ("a", 900)), 1, 3)
    assert reasons_at(FREE, NOW) == NO_REASONS


def test_what_was_left_is_unchanged_and_what_is_new_is_not() -> None:
    """A timer fewer is the same; a timer more, another time, an input more or fewer are not."""
    given = reasons_at(DUE, NOW)
    assert is_unchanged(given, DUE, NOW)
    assert is_unchanged(given, with_facts({"a": Timer(900)}), NOW)
    assert not is_unchanged(given, with_facts({"a": Timer(901)}), NOW)
    assert not is_unchanged(given, with_facts({"c": Timer(900)}), NOW)
    assert not is_unchanged(given, with_facts(TIMERS, 1, 950), NOW)
    asked = reasons_at(ASKED, NOW)
    assert is_unchanged(asked, ASKED, NOW)
    assert not is_unchanged(asked, with_facts(None, 3, 700), NOW)
    assert not is_unchanged(asked, with_facts(None, 1, 700), NOW)
    assert not is_unchanged(asked, with_facts(None, 2, 950), NOW)


def test_what_is_not_due_is_not_left() -> None:
    """Nothing to do, or nothing yet: its own time stays."""
    assert not is_unchanged(NO_REASONS, FREE, NOW)
    assert not is_unchanged(reasons_at(ASKED, NOW), with_facts(None, 2, NOW + 1), NOW)
    assert not is_unchanged(NO_REASONS, with_facts({"a": Timer(NOW + 1)}), NOW)


def test_a_claim_left_as_found_is_held_back_for_just_the_moment() -> None:
    """From the release on; a lock, and a time to retry, are taken as they are."""
    head = taken(DUE, "w", NOW, NOW + 60)
    lease = lease_of(head, 60, NOW)
    held = given_back(head, lease, NOW + 5)
    assert held is not None
    assert (held.lease_us, held.worker) == (NOW + 5 + 1_000_000 * LEFT_SECONDS, None)
    for other, retry_us in ((replace(lease, lock=True), None), (lease, NOW + 7)):
        after = given_back(head, other, NOW + 5, retry_us)
        assert after is not None
        assert after.lease_us == retry_us
