"""The store's clock: the wall, unless the wall is mad."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from limpet.store.clock import JUMP_SECONDS_MAX, Clock
from limpet.testing.clock import START, FakeClock

DAY = timedelta(seconds=JUMP_SECONDS_MAX)
SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)


@pytest.fixture
def fake() -> FakeClock:
    return FakeClock()


def test_it_reads_the_wall_in_microseconds(fake: FakeClock) -> None:
    """Ordinary time is told as it is."""
    clock = fake.clock()
    assert clock() == int(START.timestamp()) * 1_000_000
    fake.advance(timedelta(seconds=1.5))
    assert clock() == fake.now_us


@pytest.mark.parametrize("leap", [DAY, SECOND, -SECOND, -DAY, -400 * DAY])
def test_a_wall_that_is_set_within_a_day_or_back_is_believed(
    fake: FakeClock, leap: timedelta
) -> None:
    """An operator or NTP may correct it."""
    clock = fake.clock()
    fake.leap(leap)
    assert clock() == fake.now_us


def test_a_leap_of_more_than_a_day_is_not_believed(fake: FakeClock) -> None:
    """Time goes on as the steady clock says."""
    clock = fake.clock()
    before = clock()
    fake.leap(DAY + TICK)
    assert clock() == before
    fake.advance(SECOND)
    assert clock() == before + 1_000_000


def test_a_mad_wall_that_comes_to_its_senses_is_believed_again(fake: FakeClock) -> None:
    """Nothing is left of the leap once the wall is right."""
    clock = fake.clock()
    fake.leap(400 * DAY)
    clock()
    fake.leap(-400 * DAY)
    fake.advance(SECOND)
    assert clock() == fake.now_us


def test_a_long_sleep_is_no_leap(fake: FakeClock) -> None:
    """The steady clock runs on while the machine sleeps, so the wall is right to be far ahead."""
    clock = fake.clock()
    fake.advance(30 * DAY)
    assert clock() == fake.now_us


def test_a_wall_set_far_back_may_be_set_right_again(fake: FakeClock) -> None:
    """A correction of an earlier wrong step is not a leap into the future."""
    clock = fake.clock()
    fake.leap(-30 * DAY)
    clock()
    fake.leap(30 * DAY)
    assert clock() == fake.now_us


def test_the_real_clock_tells_the_real_time() -> None:
    """Without arguments it reads the system's clocks."""
    before = time.time_ns() // 1_000
    assert before <= Clock()() <= time.time_ns() // 1_000
