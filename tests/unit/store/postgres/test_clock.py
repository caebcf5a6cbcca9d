"""What is known of a server's clock: never ahead of it, and close where the way back is short."""

from __future__ import annotations

from limpet.store.postgres.writing.clock import DRIFT, STEP_US, ServerClock

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


def behind(clock: ServerClock, offset: int = OFFSET) -> int:
    """By how much it is later on the server."""
    return clock.local_us() + offset - clock.now_us()


def test_the_first_reply_tells_the_time() -> None:
    """It is known to the way back."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 40, 10)
    assert behind(clock) == 10


def test_it_is_never_ahead_of_the_server() -> None:
    """However long a request was on its way there: what is dated by it is due there at once."""
    steady = Steady()
    clock = ServerClock(steady)
    for there, back in ((50_000, 1), (1, 50_000), (300, 200), (9, 0)):
        ask(clock, steady, there, back)
        assert 0 <= behind(clock) <= back


def test_the_shortest_way_back_tells_best() -> None:
    """A reply that was long on its way does not replace one that was not."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 10, 10)
    learnt_us = steady.us
    for _ in range(20):
        ask(clock, steady, 1, 50_000)
        assert behind(clock) == 10 + (steady.us - learnt_us) // DRIFT
    ask(clock, steady, 50_000, 1)
    assert behind(clock) == 1


def test_clocks_that_part_slowly_are_followed() -> None:
    """A later reply corrects the estimate as soon as it shows that it is wrong."""
    for parted in (-400, 400):
        steady = Steady()
        clock = ServerClock(steady)
        ask(clock, steady, 1, 1)
        ask(clock, steady, 200, 200, OFFSET + parted)
        assert behind(clock, OFFSET + parted) == 200


def test_a_clock_here_that_is_too_fast_does_not_run_ahead() -> None:
    """A reply on a long way would contradict it only when it is ahead by as long as the way."""
    steady = Steady()
    clock = ServerClock(steady)
    for second in range(600):
        offset = OFFSET - second * (1_000_000 // DRIFT)
        ask(clock, steady, 50_000, 50_000, offset)
        steady.us += 900_000
        assert 0 <= behind(clock, offset - 1_000_000 // DRIFT) <= 50_100


def test_what_is_known_does_not_age_without_end() -> None:
    """After a night without a reply it is behind by a step, and the next reply corrects it."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 1, 1)
    steady.us += 10 * STEP_US * DRIFT
    assert behind(clock) == STEP_US + 1
    ask(clock, steady, 300, 300)
    assert behind(clock) == 300


def test_a_clock_that_was_set_is_believed_at_once() -> None:
    """Forwards or back: an estimate that a reply contradicts is not kept, however good it was."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 1, 1)
    for offset in (OFFSET - 3_600_000_000, OFFSET + 3_600_000_000):
        ask(clock, steady, 100, 100, offset)
        assert behind(clock, offset) == 100


def test_a_clock_that_was_corrected_a_little_stands_still() -> None:
    """Time is not taken back for a moment; set back by more, it is."""
    steady = Steady()
    clock = ServerClock(steady)
    ask(clock, steady, 1, 1)
    before = clock.now_us()
    ask(clock, steady, 1, 1, OFFSET - STEP_US // 2)
    assert clock.now_us() == before
    ask(clock, steady, 1, 1, OFFSET - 2 * STEP_US)
    assert clock.now_us() < before - STEP_US
