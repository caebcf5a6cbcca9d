"""The estimate of a server's clock: close where the way is short, and never far off for long."""

from __future__ import annotations

from limpet.store.postgres.writing.clock import DRIFT, ServerClock

OFFSET = 1_700_000_000_000_000


class Steady:
    """A clock of this machine, in microseconds, that a test moves."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def __call__(self) -> int:
        return self.us * 1_000


def ask(clock: ServerClock, steady: Steady, there: int, back: int, offset: int = OFFSET) -> None:
    """One round trip of so long a way to a server that is so far ahead."""
    asked_us = clock.local_us()
    steady.us += there
    server_us = steady.us + offset
    steady.us += back
    clock.learn(asked_us, server_us)


def off(clock: ServerClock, offset: int = OFFSET) -> int:
    """By how much the estimate is wrong."""
    return abs(clock.now_us() - clock.local_us() - offset)


def test_nothing_is_known_before_the_first_reply() -> None:
    """Then the time there is known to half the way."""
    steady = Steady()
    clock = ServerClock(steady)
    assert not clock.known
    ask(clock, steady, 40, 10)
    assert clock.known
    assert off(clock) <= 25


def test_the_shortest_way_tells_best() -> None:
    """A reply that was long on its way does not replace one that was not."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 10, 10)
    for _ in range(20):
        ask(clock, steady, 50_000, 1)
        assert off(clock) <= 10
    ask(clock, steady, 1, 1)
    assert off(clock) <= 1


def test_an_old_estimate_gives_way() -> None:
    """Two clocks part slowly: after a while a longer way tells more than a short one of then."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 1, 1)
    parted = 400
    steady.us += parted * DRIFT
    ask(clock, steady, 200, 200, OFFSET + parted // 2)
    assert off(clock, OFFSET + parted // 2) <= 200


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    """Forwards or back: an estimate that a reply contradicts is not kept, however good it was."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 1, 1)
    for offset in (OFFSET - 3_600_000_000, OFFSET + 3_600_000_000):
        ask(clock, steady, 100, 100, offset)
        assert off(clock, offset) <= 100
