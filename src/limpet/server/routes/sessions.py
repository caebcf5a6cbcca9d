"""One session, as people look at it: where it stands, its conversation, its relatives, a search in
its log, whether its chain is whole; and the answers that it waits for.

In the style of the wire: see `own`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute

from limpet.errors import InvalidInput, InvalidQuery
from limpet.model import Event, Key
from limpet.server.forms import (
    EventForm,
    GraphForm,
    KinForm,
    MessageForm,
    OverviewForm,
    PageForm,
    RelationForm,
    ReportForm,
    RequestForm,
)
from limpet.server.managed import ids
from limpet.server.managed.sessions import load
from limpet.server.managed.stream import EventStream, place_to_go_on
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    from_token,
    page,
    plain,
    rfc3339,
    to_token,
)
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.json_forms import (
    event_form,
    graph_form,
    head_form,
    key_form,
    kin_form,
    report_form,
    time_form,
)
from limpet.session.runs.runs import status_at
from limpet.session.session import Session

SEARCHED_MAX: Final = 5_000  # events that one request looks at
_SEARCHED_AT_ONCE: Final = 500
_NEEDLE_CHARS_MAX: Final = 500
_DECISIONS: Final = ("happened", "run_again", "give_up")


class ConfirmRequest(msgspec.Struct):
    """The answer to a request for approval."""

    request_id: str
    allow: bool
    note: str | None = None


class AnswerRequest(msgspec.Struct):
    """The answer to a question: the output of a tool."""

    request_id: str
    output: Any
    is_error: bool = False


class ResolveRequest(msgspec.Struct):
    """What is to be done about an unknown effect or a mismatch; `output` with "happened"."""

    request_id: str
    decision: str
    output: Any = None
    note: str | None = None


class InterruptSession(msgspec.Struct):
    """The body of an interrupt."""

    note: str | None = None


class LabelSession(msgspec.Struct):
    """Labels to set; null removes one."""

    labels: dict[str, str | None]


class RelateSession(msgspec.Struct):
    """Another session, and what it is to this one: successor, peer or reference."""

    session_id: str
    kind: str


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/limpet/v1/sessions/{{session_id}}{path}", method, act)

    return [
        at("GET", "", show),
        at("GET", "/messages", messages),
        at("GET", "/search", search),
        at("GET", "/verify", verify),
        at("GET", "/tree", tree),
        at("GET", "/relations", relations),
        at("POST", "/relations", relate),
        at("GET", "/graph", graph),
        at("GET", "/requests", requests),
        at("POST", "/confirm", confirm),
        at("POST", "/answer", answer),
        at("POST", "/resolve", resolve),
        at("POST", "/interrupt", interrupt),
        at("POST", "/labels", label),
        at("GET", "/events/stream", stream),
    ]


def overview(call: WireCall, head: Any) -> Json:
    """Where a session stands, with its id on the wire and its status."""
    now_us = int(call.lp.now().timestamp() * 1_000_000)
    id = ids.session_id(head.key.id)
    return {"session_id": id, **head_form(head), "status": status_at(head, now_us)}


@describe(response=OverviewForm)
async def show(call: WireCall) -> Answer:
    """Where it stands, what it waits for, what it used."""
    session = await load(call)
    budget, failure, parent = session.runs.budget, session.runs.failure, session.runs.parent
    return {
        **overview(call, session.head),
        "stop_reason": session.stop_reason,
        "requests": [plain(each) for each in session.blocked_on],
        "usage": plain(session.runs.usage),
        "budget": None if budget is None else plain(budget),
        "failure": None if failure is None else plain(failure),
        "parent": None if parent is None else key_form(parent),
        "damaged": list(session.history.damaged),
    }


@describe(response=PageForm[MessageForm])
async def messages(call: WireCall) -> Answer:
    """The whole conversation, the oldest message first."""
    said = await (await load(call)).messages()
    return page(
        [
            {
                "role": each.role,
                "parts": [plain(part) for part in each.parts],
                "seq": each.event.seq,
                "at": time_form(each.event.at_us),
                "actor": each.event.actor,
                "synthetic": each.synthetic,
            }
            for each in said
        ],
        None,
    )


@describe(response=PageForm[EventForm])
async def search(call: WireCall) -> Answer:
    """Events with a text in their type, actor or data; the oldest first, unless order=desc.

    A request looks at a bounded part of the log: go on while there is a next_page.
    """
    session, needle = await load(call), (call.text("q") or "").casefold()
    if not needle or len(needle) > _NEEDLE_CHARS_MAX:
        raise InvalidQuery(f"name a text of at most {_NEEDLE_CHARS_MAX} characters: ?q=refund")
    limit, ascending = call.limit(), call.is_ascending(default=True)
    types, token = call.texts("types") or None, call.text("page")
    place = 0 if token is None else _seq(from_token(token))
    if not ascending and place == 0:
        place = session.version + 1
    matches: list[Json] = []
    for _ in range(SEARCHED_MAX // _SEARCHED_AT_ONCE):
        bounds: dict[str, Any] = {"after": place} if ascending else {"before": place}
        if not ascending and place <= 1:
            return page(matches, None)
        read = await session.read(
            **bounds, limit=_SEARCHED_AT_ONCE, reverse=not ascending, types=types
        )
        if not read:
            return page(matches, None)
        for event in read:
            place = event.seq
            if _mentions(event, needle):
                matches.append(event_form(event))
                if len(matches) == limit:
                    return page(matches, to_token(str(place)))
    return page(matches, to_token(str(place)))


def _mentions(event: Event, needle: str) -> bool:
    if needle in event.type.casefold() or needle in event.actor.casefold():
        return True
    return event.data is not None and any([needle in text for text in _texts(event.data)])


def _texts(value: Any) -> list[str]:
    """Every name and value in data, as texts."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, str):
            found.append(each.casefold())
        elif isinstance(each, int | float):
            found.append(str(each).casefold())
    return found


