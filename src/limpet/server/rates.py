"""Rate limits: how often each of many may do something, with a burst that it has saved up."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class RequestRates:
    """So many times a second for each owner, and `burst` at once. The owners that were seen last
    are remembered, `most` of them; others have everything left."""

    def __init__(
        self,
        rate: float,
        *,
        burst: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate, self.burst = rate, burst
        self._most, self._clock = most, clock
        self._left: dict[Hashable, tuple[float, float]] = {}  # what is left, and when; newest last

    def take(self, owner: Hashable) -> float:
        """Take one: 0, or the seconds until there is one again."""
        now = self._clock()
        left, at = self._left.pop(owner, (self.burst, now))
        left = min(self.burst, left + (now - at) * self.rate)
        taken = left >= 1
        self._left[owner] = (left - 1 if taken else left, now)
        if len(self._left) > self._most:
            del self._left[next(iter(self._left))]
        return 0.0 if taken else (1 - left) / self.rate
