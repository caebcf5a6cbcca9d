"""Overview: what a store promises to those who look after it.

`Overview` is an optional protocol beside `Store`: the requests that wait for an answer, and how
many sessions there are of each kind. Neither reads the bodies of events.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from limpet.model import Head, Key
from limpet.model.facts.isolation import is_lent
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.waiting import OpenRequest
from limpet.model.lease import Readiness

WaitingPlace: TypeAlias = tuple[str, int]  # where a page of open requests ended: label and row


class WaitingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of open requests: of an app, of one of its users, of one kind. `lent` adds those
    in sessions of other users that let this one in."""

    app: str | None = None
    user: str | None = None
    lent: bool = False
    kind: str | None = None


def is_asked(query: WaitingQuery, head: Head) -> bool:
    """True if requests of this session are of the user that is asked for."""
    if query.user in (None, head.key.user):
        return True
    return query.lent and query.user is not None and is_lent(head.indexed_labels, query.user)


class AskedBy(NamedTuple):
    """An open request, and the session that waits for its answer."""

    key: Key
    request: OpenRequest


class Tally(NamedTuple):
    """The number of sessions with the same phase, stop reason and readiness, with or without
    input."""

    phase: Phase
    stop: str  # of the last wake; empty: none ever stopped
    ready: Readiness
    has_input: bool
    sessions: int


@runtime_checkable
class Overview(Protocol):
    """The ability to find open requests and to count sessions. One that has departed to another
    node is neither: it is answered, and counted, where it is."""

    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        """At most `limit` open requests, the oldest first, and where to go on; None: no more.

        On an index of open requests: the cost does not grow with the sessions that wait for
        nothing, only with those that are lent to the user. A request that is open throughout is
        met exactly once by paging. Without an app, reserved apps (`$…`) are left out. A user goes
        with an app.
        """
        ...

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        """Count the sessions of an app, or of all but reserved ones, at most `limit` of them.

        From one instant, by the store's clock, in one statement. See `model.readiness`.
        """
        ...
