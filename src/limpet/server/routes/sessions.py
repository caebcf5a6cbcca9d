"""One session, as people look at it: where it stands, its conversation, its relatives, a search in
its log, whether its chain is whole; and the answers that it waits for.

In the style of the wire: see `own`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from starlette.routing import BaseRoute

from limpet.errors import InvalidInput, InvalidQuery, ProposalNotFound
from limpet.model import Event, Key
from limpet.model.lease import readiness, status_at
from limpet.security.access import Principal
from limpet.server import ids
from limpet.server.forms import (
    CitedForm,
    EventForm,
    GraphForm,
    GraphRunForm,
    KinForm,
    MessageForm,
    NewTokenForm,
    OverviewForm,
    PageForm,
    ProposalForm,
    RelationForm,
    ReportForm,
    RequestForm,
    RevokedTokenForm,
    TokenForm,
)
from limpet.server.managed.sessions import load
from limpet.server.managed.stream import EventStream, place_to_go_on, until_archived
from limpet.server.managed.wire import (
    Answer,
    Json,
    WireCall,
    endpoint,
    page,
    place_in,
    plain,
    rfc3339,
    to_token,
)
from limpet.server.openapi import STREAMED, describe
from limpet.server.pulse import follow_quietly
from limpet.server.service import Service
from limpet.session.json_forms import (
    brief_event_form,
    event_form,
    graph_form,
    head_form,
    key_form,
    kin_form,
    proposal_form,
    report_form,
    time_form,
)
from limpet.session.runs.recorded_run import run_of
from limpet.session.session import Session
from limpet.session.tokens import Tokens

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
    note: str | None = None


class ResolveRequest(msgspec.Struct):
    """A resolution of an unknown effect or a mismatch; `output` with "happened"."""

    request_id: str
    decision: str
    output: Any = None
    note: str | None = None


class DecideRequest(msgspec.Struct):
    """A decision about a proposal of the session; `note` is its reason."""

    request_id: str
    accept: bool
    note: str


class InterruptSession(msgspec.Struct):
    """The body of an interrupt."""

    note: str | None = None


class LabelSession(msgspec.Struct):
    """Labels to set; null removes one."""

    labels: dict[str, str | None]


class IssueToken(msgspec.Struct):
    """A request for a session token: its scope, lifetime and address."""

    scope: tuple[str, ...] = ("read", "write")
    lifetime_seconds: float = 900.0
    address: str | None = None


class RevokeToken(msgspec.Struct):
    """A token to revoke, the one of the request if none is named; with all that were rotated from
    the same first one."""

    token: str | None = None
    chain: bool = False


class RelateSession(msgspec.Struct):
    """Another session, and its relation to this one: successor, predecessor, peer or reference;
    and whether this one may read its output."""

    session_id: str
    kind: str
    outputs: bool = False


class CiteSession(msgspec.Struct):
    """Another session, and the fields and blobs (by their SHA-256) that this one reads of it."""

    session_id: str
    fields: list[str] = []
    blobs: list[str] = []


class EndRelation(msgspec.Struct):
    """A relation of this session, by its id."""

    id: str


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any, operation: str | None = None) -> BaseRoute:
        whole = f"/limpet/v1/sessions/{{session_id}}{path}"
        return endpoint(service, whole, method, act, operation=operation)

    return [
        at("GET", "", show),
        at("GET", "/messages", messages),
        at("GET", "/search", search),
        at("GET", "/verify", verify),
        at("GET", "/tree", tree),
        at("GET", "/relations", relations),
        at("POST", "/relations", relate),
        at("POST", "/relations/end", unrelate),
        at("POST", "/citations", cite),
        at("GET", "/citations", cited),
        at("GET", "/graph", graph),
        at("GET", "/graph_run", graph_run),
        at("GET", "/requests", requests),
        at("POST", "/confirm", confirm),
        at("POST", "/answer", answer),
        at("POST", "/resolve", resolve),
        at("POST", "/decide", decide),
        at("POST", "/interrupt", interrupt),
        at("POST", "/labels", label),
        at("GET", "/events/stream", stream),
        at("POST", "/tokens", issue_token),
        at("POST", "/tokens/rotate", rotate_token, "rotate_token"),
        at("POST", "/tokens/revoke", revoke_token, "revoke_token"),
    ]


def overview(call: WireCall, head: Any) -> Json:
    """The head of a session, with its id on the wire and its status."""
    now_us = int(call.lp.now().timestamp() * 1_000_000)
    id = ids.session_id(head.key.id)
    standing = {"status": status_at(head, now_us), "ready": readiness(head, now_us)}
    return {"session_id": id, **head_form(head), **standing}


@describe(response=OverviewForm)
async def show(call: WireCall) -> Answer:
    """The head of a session, its open requests and its usage."""
    return standing(call, await load(call))


def standing(call: WireCall, session: Session[Any]) -> Json:
    """A session as it stands: its head, what it waits for, what it used."""
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
    """Events with a text in their type, actor or data; the oldest first, unless order=desc; after
    or before a seq.

    A request looks at a bounded part of the log: go on while there is a next_page.
    """
    session, needle = await load(call), (call.text("q") or "").casefold()
    if not needle or len(needle) > _NEEDLE_CHARS_MAX:
        raise InvalidQuery(f"name a text of at most {_NEEDLE_CHARS_MAX} characters: ?q=refund")
    limit, ascending = call.limit(), call.is_ascending(default=True)
    types, token = call.texts("types") or None, call.text("page")
    begin = call.place("after") if ascending else call.place("before")
    place = (begin or 0) if token is None else place_in(token)
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
    texts: list[str] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, str):
            texts.append(each.casefold())
        elif isinstance(each, int | float):
            texts.append(str(each).casefold())
    return texts


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
    session = {"session_id": ids.session_id(each.key.id), "session": key_form(each.key)}
    reads = {"outputs": each.outputs, "fields": each.fields, "blobs": _refs(each.blobs)}
    return {
        "id": each.id,
        **session,
        "kind": each.kind,
        "direction": each.direction,
        **at,
        **reads,
    }


def _refs(blobs: Iterable[Any]) -> list[Json]:
    return [ref.data for ref in blobs]


@describe(response=PageForm[RelationForm])
async def relate(call: WireCall) -> Answer:
    """Both sessions record it; again, nothing changes."""
    session, body = await load(call), await call.body(RelateSession)
    other = Key(call.app, call.user, ids.session_key_id(body.session_id))
    kind: Any = body.kind
    await session.relate(call.lp.session(other), kind, outputs=body.outputs)
    return page([_relation(each) for each in await session.relations()], None)


@describe(response=PageForm[RelationForm])
async def unrelate(call: WireCall) -> Answer:
    """End a relation, at both ends if the other session may be written."""
    session, body = await load(call), await call.body(EndRelation)
    await session.unrelate(body.id)
    return page([_relation(each) for each in await session.relations()], None)


@describe(response=RelationForm)
async def cite(call: WireCall) -> Answer:
    """Let this session read fields and blobs of another one, as they are now."""
    session, body = await load(call), await call.body(CiteSession)
    other = call.lp.session(Key(call.app, call.user, ids.session_key_id(body.session_id)))
    return _relation(await session.cite(other, fields=body.fields, blobs=body.blobs))


@describe(response=CitedForm)
async def cited(call: WireCall) -> Answer:
    """The part of another session that a relation lets this one read."""
    session = await load(call)
    read = await session.read_cited(call.text("relation") or "")
    return {
        "id": read.id,
        "kind": read.kind,
        "session": key_form(read.source),
        "output": read.output,
        "values": dict(read.values),
        "blobs": _refs(read.blobs),
        "source_version": read.source_version,
        "at": rfc3339(read.at),
    }


@describe(response=GraphForm)
async def graph(call: WireCall) -> Answer:
    """Parents and children, forks, merges and relations, and theirs."""
    return graph_form(await call.lp.graph(call.key(), limit=call.limit()))


@describe(response=GraphRunForm)
async def graph_run(call: WireCall) -> Answer:
    """The graph that its harness ran last: the way it took, and the state after each node."""
    return plain(await run_of(await load(call)))


@describe(response=PageForm[RequestForm])
async def requests(call: WireCall) -> Answer:
    """Return the requests that the session waits for."""
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
    answered = await session.answer(
        body.request_id, body.output, is_error=body.is_error, note=body.note
    )
    return event_form(answered)


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


@describe(response=ProposalForm)
async def decide(call: WireCall) -> Answer:
    """Accept or refuse what the session proposed for a shared memory."""
    body = await call.body(DecideRequest)
    made = await call.lp.proposals(session=(await load(call)).key)
    proposal = next((each for each in made if each.id == body.request_id), None)
    if proposal is None:
        raise ProposalNotFound(body.request_id)
    decided = await call.lp.decide(proposal, accept=body.accept, reason=body.note)
    return proposal_form(decided)


@describe(response=EventForm)
async def interrupt(call: WireCall) -> Answer:
    """Stop its turn."""
    body = await call.body(InterruptSession)
    return event_form(await (await load(call)).interrupt(body.note))


@describe(response=EventForm)
async def label(call: WireCall) -> Answer:
    body = await call.body(LabelSession)
    return event_form(await (await load(call)).label(body.labels))


@describe(media_type=STREAMED)
async def stream(call: WireCall) -> Answer:
    """The log as it grows, each event as it is; with ?partials=true also what is not recorded."""
    session = await load(call)
    after = await place_to_go_on(call, session)
    partials = call.flag("partials")
    following = follow_quietly(call.service.pulse, call.lp, session, after, partials=partials)
    events = until_archived(call, session, after, following)
    return LogStream(call, events, brief=call.flag("brief"))


class LogStream(EventStream[Event]):
    """Events as they are in the log, or cut to what a list shows."""

    def __init__(self, call: WireCall, events: AsyncGenerator[Event, None], *, brief: bool) -> None:
        super().__init__(call, events)
        self._form = brief_event_form if brief else event_form

    async def shown(self, event: Event) -> list[bytes]:
        return [self.frame(self._form(event), None if event.partial else event.seq)]


# --- session tokens ---------------------------------------------------------------------------


@describe(response=TokenForm)
async def issue_token(call: WireCall) -> Answer:
    """A token for this session, as the principal that asks. It is not made with a token: a chain of
    them ends."""
    session, tokens, body = await load(call), _tokens(call), await call.body(IssueToken)
    if call.caller.token is not None:
        raise InvalidInput("a token is made with a key, not with a token. Rotate the one you have.")
    try:
        lifetime = timedelta(seconds=body.lifetime_seconds)
    except (OverflowError, ValueError):
        raise InvalidInput("lifetime_seconds is a number of seconds, at most 900.") from None
    principal = call.caller.principal or Principal(call.caller.name, role="admin", app=call.app)
    token = await tokens.issue(
        session.key, principal, scope=body.scope, lifetime=lifetime, address=body.address
    )
    return {"token": token, "expires_at": rfc3339(call.lp.now() + lifetime)}


@describe(response=NewTokenForm)
async def rotate_token(call: WireCall) -> Answer:
    """A new token for the one of the request, which is good for another 30 seconds."""
    tokens = _tokens(call)
    if call.caller.token is None:
        raise InvalidInput("the request has no session token to rotate. Send it as the bearer.")
    return {"token": await tokens.rotate(call.caller.token)}


@describe(response=RevokedTokenForm)
async def revoke_token(call: WireCall) -> Answer:
    """Refused from now on, on every server of the store."""
    tokens, body = _tokens(call), await call.body(RevokeToken)
    token = body.token or call.caller.token
    if token is None:
        raise InvalidInput("name the token to revoke, or send it as the bearer.")
    await tokens.revoke(token, chain=body.chain)
    return {"revoked": True}


def _tokens(call: WireCall) -> Tokens:
    tokens = call.service.tokens
    if tokens is None:
        raise InvalidInput("this server has no key for tokens. Start it with --tokens FILE.")
    return tokens
