"""Leases: who may run a session, until when, and the fence that identifies the current lease.

A lease is not an event and does not change the version: it says who may write as the runner, not
what happened. Its number, the fence, only grows, so a commit with an old fence is always
recognized.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.errors import SessionFenced, SessionLocked
from limpet.model.due import NO_REASONS, Reasons, is_unchanged, reasons_at, runnable_us
from limpet.model.events import to_time
from limpet.model.facts.phases import TERMINAL
from limpet.model.facts.running.endings import has_ended, is_held
from limpet.model.facts.running.runs import Status, is_dead, run_in, waiting_status
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.limits import LEFT_SECONDS, WORKER_CHARS_MAX

LEFT_US: Final = round(LEFT_SECONDS * 1_000_000)
ALONE: Final = "/alone"  # ends the name of a holder that runs nothing else
WITHDRAWN: Final = ""  # in place of the holder of a lease that ran out while it lived
AHEAD_US: Final = 1_000_000  # a lease granted this far ahead of the clock is measured again


class Expired(msgspec.Struct, frozen=True, gc=False):
    """A lease that ran out unreleased: whoever claims the session next learns of it."""

    worker: str
    leased_us: int  # when it was granted, or renewed for the last time
    until_us: int
    excused: bool = False  # its holder lives: it is not counted as a death


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The exclusive right to run one session, until it expires, is released or is renewed."""

    key: Key
    worker: str
    fence: int
    until_us: int
    lease_seconds: float = 30  # the length it was granted for; renewing grants it again
    claimed_us: int = 0  # when it was granted, by the store's clock; renewing keeps it
    reasons: Reasons = NO_REASONS  # what made the session due then
    lock: bool = False  # acquired by key with lp.work.lock, due or not
    uid: str = ""  # the session it is of: another one under the same key is not leased by it
    expired: Expired | None = None  # the lease before this one, if its holder never ended it

    @property
    def until(self) -> datetime:
        """The time at which the lease ends, unless it is renewed."""
        return to_time(self.until_us)

    @property
    def claimed_at(self) -> datetime:
        """The time the lease was granted, by the store's clock. Renewing does not change it."""
        return to_time(self.claimed_us)

    @property
    def timers(self) -> tuple[str, ...]:
        """The names of the wake timers that were due at the claim, the most overdue first."""
        return tuple([name for name, _ in self.reasons.timers])


def lease_of(
    head: Head, lease_seconds: float, now_us: int, *, lock: bool = False, before: Head | None = None
) -> Lease:
    """The lease that a leased head describes, granted now for this long; `before` is the head
    without it."""
    assert head.worker is not None
    assert head.lease_us is not None
    reasons = reasons_at(head, now_us)
    until = (head.fence, head.lease_us, lease_seconds, now_us)
    expired = None
    if before is not None:
        expired = expired_lease(before.worker, before.lease_us, before.leased_us, now_us)
    return Lease(head.key, head.worker, *until, reasons, lock, head.uid, expired)


def expired_lease(
    worker: str | None, lease_us: int | None, leased_us: int | None, now_us: int
) -> Expired | None:
    """Return the lease that a head describes if it ran out unreleased."""
    if worker is None or lease_us is None or now_us < lease_us:
        return None
    since_us = lease_us if leased_us is None else leased_us
    return Expired(worker, since_us, lease_us, excused=worker == WITHDRAWN)


def alone(lease: Lease) -> Lease:
    """The lease as its holder renews it while it runs nothing else: if that dies, this session was
    the only one in flight."""
    return msgspec.structs.replace(lease, worker=_holder(lease.worker) + ALONE)


def is_alone(worker: str) -> bool:
    """True if the holder of a lease ran nothing else under its name."""
    return worker.endswith(ALONE)


def is_holder(worker: str, name: str) -> bool:
    """True if this worker is the one of this name, whether it runs the session alone or not."""
    return _holder(worker) == _holder(name)


def _holder(worker: str) -> str:
    return worker.removesuffix(ALONE)[: WORKER_CHARS_MAX - len(ALONE)]


def lasting(lease: Lease, until_us: int, lease_seconds: float) -> Lease:
    """Return the lease with a later end. The time and reason of its grant stay."""
    return msgspec.structs.replace(lease, until_us=until_us, lease_seconds=lease_seconds)


def is_leased(head: Head, now_us: int) -> bool:
    """True if the session is leased now. At its end time a lease is over."""
    return head.worker is not None and head.lease_us is not None and now_us < head.lease_us


def admits(head: Head, fence: int, now_us: int) -> bool:
    """True if a commit with this fence may be recorded: its lease is held now.

    Fence 0 means that the session was never leased.
    """
    return fence == head.fence and (fence == 0 or is_leased(head, now_us))


def taken(head: Head, worker: str, now_us: int, until_us: int) -> Head:
    """The head under a new lease. Its fence invalidates every earlier lease."""
    return with_lease(head, head.fence + 1, until_us, worker, now_us)


