"""Over all sessions of an app, or of the store: who they are, what waits, what failed for good, who
was let do what. In the style of the wire: see `own`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.routing import BaseRoute

from limpet.errors import InvalidQuery, RouteNotFound
from limpet.model import Head, Key, to_time
from limpet.model.facts.phases import ACTIVE
from limpet.model.facts.running.runs import DEAD
from limpet.model.lease import readiness, status_at
from limpet.model.limits import WALK_MAX
from limpet.security.access import ACTIONS, Principal, Resource
from limpet.security.guarded_store import STORE
from limpet.security.roles import RoleRules
from limpet.server import ids
from limpet.server.forms import (
    AuditForm,
    DashboardsForm,
    HeadForm,
    PageForm,
    PrincipalForm,
    StatusForm,
    WaitingForm,
)
from limpet.server.managed.stream import EventStream
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    from_token,
    page,
    plain,
    to_token,
)
from limpet.server.openapi import STREAMED, describe
from limpet.server.pulse import watch_quietly
from limpet.server.routes.sessions import overview
from limpet.server.service import Service
from limpet.session.acting import ActingJournal
from limpet.session.json_forms import key_form, time_form
from limpet.session.limpet import journal_of
from limpet.store.cursor import check_position, check_work
from limpet.store.protocol import FeedEntry

_FOLD_SECONDS: Final = 2.0  # that a request folds for, where nobody else does
_SCANNED_MAX: Final = 10_000  # heads that one request looks at, where a filter drops some
_ORDERS: Final = ("created", "updated", "key")


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/limpet/v1{path}", method, act)

    return [
        at("GET", "/me", me),
        at("GET", "/sessions", list_sessions),
        at("GET", "/status", status),
        at("GET", "/inbox", inbox),
        at("GET", "/dead_letters", dead_letters),
        at("GET", "/audit", audit),
        at("GET", "/analytics", analytics),
        at("GET", "/events/stream", stream),
    ]


@describe(response=DashboardsForm)
async def analytics(call: WireCall) -> Answer:
    """The dashboards of an app, or of the whole store: what to look at, its windows as series to
    plot, and its largest groups.

    404 if the server was started without --analytics.
    """
    folded, app = call.service.analytics, call.named_app
    await _check_every_user(call, app)
    if folded is None:
        raise RouteNotFound("GET /limpet/v1/analytics: start the server with --analytics FILE")
    from limpet.analytics import report as reports  # it loads numpy

    complete = not call.service.folds or await folded.catch_up(_FOLD_SECONDS)
    report = await folded.report(app)
    names = report.windows.column("window")
    return {
        "sessions": report.sessions,
        "complete": complete,
        "notes": [
            {"text": note.text, "bad": note.bad, "sessions": [key_form(k) for k in note.sessions]}
            for note in report.notes
        ],
        "dashboards": [
            {
                "title": title,
                "unit": unit,
                "points": [
                    {"name": name, "value": value, "shown": reports.shown(column, value)}
                    for name, value in zip(names, report.windows.column(column), strict=True)
                ],
            }
            for column, title, unit in reports.SERIES
        ],
        "tables": [
            *[
                {
                    "title": reports.TITLES[name],
                    "columns": [title for _, title in reports.COLUMNS[name]],
                    "rows": [
                        [reports.shown(column, row[column]) for column, _ in reports.COLUMNS[name]]
                        for row in table.rows
                    ],
                }
                for name, table in report.groups.items()
            ],
            *[
                {
                    "title": f"Drift from {drift.a} to {drift.b} (●: more than chance)",
                    "columns": reports.DRIFT_COLUMNS,
                    "rows": reports.drift_rows(drift),
                }
                for drift in report.drift
            ],
        ],
    }


async def _check_app(call: WireCall, app: str | None) -> None:
    """Raise AccessDenied unless the caller may read in an app, or in the store."""
    journal = journal_of(call.lp)
    if isinstance(journal, ActingJournal):
        await journal.guard.check("read", STORE if app is None else Resource("app", app))


async def _check_every_user(call: WireCall, app: str | None) -> None:
    """Raise AccessDenied unless the caller may read what all users of an app did: roll-ups name
    users and sessions, and no view is applied to them."""
    await _check_app(call, app)
    journal = journal_of(call.lp)
    if isinstance(journal, ActingJournal) and journal.guard.principal.user is not None:
        of = STORE if app is None else Resource("app", app)
        await journal.guard.deny("access_denied", "read", of)


@describe(response=PrincipalForm)
async def me(call: WireCall) -> Answer:
    """The caller and its role."""
    principal = call.caller.principal
    if principal is None:
        principal = Principal(call.caller.name, role="admin")
    of = {"app": principal.app, "user": principal.user}
    actions = [each for each in ACTIONS if RoleRules().grants(principal, each)]
    return {"id": principal.id, "role": principal.role, **of, "actions": actions}


@describe(response=PageForm[HeadForm])
async def list_sessions(call: WireCall) -> Answer:
    """The newest first, unless order=asc; by=created, updated or key; of one phase, status or
    readiness (ready), with labels[name]=value, with a prefix of the id (by=key), with a text (q) in
    their key or labels.

    A page may be short before the last: go on while there is a next_page.
    """
    limit, token, by = call.limit(), call.text("page"), call.text("by") or "created"
    phase: Any = call.text("phase")
    needle = (call.text("q") or "").casefold()
    status: Any = call.text("status")
    ready: Any = call.text("ready")
    if by not in _ORDERS:
        raise InvalidQuery(f"by is one of {', '.join(_ORDERS)}")
    check_work(status, ready)
    order: Any = by
    app, user, labels = call.named_app, call.asked_user, call.labels()
    if ready == "dead" and app is not None:  # of which there is an index
        labels |= {DEAD: "yes"}
    # Stores compare what sessions do much faster, where the order and the phase allow it.
    in_store = by == "created" and phase in (None, ACTIVE) and (status or ready) is not None
    cursor = None if token is None else from_token(token)
    items: list[Json] = []
    scanned = 0
    while True:
        heads = await call.lp.list(
            app=app,
            user=None if app is None else user,  # else they are compared below
            labels=None if app is None else labels or None,
            order=order,
            phase=None if in_store else phase,
            status=status if in_store else None,
            ready=ready if in_store else None,
            prefix=call.text("prefix") or "",
            reverse=not call.is_ascending(default=False),
            limit=(room := limit - len(items)),
            cursor=cursor,
        )
        now_us = journal_of(call.lp).now_us()
        items += [
            overview(call, head)
            for head in heads.items
            if phase in (None, head.phase)
            and status in (None, status_at(head, now_us))
            and ready in (None, readiness(head, now_us))
            and user in (None, head.key.user)
            and labels.items() <= head.indexed_labels.items()
            and _mentions(head, needle)
        ]
        # A short page that is not the last has passed over as many as a page may.
        scanned += len(heads.items) if len(heads.items) == room else WALK_MAX
        cursor = heads.cursor
        # Half a page is enough: to fill it up would take many small reads.
        if cursor is None or 2 * len(items) >= limit or scanned >= _SCANNED_MAX:
            return page(items, None if cursor is None else to_token(cursor))
        await asyncio.sleep(0)  # others have their turn


def _mentions(head: Head, needle: str) -> bool:
    if not needle:
        return True
    texts = (str(head.key), *head.labels.keys(), *head.labels.values())
    return any([needle in each.casefold() for each in texts])


@describe(response=StatusForm)
async def status(call: WireCall) -> Answer:
    """The number of sessions of each kind."""
    return plain(await call.lp.status(call.named_app))


@describe(response=PageForm[WaitingForm])
async def inbox(call: WireCall) -> Answer:
    """Requests that wait for an answer, the oldest first."""
    token, kind = call.text("page"), call.text("kind")
    cursor = None if token is None else from_token(token)
    known: Any = kind
    waiting = await call.lp.inbox(
        call.named_app, user=call.asked_user, kind=known, limit=call.limit(), cursor=cursor
    )
    items = [{"session_id": ids.session_id(each.key.id), **plain(each)} for each in waiting.items]
    return page(items, None if waiting.cursor is None else to_token(waiting.cursor))


@describe(response=PageForm[HeadForm])
async def dead_letters(call: WireCall) -> Answer:
    """Sessions whose turn failed on every attempt: of an app, of a user, or of the whole store."""
    token, limit, app = call.text("page"), call.limit(), call.named_app
    cursor = None if token is None else from_token(token)
    if app is None:
        dead = await call.lp.list(ready="dead", reverse=False, limit=limit, cursor=cursor)
    else:
        dead = await call.lp.work.dead_letters(app=app, limit=limit, cursor=cursor)
    user = call.named_user
    items = [overview(call, head) for head in dead.items if user in (None, head.key.user)]
    return page(items, None if dead.cursor is None else to_token(dead.cursor))


@describe(response=PageForm[AuditForm])
async def audit(call: WireCall) -> Answer:
    """A page of the audit, for auditors and admins: since a time, of one principal, about one
    session, and what was denied or was not."""
    token, denied, id = call.text("page"), call.text("denied"), call.text("session")
    since = call.moment("since")
    records = await call.lp.audit(
        None if since is None else to_time(since),
        principal=call.text("principal"),
        session=None if id is None else Key(call.app, call.user, ids.session_key_id(id)),
        denied=None if denied is None else call.flag("denied"),
        app=call.named_app,
        limit=call.limit(),
        cursor=None if token is None else from_token(token),
    )
    items = [plain(each) for each in records.items]
    return page(items, None if records.cursor is None else to_token(records.cursor))


@describe(media_type=STREAMED)
async def stream(call: WireCall) -> Answer:
    """Every event as it is recorded, of an app or of the whole store, without its data; from now
    on, or after the position that the client saw last."""
    after = call.request.headers.get("last-event-id") or call.text("after")
    await _check_app(call, call.named_app)  # before the headers leave
    position = check_position(after) or await call.lp.position()
    entries = watch_quietly(call.service.pulse, call.lp, call.named_app, position)
    return FeedStream(call, entries)


class FeedStream(EventStream[FeedEntry]):
    """A change in any session: enough to know which session changed, and how."""

    async def shown(self, item: FeedEntry) -> list[bytes]:
        event = item.event
        form: Json = {"session_id": ids.session_id(item.key.id), "session": key_form(item.key)}
        form |= {"seq": event.seq, "id": event.id, "type": event.type, "actor": event.actor}
        return [self.frame({**form, "at": time_form(event.at_us)}, item.position)]
