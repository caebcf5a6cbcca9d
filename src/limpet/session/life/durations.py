"""Durations: how long a session has been in each phase, computed from its head."""

from __future__ import annotations

from typing import Final

import msgspec

from limpet.model import EMPTY, Head
from limpet.model.facts.phases import ACTIVE, COUNTED

DAY_SECONDS: Final = 86_400
_US: Final = 1_000_000


class Durations(msgspec.Struct, frozen=True):
    """Seconds in each phase. The clock stops at the end of the session."""

    init: float
    active: float
    suspended: float
    resumed: float
    suspensions: int

    @property
    def total(self) -> float:
        return self.init + self.active + self.suspended + self.resumed

    @property
    def active_ratio(self) -> float:
        """The part of its life in which it could work: active or resumed. 1 if it just began."""
        return (self.active + self.resumed) / self.total if self.total else 1.0

    @property
    def suspension_frequency(self) -> float:
        """Suspensions in a second of its life. Above a threshold it is worth a look."""
        return self.suspensions / self.total if self.total else 0.0

    def exceeds(self, suspensions_per_day: float) -> bool:
        """Whether it was suspended more often than so; once says nothing about how often."""
        a_day = self.suspension_frequency * DAY_SECONDS
        return self.suspensions > 1 and a_day > suspensions_per_day


def durations(head: Head, now_us: int) -> Durations:
    """As far as this head knows, at this time."""
    spent = head.facts.get("durations", EMPTY)
    phase: str = head.facts.get("phase", ACTIVE)
    seconds = {name: spent.get(f"{name}_us", 0) for name in COUNTED}
    if phase in seconds:
        since_us = spent.get("since_us", head.created_us)
        seconds[phase] += max(0, now_us - since_us)
    return Durations(
        **{name: us / _US for name, us in seconds.items()}, suspensions=spent.get("suspensions", 0)
    )