def _seq(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidQuery("page is not of this list: pass next_page unchanged")
    return int(text)


@describe(response=ReportForm)
async def verify(call: WireCall) -> Answer:
    """Read it back, and check its hash chain."""
    await load(call)
    return report_form(await call.lp.maintenance.verify(call.key()))


@describe(response=KinForm)
async def tree(call: WireCall) -> Answer:
    """All that were ever delegated from it."""
    return kin_form(await (await load(call)).runs.tree())


@describe(response=PageForm[RelationForm])
async def relations(call: WireCall) -> Answer:
    kind: Any = call.text("kind")
    return page([_relation(each) for each in await (await load(call)).relations(kind)], None)


def _relation(each: Any) -> Json:
    at = {"at": rfc3339(each.at), "actor": each.actor}
    id = {"session_id": ids.session_id(each.key.id), "session": key_form(each.key)}
    return {**id, "kind": each.kind, "direction": each.direction, **at}


@describe(response=PageForm[RelationForm])
async def relate(call: WireCall) -> Answer:
    """Both sessions record it; again, nothing changes."""
    session, body = await load(call), await call.body(RelateSession)
    other = Key(call.app, call.user, ids.session_key_id(body.session_id))
    kind: Any = body.kind
    await session.relate(call.lp.session(other), kind)
    return page([_relation(each) for each in await session.relations()], None)


@describe(response=GraphForm)
async def graph(call: WireCall) -> Answer:
    """Parents and children, forks, merges and relations, and theirs."""
    return graph_form(await call.lp.graph(call.key(), limit=call.limit()))


@describe(response=PageForm[RequestForm])
async def requests(call: WireCall) -> Answer:
    """What it waits for."""
    return page([plain(each) for each in (await load(call)).blocked_on], None)


@describe(response=EventForm)
async def confirm(call: WireCall) -> Answer:
    """Allow or deny what a turn asked for."""
    body = await call.body(ConfirmRequest)
    session = await load(call)
    return event_form(await session.confirm(body.request_id, allow=body.allow, note=body.note))


@describe(response=EventForm)
async def answer(call: WireCall) -> Answer:
    """Bring the output of a tool that a turn asked for."""
    body = await call.body(AnswerRequest)
    session = await load(call)
    return event_form(await session.answer(body.request_id, body.output, is_error=body.is_error))


@describe(response=EventForm)
async def resolve(call: WireCall) -> Answer:
    """Settle an unknown effect or a mismatch."""
    body = await call.body(ResolveRequest)
    if body.decision not in _DECISIONS:
        raise InvalidInput(f"decision is one of {', '.join(_DECISIONS)}.")
    session = await load(call)
    settled: dict[str, Any] = {body.decision: True}
    if body.decision == "happened":
        settled = {"happened": body.output}
    return event_form(await session.resolve(body.request_id, **settled, note=body.note))


@describe(response=EventForm)
async def interrupt(call: WireCall) -> Answer:
    """Stop its turn."""
    body = await call.body(InterruptSession)
    return event_form(await (await load(call)).interrupt(body.note))


@describe(response=EventForm)
async def label(call: WireCall) -> Answer:
    body = await call.body(LabelSession)
    return event_form(await (await load(call)).label(body.labels))


@describe(media_type="text/event-stream")
async def stream(call: WireCall) -> Answer:
    """The log as it grows, each event as it is; with ?partials=true also what is not recorded."""
    session: Session[Any] = await call.lp.get(call.key(), tail=0)
    after = await place_to_go_on(call, session)
    return LogStream(call, session.follow(after=after, partials=call.flag("partials")))


class LogStream(EventStream[Event]):
    """Events as they are in the log."""

    async def shown(self, event: Event) -> list[bytes]:
        return [self.frame(event_form(event), None if event.partial else event.seq)]
