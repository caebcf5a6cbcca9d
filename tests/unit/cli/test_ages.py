"""Times for people."""

from __future__ import annotations

import pytest

from limpet.cli.ages import age, instant, timed

NOW = 1_777_629_600_000_000  # 2026-05-01T10:00:00Z
SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000


@pytest.mark.parametrize(
    ("past_us", "told"),
    [
        (0, "now"),
        (SECOND - 1, "now"),
        (SECOND, "1 s ago"),
        (MINUTE - 1, "59 s ago"),
        (MINUTE, "1 min ago"),
        (HOUR - 1, "59 min ago"),
        (3 * HOUR + 59 * MINUTE, "3 h ago"),
        (DAY - 1, "23 h ago"),
        (DAY, "1 d ago"),
        (1_000 * DAY, "1,000 d ago"),
        (-SECOND + 1, "now"),
        (-SECOND, "in 1 s"),
        (-5 * MINUTE, "in 5 min"),
        (-2 * DAY, "in 2 d"),
    ],
)
def test_an_age_is_in_the_largest_unit_that_fits(past_us: int, told: str) -> None:
    """Rounded down, in the past and in the future."""
    assert age(NOW - past_us, NOW) == told


def test_a_time_has_its_age_beside_it() -> None:
    """In UTC, to the second."""
    assert timed(NOW, NOW + 3 * HOUR) == "2026-05-01T10:00:00Z (3 h ago)"


def test_an_instant_is_exact_and_may_be_unknown() -> None:
    """A place in a history, as it is written and read; of a removed event nothing is known."""
    assert instant(NOW + 1) == "2026-05-01T10:00:00.000001Z"
    assert instant(0) == "-"
