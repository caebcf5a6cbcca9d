"""Pace: whether the next commits are few and quick enough to be made on the event loop itself.

Handing a commit to the writer's thread wakes a sleeping core twice, which takes a good part of the
time that a quick disk needs. On the loop, a commit keeps everybody else waiting. So only small ones
are made there, and only while small ones are quick. Every small commit counts, wherever it was
made: a disk that has become slow moves them to the thread within two commits; quick again, back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter
from typing import Final, Protocol

HERE_JOBS_MAX: Final = 16
HERE_BYTES_MAX: Final = 64 * 2**10
HERE_SECONDS_MAX: Final = 0.001  # on average
_WEIGHT: Final = 0.25  # of the newest commit in the average
# One commit counts for no more: after a single stall a few quick ones are enough to come back.
_SECONDS_COUNTED_MAX: Final = 0.005


class Sized(Protocol):
    """One caller's commits."""

    size: int  # the bytes of their events' bodies


class Pace:
    """What was measured of one store's commits. `enabled` False: the thread makes all of them."""

    __slots__ = ("_turn", "average", "commits", "crowd", "enabled", "longest", "timer")

    def __init__(self, *, enabled: bool = True, timer: Callable[[], float] = perf_counter) -> None:
        self.enabled, self.timer = enabled, timer
        self.crowd = 1  # how many callers the last commit served
        self.average = 0.0  # seconds of small commits
        self.longest = 0.0  # seconds for which a loop was held
        self.commits = 0  # made on a loop
        # The last turn that began to commit: the thread of its loop, and when. Others are not
        # known to be young.
        self._turn = (0, 0.0)

    def admits(self, jobs: Sequence[Sized]) -> bool:
        """Whether these may be committed on the loop."""
        if not self.enabled or self.crowd > HERE_JOBS_MAX or self.average > HERE_SECONDS_MAX:
            return False
        return _are_small(jobs)

    def note(self, jobs: Sequence[Sized], seconds: float) -> None:
        """The thread has made a commit for these callers, which took so long."""
        self.crowd = len(jobs)
        if _are_small(jobs):
            self._count(seconds)

    def begin_turn(self) -> None:
        """A loop is about to commit what one of its turns has gathered."""
        self._turn = (get_ident(), self.timer())

    def is_turn_young(self) -> bool:
        """Whether this loop did so such a short time ago that it may make one more commit before it
        looks after anybody else."""
        thread, began = self._turn
        if not self.enabled or self.crowd > HERE_JOBS_MAX or thread != get_ident():
            return False
        return self.timer() - began < HERE_SECONDS_MAX

    def held(self, jobs: Sequence[Sized], seconds: float) -> None:
        """A loop has made a commit for these callers, which took so long, and was held since its
        turn began."""
        self.crowd = len(jobs)
        self._count(seconds)  # whoever is admitted is small
        self.commits += 1
        thread, began = self._turn
        if thread == get_ident():  # else another loop has begun one meanwhile
            seconds = self.timer() - began
        if seconds > self.longest:
            self.longest = seconds

    def _count(self, seconds: float) -> None:
        counted = seconds if seconds < _SECONDS_COUNTED_MAX else _SECONDS_COUNTED_MAX
        self.average += (counted - self.average) * _WEIGHT


def _are_small(jobs: Sequence[Sized]) -> bool:
    if len(jobs) == 1:
        return jobs[0].size <= HERE_BYTES_MAX
    return len(jobs) <= HERE_JOBS_MAX and sum([job.size for job in jobs]) <= HERE_BYTES_MAX
