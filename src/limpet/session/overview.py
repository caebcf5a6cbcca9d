"""Looking after a store: who waits for an answer, and how many sessions there are of each kind.

`lp.inbox` and `lp.status`. Both ask the store's indexes; only the requests of one page are read
from their sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from limpet.errors import AccessDenied, InvalidCursor, InvalidQuery
from limpet.model import Key, described, to_time
from limpet.model.facts.phases import PHASES, TERMINAL, Phase
from limpet.model.facts.running.requests import Request, open_requests, requests_in
from limpet.model.facts.running.runs import STATUSES, Status
from limpet.model.facts.running.waiting import KINDS
from limpet.session.arguments import check_app, check_limit, check_sessions
from limpet.store import cursor as cursors
from limpet.store.overview import AskedBy, Overview, Tally, WaitingQuery
from limpet.store.protocol import Loaded, Page

if TYPE_CHECKING:
    from limpet.session.journal import Journal
    from limpet.session.services import Services

STATUS_SESSIONS_MAX: Final = 1_000_000  # that `lp.status` counts
PROMOTION: Final = "promotion"
_PROPOSALS: Final = "proposals~"  # no cursor of a store begins so
_READY: Final = ("due", "leased", "blocked", "dead", "held")


class Waiting(msgspec.Struct, frozen=True):
    """A session that waits for the answer to a request, and since when."""

    key: Key
    request: Request
    since: datetime
    deadline: datetime | None = None  # then the request is answered by default


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of sessions of each kind at one moment, by the store's clock.

    Each session is `leased`, `due`, `blocked`, `dead`, `held`, or none of these (idle).
    """

    at: datetime
    sessions: int
    by_status: Mapping[Status, int]
    by_phase: Mapping[Phase, int]
    pending: int  # with unprocessed input
    due: int  # can be claimed now: input, a wake timer, or an ended lease
    leased: int
    blocked: int  # a person, a tool or a child has to answer, or more is to be granted
    dead: int  # dead letters: held until somebody requeues them
    held: int  # to be retried later
    complete: bool = True  # False: there are more than STATUS_SESSIONS_MAX, and these were counted


async def inbox_page(
    services: Services, query: WaitingQuery, *, limit: int, cursor: str | None
) -> Page[Waiting]:
    """One page of open requests, the oldest first; after the last of them proposals that wait for a
    person. Raises InvalidQuery, InvalidCursor."""
    journal = services.journal
    store = _overview(journal)
    if query.kind not in (None, *KINDS, PROMOTION):
        kinds = ", ".join((*KINDS, PROMOTION))
        raise InvalidQuery(f"kind is one of {kinds}, not {described(query.kind)}")
    if query.user is not None and query.app is None:
        raise InvalidQuery("a user belongs to an app: name the app too")
    for text in (check_app(check_sessions(query.app)), query.user):
        check_app(text)
    check_limit(limit)
    of_proposals = isinstance(cursor, str) and cursor.startswith(_PROPOSALS)
    if cursor is not None and query.kind == PROMOTION and not of_proposals:
        raise InvalidCursor
    if query.kind == PROMOTION or of_proposals:
        return await _proposals_page(services, query, (), limit=limit, cursor=cursor)
    after = None if cursor is None else cursors.read_waiting(cursor, query)
    asked_by, more = await store.waiting(query, limit=check_limit(limit), after=after)
    keys = list(dict.fromkeys([asked.key for asked in asked_by]))
    loaded = dict(zip(keys, await journal.store.load_many(keys, tail=0), strict=True))
    shown = [_waiting(asked, loaded[asked.key]) for asked in asked_by]
    page = tuple([waiting for waiting in shown if waiting is not None])
    if more is None and query.kind is None:
        # A key of one app, on a server, may not list the proposals of the whole store.
        with suppress(AccessDenied):
            return await _proposals_page(services, query, page, limit=limit, cursor=None)
    return Page(page, None if more is None else cursors.write_waiting(query, more))


async def _proposals_page(
    services: Services,
    query: WaitingQuery,
    before: tuple[Waiting, ...],
    *,
    limit: int,
    cursor: str | None,
) -> Page[Waiting]:
    """Return the rest of a page, filled with proposals that a person has to decide."""
    from limpet.session.runs.promotion import waiting_proposals

    last = "" if cursor is None else cursor.removeprefix(_PROPOSALS)
    waiting = [
        Waiting(
            each.provenance,
            Request(
                each.id,
                PROMOTION,
                each.to,
                {"text": each.text, "confidence": each.confidence, "actor": each.actor},
            ),
            each.at,
        )
        for each in await waiting_proposals(services)
        if query.app in (None, each.provenance.app) and query.user in (None, each.provenance.user)
    ]
    waiting.sort(key=lambda each: each.request.id)  # ids are in the order of their time
    waiting = [each for each in waiting if each.request.id > last]
    room = limit - len(before)
    shown = (*before, *waiting[:room])
    if len(waiting) <= room:
        return Page(shown, None)
    return Page(shown, _PROPOSALS + (shown[-1].request.id if waiting[:room] else last))


async def status_of(journal: Journal, app: str | None) -> StoreStatus:
    """Count the sessions of a store, or of one app in it."""
    app = check_app(check_sessions(app))
    tally = await _overview(journal).tally(app, limit=STATUS_SESSIONS_MAX + 1)
    ready = {name: _sum([t for t in tally if t.ready == name]) for name in _READY}
    sessions = _sum(tally)
    return StoreStatus(
        at=to_time(journal.store.now_us()),
        sessions=min(sessions, STATUS_SESSIONS_MAX),
        by_status={name: _sum([t for t in tally if _status(t) == name]) for name in STATUSES},
        by_phase={name: _sum([t for t in tally if t.phase == name]) for name in PHASES},
        pending=_sum([t for t in tally if t.has_input]),
        complete=sessions <= STATUS_SESSIONS_MAX,
        **ready,
    )


def _waiting(asked: AskedBy, loaded: Loaded | None) -> Waiting | None:
    """The request with its text; None if it was answered meanwhile."""
    if loaded is None:
        return None
    facts, seq = loaded.head.facts, asked.request.seq
    ids = {id for id, request in requests_in(facts).items() if request.get("seq") == seq}
    for request in open_requests(facts, loaded.texts):
        if request.id in ids:
            return Waiting(asked.key, request, to_time(asked.request.since_us), request.deadline)
    return None


def _status(tally: Tally) -> Status:
    """Return the status as `s.status` does for each of them."""
    if tally.phase in TERMINAL:
        return "terminated"
    if tally.ready == "leased":
        return "running"
    return "rescheduling" if tally.stop == "rescheduling" else "idle"


def _sum(tallies: list[Tally] | tuple[Tally, ...]) -> int:
    return sum([tally.sessions for tally in tallies])


def _overview(journal: Journal) -> Overview:
    store = journal.store
    if not isinstance(store, Overview):
        raise InvalidQuery("this store cannot list open requests or count sessions")
    return store
