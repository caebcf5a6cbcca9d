"""The fake clock: still until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from limpet.testing.clock import FakeClock


def test_it_stands_still() -> None:
    """Reading it moves nothing."""
    clock = FakeClock(datetime(2031, 5, 1, tzinfo=UTC))
    assert clock.wall() == clock.wall() == clock.now_us * 1_000
    assert clock.steady() == clock.steady()
    assert clock.now_us == int(datetime(2031, 5, 1, tzinfo=UTC).timestamp()) * 1_000_000


def test_passing_time_moves_both_hands_and_a_leap_only_the_wall() -> None:
    """So a test can tell time from a clock that was set."""
    clock = FakeClock()
    wall, steady = clock.wall(), clock.steady()
    clock.advance(timedelta(seconds=2))
    assert (clock.wall() - wall, clock.steady() - steady) == (2 * 10**9, 2 * 10**9)
    clock.leap(timedelta(days=-1))
    assert clock.steady() - steady == 2 * 10**9
    assert clock.wall() < wall


def test_time_does_not_pass_backwards() -> None:
    """Only a leap may go back."""
    with pytest.raises(ValueError, match="leap"):
        FakeClock().advance(timedelta(seconds=-1))
