"""Leases: pure changes of a head, and what they make of its runnable time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from limpet.errors import SessionFenced, SessionLocked
from limpet.model.due import NO_REASONS, runnable_us
from limpet.model.facts.priority import PRIORITIZED
from limpet.model.head import Head, advance, blank
from limpet.model.keys import Key
from limpet.model.lease import (
    AHEAD_US,
    Lease,
    acquired,
    admits,
    is_ahead,
    lease_of,
    measured_again,
    released,
    renewed,
    taken,
)
from limpet.model.values import freeze

KEY = Key("shop", "ada", "1")
FREE = replace(blank(KEY, "uid", 5), facts=freeze({"inputs": {"pending": 1, "since_us": 7}}))
HELD = taken(FREE, "w", 10, 100)


def test_a_lease_is_the_runnable_time() -> None:
    """From the taking to the release, whatever is pending."""
    assert (runnable_us(FREE), runnable_us(HELD)) == (7, 100)
    after = released(HELD, 1, 99)
    assert after is not None
    assert runnable_us(after) == 7
    assert (after.fence, after.lease_us, after.worker) == (1, None, None)


def test_a_lease_shows_what_the_head_has() -> None:
    """Key, worker, fence, end, and for how long it was given."""
    lease = lease_of(HELD, 9, 10)
    assert (lease.key, lease.worker, lease.fence, lease.until_us) == (KEY, "w", 1, 100)
    assert lease.lease_seconds == 9
    assert lease.until.timestamp() == pytest.approx(0.0001)


def test_a_lease_cannot_be_changed() -> None:
    """Who holds it shares it with the sessions that write under it."""
    lease = lease_of(HELD, 9, 10)
    with pytest.raises(AttributeError):
        lease.fence = 2  # type: ignore[misc]  # wrong on purpose


def test_a_lease_made_by_hand_needs_no_more_than_its_fence_and_end() -> None:
    """It is renewed for half a minute, is due for nothing, and fits any session with its key."""
    lease = Lease(KEY, "w", 1, 100)
    assert (lease.lease_seconds, lease.claimed_us, lease.reasons) == (30, 0, NO_REASONS)
    assert (lease.lock, lease.uid) == (False, "")


@pytest.mark.parametrize(
    ("head", "fence", "now_us", "fits"),
    [
        (HELD, 1, 99, True),
        (HELD, 1, 100, False),
        (HELD, 2, 50, False),
        (HELD, 0, 50, False),
        (FREE, 0, 50, True),
        (FREE, 1, 50, False),
    ],
)
def test_a_fence_is_good_while_its_lease_is_held(
    head: Head, fence: int, now_us: int, fits: bool
) -> None:
    """At its end a lease is over; 0 stands for a session that was never leased."""
    assert admits(head, fence, now_us) is fits


def test_a_fence_never_falls() -> None:
    """Taken, renewed, released and taken again."""
    assert renewed(HELD, Lease(KEY, "w", 1, 100), 50, 200).fence == 1
    free = released(HELD, 1, 50)
    assert free is not None
    assert taken(free, "w", 250, 300).fence == 2


def test_what_is_not_held_is_neither_renewed_nor_released() -> None:
    """Fence 0 is nobody's, even where it is current."""
    for head, fence, now_us in ((HELD, 1, 100), (HELD, 2, 50), (FREE, 0, 50)):
        with pytest.raises(SessionFenced):
            renewed(head, Lease(KEY, "w", fence, 100), now_us, 200)
        assert released(head, fence, now_us) is None


def test_what_is_held_back_is_due_then_and_held_by_nobody() -> None:
    """The end of a lease without a worker: no fence is good, and anybody may take it."""
    back = released(HELD, 1, 50, 80)
    assert back is not None
    assert (runnable_us(back), back.fence, back.worker) == (80, 1, None)
    assert not admits(back, 1, 60)
    assert acquired(back, "other", 60, 200).fence == 2
    assert released(back, 1, 60) is None


def test_only_the_holder_takes_what_is_held() -> None:
    """Others when it has ended."""
    with pytest.raises(SessionLocked):
        acquired(HELD, "v", 99, 200)
    assert acquired(HELD, "w", 99, 200).fence == 2
    assert acquired(HELD, "v", 100, 200).worker == "v"


def test_events_leave_the_lease_alone() -> None:
    """The log moves the head on; who holds it is not in the log."""
    after = advance(HELD, PRIORITIZED, {"priority": -3}, 60, b"link")
    assert (after.version, after.priority) == (1, -3)
    assert (after.fence, after.lease_us, after.worker) == (1, 100, "w")


def test_a_lease_of_a_clock_that_was_ahead_is_measured_again() -> None:
    """It lasts as long as it was granted for, from now; its holder and fence stay."""
    ahead = taken(FREE, "w", 10 * AHEAD_US, 15 * AHEAD_US)
    assert is_ahead(ahead, 9 * AHEAD_US - 1)
    assert not is_ahead(ahead, 9 * AHEAD_US)
    assert not is_ahead(FREE, 0)
    after = measured_again(ahead, AHEAD_US)
    assert (after.lease_us, after.leased_us) == (6 * AHEAD_US, AHEAD_US)
    assert (after.fence, after.worker) == (ahead.fence, "w")


def test_what_is_held_back_by_a_clock_that_was_ahead_is_measured_again() -> None:
    """A retry has a length too; a lease that has ended has nothing to measure."""
    held = taken(FREE, "w", 10 * AHEAD_US, 15 * AHEAD_US)
    back = released(held, 1, 11 * AHEAD_US, 14 * AHEAD_US)
    assert back is not None
    assert is_ahead(back, 0)
    assert measured_again(back, 0).lease_us == 3 * AHEAD_US
    ended = released(held, 1, 11 * AHEAD_US)
    assert ended is not None
    assert ended.leased_us is None