def acquired(head: Head, worker: str, now_us: int, until_us: int) -> Head:
    """Like `taken`, if nobody else holds the lease. Raises SessionLocked, SessionMoved."""
    head.check_here()
    if head.worker != worker and is_leased(head, now_us):
        raise locked(head)
    return taken(head, worker, now_us, until_us)


def renewed(head: Head, lease: Lease, now_us: int, until_us: int) -> Head:
    """The head with the same lease and a later end. Raises SessionFenced if it is not held."""
    fence = lease.fence
    if fence == 0 or not is_of(lease, head) or not admits(head, fence, now_us):
        raise SessionFenced(head.key, fence, head.fence)
    return with_lease(head, fence, until_us, renamed(head.worker, lease.worker), now_us)


def renamed(held: str | None, asked: str) -> str | None:
    """The name of a holder that renews: it says whether it runs the session alone."""
    return asked if held is not None and is_holder(held, asked) else held


def withdrawn(head: Head, lease: Lease, now_us: int) -> Head | None:
    """The head after its holder came back too late, and before anybody else: the lease is over, but
    the next claim counts no death. None if somebody else came before."""
    if lease.fence == 0 or head.fence != lease.fence or not is_of(lease, head):
        return None
    if head.worker in (None, WITHDRAWN) or is_leased(head, now_us):
        return None
    return with_lease(head, head.fence, head.lease_us, WITHDRAWN, head.leased_us)


def released(head: Head, fence: int, now_us: int, retry_us: int | None = None) -> Head | None:
    """The head without its lease; None if the lease is no longer held.

    With a retry time, the session is not due before it; a lease end without a worker stores that.
    """
    if fence == 0 or not admits(head, fence, now_us):
        return None
    return with_lease(head, fence, retry_us, None, None if retry_us is None else now_us)


def given_back(head: Head, lease: Lease, now_us: int, retry_us: int | None = None) -> Head | None:
    """Like `released`, but a session that is still due for the same reasons is held back briefly.

    Otherwise the next claim would return it at once, in an endless loop.
    """
    if not is_of(lease, head):
        return None
    if retry_us is None:
        retry_us = left_until(head, lease, now_us)
    return released(head, lease.fence, now_us, retry_us)


def is_of(lease: Lease, head: Head) -> bool:
    """True if the lease is of this very session, not of an earlier one that had its key."""
    return lease.uid in ("", head.uid)


def left_until(head: Head, lease: Lease, now_us: int) -> int | None:
    """Return until when a session is held back if its lease ends now, as it is left; None: it is
    not."""
    unchanged = not lease.lock and is_unchanged(lease.reasons, head, now_us)
    return now_us + LEFT_US if unchanged else None


def is_ahead(head: Head, now_us: int) -> bool:
    """True if the lease was granted by a clock that has been set back since.

    Its end may then be hours away although it was granted for seconds.
    """
    return head.leased_us is not None and head.leased_us > now_us + AHEAD_US


def measured_again(head: Head, now_us: int) -> Head:
    """The head with the same lease, for as long as it was granted, counted from now."""
    assert head.lease_us is not None
    assert head.leased_us is not None
    until_us = now_us + (head.lease_us - head.leased_us)
    return with_lease(head, head.fence, until_us, head.worker, now_us)


def with_lease(
    head: Head,
    fence: int,
    lease_us: int | None,
    worker: str | None,
    leased_us: int | None,
) -> Head:
    return msgspec.structs.replace(
        head, fence=fence, lease_us=lease_us, worker=worker, leased_us=leased_us
    )


def locked(head: Head) -> SessionLocked:
    """The error that names the holder."""
    assert head.worker is not None
    assert head.lease_us is not None
    return SessionLocked(head.key, head.worker, to_time(head.lease_us))


# --- readiness -----------------------------------------------------------------------------------


# leased: to a worker. due: it can be claimed now. blocked: a person, a tool or a child has to
# answer, or more is to be granted. dead: kept until somebody requeues it. held: retried later.
Readiness: TypeAlias = Literal["leased", "due", "blocked", "dead", "held", "idle"]
READINESS: Final[tuple[Readiness, ...]] = get_args(Readiness)


def readiness(head: Head, now_us: int) -> Readiness:
    """Return what a session needs next at this time."""
    if is_leased(head, now_us):
        return "leased"
    at_us = runnable_us(head)
    if at_us is not None and at_us <= now_us:
        return "due"
    run = run_in(head.facts)
    if is_held(head.facts):
        return "dead"
    if not has_ended(head.facts):  # nobody can answer or requeue one that has
        if is_dead(head.facts):
            return "dead"
        if "paused" in run or "needs" in run:  # it would be due if enough were left
            return "blocked"
    if at_us is None or (head.lease_us is None and run.get("stop") != "rescheduling"):
        return "idle"
    return "held"


def status_at(head: Head, now_us: int) -> Status:
    """Return the status of a session at this time. It runs while a worker holds its lease."""
    if head.phase in TERMINAL:
        return "terminated"
    return "running" if is_leased(head, now_us) else waiting_status(head.facts)
