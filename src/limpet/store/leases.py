"""Leases: what a store promises to workers.

`Leases` is the second protocol beside `Store`. It leases sessions that are due, or any one session.
Who may run a session is not part of its log, so no method here records an event or changes a
version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from limpet.errors import LimpetError
from limpet.model import Key, Lease
from limpet.store.protocol import Store


@runtime_checkable
class Leases(Protocol):
    """Leases with fences.

    At any moment a session is leased to one worker at most, across all callers, processes and
    machines; time is the store's. Each new lease has the session's last fence plus
    one; renewing keeps it; releasing and expiring never lower it. A lease is over at `until_us`,
    and from then on the session is due again: a worker that died needs no one to notice. A commit
    that carries a fence is refused with SessionFenced unless that lease is held at the commit.

    Each call is atomic and durable when it returns. If an answer is lost on the way, what it
    granted expires. Raises StoreClosed and StoreError as Store does.
    """

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        """Leases on at most `limit` sessions (of one app) whose runnable time has come.

        Highest priority first, then longest due, in this order. Never waits for another worker:
        a session that somebody is just writing to may be left for the next call. The cost does
        not grow with the sessions that are not taken. Each lease says when it was claimed and what
        the session was due for. Empty if nothing is due. Without an app, reserved apps (`$…`) are
        left out. A lease that was granted by a clock since set back is measured again from now, so
        that a dead worker holds nothing for longer than it was granted.
        """
        ...

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        """Return the leases, extended to `lease_seconds` from now; None is the length of each.

        In the place of one that is not held any more stands the error: SessionFenced (expired,
        released, or taken by another), SessionNotFound, SessionDeleted, SessionErased. The others
        are renewed, in one transaction.
        """
        ...

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        """End the lease now: the session is due when its inputs and timers say so.

        With `retry_seconds` it is held back: due then and not before, also if something is
        recorded meanwhile. Nobody holds it until then, so acquire takes it, which ends the holding
        back.
        Without, a session that was claimed and is due for nothing but what it was due for at the
        claim (the same timers, none of its inputs processed) is held back for LEFT_SECONDS, so
        that it does not go round and round. Judged in one step with the end of the lease.
        False, and nothing changes, if it was not held any more.
        """
        ...

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        """A lease on one session, due or not: a lock.

        A worker that holds it already gets a new lease, which fences off its old one.
        Raises SessionLocked if somebody else holds it, SessionNotFound, SessionDeleted,
        SessionErased. Whoever is refused is told an end that is measured again as in a claim.
        """
        ...


Place: TypeAlias = tuple[int, int]  # where a page of expired sessions ended


@runtime_checkable
class Deadlines(Protocol):
    """The ability to find the sessions whose time has come."""

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        """At most `limit` sessions whose deadline (`limpet.model.due`) has come and that nobody
        holds, the earliest first, and where to go on from; None: there are no more.

        By the store's clock. Changes nothing. Its cost grows with what is found and with what is
        held beyond its deadline, not with the rest. Reserved apps (`$…`) are left out.
        """
        ...


class LeaseStore(Store, Leases, Deadlines, Protocol):
    """A store that also supports leases, as all of ours do."""


def span_us(seconds: float) -> int:
    """A duration in microseconds."""
    return round(seconds * 1_000_000)
