"""Promotion: what sessions have learned, taken into the memory of their agent or organisation.

A memory, `agent:NAME` or `org:NAME`, has items: one document each, so that one can be taken out for
good. There are two ways in, and both end in the same put. A learning, which sessions of an agent
share already, is promoted by `lp.promote` if the gates on their outcomes hold. Anything else is
proposed: `lp.propose` queues it, four gates judge it, and a person decides where a gate says so.

A proposal is a document of the user whose session it comes from, so it goes with that user. Each
decision is a version of it, with its reason, and an event in the log of the session. Every item
names the session that it comes from, and one call removes all that a session contributed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from limpet.errors import (
    DocumentConflict,
    InvalidInput,
    ProposalDecided,
    ProposalNotFound,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionMoved,
    SessionNotFound,
)
from limpet.model import (
    Commit,
    DefaultActor,
    Fact,
    Key,
    described,
    name_part,
    owner_of,
    to_time,
    unfit,
)
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import is_stub
from limpet.model.limits import KEY_PART_CHARS_MAX, PAGE_MAX
from limpet.session.documents import Document, Internal, Put, commit_puts
from limpet.session.journal import Journal, retrying
from limpet.session.performed import ask_server, server_of
from limpet.session.runs import learnings
from limpet.session.runs.delegation import head_of
from limpet.session.runs.learnings import KINDS, Gates, Learning, LearningKind
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.store.coding.seal import forget_keys
from limpet.store.pages import each_head, head_pages
from limpet.store.protocol import Query

ProposalStatus: TypeAlias = Literal["open", "accepted", "refused", "expired", "withdrawn"]
PROPOSAL_STATUSES: Final[tuple[ProposalStatus, ...]] = (
    "open",
    "accepted",
    "refused",
    "expired",
    "withdrawn",
)
# Called with the proposal, for duplicates with the items too; returns True, False or a reason.
GateFunction: TypeAlias = Callable[..., Any]
PROPOSED: Final = "audit.promotion_proposed"
DECIDED: Final = "audit.promotion_decided"
_RUNTIME: Final = DefaultActor("system:runtime")
_GATES: Final = DefaultActor("system:promotion")
_EXPIRY_DAYS: Final = 365
_PROPOSALS_MAX: Final = 10_000  # that lp.proposals returns
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
# A decision that met one of these is made again, with what is there then.
_AGAIN: Final = (DocumentConflict, SessionConflict, SessionMoved, *_GONE)
_US: Final = timedelta(microseconds=1)


class PromotionGates(msgspec.Struct, frozen=True):
    """The gates to a memory. An item passes all of them, or it is refused.

    duplicate: no item has this text already; a function (proposal, items) looks for more.
    verification: "person" (then `lp.inbox` shows it, and `lp.decide` answers) or a function.
    generalisable: it names neither the user nor the session that it comes from; or a function.
    expiry: how long an item stays at most; None: each proposal has to say so itself.
    A function takes the proposal and returns True, False or a reason; it may be async. It runs in
    the processes that declare it; elsewhere a proposal waits.
    """

    duplicate: bool | GateFunction = True
    verification: Literal["person"] | GateFunction = "person"
    generalisable: bool | GateFunction = True
    expiry: timedelta | None = timedelta(days=_EXPIRY_DAYS)


class Proposal(msgspec.Struct, frozen=True):
    """A session's proposal for a memory, and the decision about it."""

    id: str
    to: str
    text: str
    provenance: Key
    confidence: float
    at: datetime
    actor: str
    ttl: timedelta | None = None
    status: ProposalStatus = "open"
    reason: str | None = None  # of the decision
    decided_by: str | None = None


class MemoryItem(msgspec.Struct, frozen=True):
    """One item of a memory. `provenance` is the session it comes from; `sessions` counts all that
    contributed it."""

    id: str
    to: str
    kind: LearningKind
    text: str
    provenance: Key | None
    sessions: int
    confidence: float
    at: datetime
    expires_at: datetime | None
    reason: str


class _StoredProposal(msgspec.Struct, frozen=True):
    """A proposal as the value of its document."""

    id: str
    to: str
    text: str
    provenance: tuple[str, str, str]
    uid: str
    confidence: float
    at_us: int
    actor: str
    ttl_us: int | None = None
    status: ProposalStatus = "open"
    reason: str | None = None
    decided_by: str | None = None
    expires_us: int | None = None  # of its item
    accept: bool | None = None  # what who decided it wanted; a gate may have refused it

    @property
    def key(self) -> Key:
        return Key(*self.provenance)

    @property
    def name(self) -> str:
        return f"{name_part(self.key.id)}/{self.id}"

    def check_decision(self, *, accept: bool, by: str) -> None:
        """Raise ProposalDecided unless it is open, or this is who decided so: a repeated call."""
        wanted = self.accept  # decisions from before it was recorded have their status alone
        if wanted is None and self.status in ("accepted", "refused"):
            wanted = self.status == "accepted"
        if self.status == "open" or (wanted is accept and self.decided_by == by):
            return
        raise ProposalDecided(self.id, self.status, self.decided_by)


class _StoredItem(msgspec.Struct, frozen=True):
    """An item as the value of its document."""

    id: str
    to: str
    kind: LearningKind
    text: str
    sources: tuple[str, ...]  # hashes of the sessions that contributed it
    confidence: float
    at_us: int
    reason: str
    provenance: tuple[str, str, str] | None = None
    expires_us: int | None = None


class _StoredGates(msgspec.Struct, frozen=True):
    """Gates as every process sees them. "function": only processes that have it can judge."""

    duplicate: Literal["text", "function"]
    verification: Literal["person", "function"]
    generalisable: Literal["off", "names", "function"]
    expiry_us: int | None


# --- where it is kept ----------------------------------------------------------------------------


def _items(journal: Journal) -> Internal:
    return Internal(journal, "curated")


def _proposals(journal: Journal, of: Key) -> Internal:
    return Internal(journal, "proposals", owner=(of.app, of.user))


def _expiries(journal: Journal) -> Internal:
    """Accepted proposals in the order in which their items expire."""
    return Internal(journal, "expiries")


def _expiry_name(stored: _StoredProposal) -> str:
    return f"{stored.expires_us or 0:020}/{stored.id}"


def check_memory(to: object) -> str:
    """Return the name of a memory. Raises InvalidInput."""
    kind, _, name = to.partition(":") if isinstance(to, str) else ("", "", "")
    if kind not in ("agent", "org") or unfit(name, KEY_PART_CHARS_MAX):
        raise InvalidInput(f"a memory is 'agent:NAME' or 'org:NAME', not {described(to)}.")
    return f"{kind}:{name}"


# --- gates ---------------------------------------------------------------------------------------


def check_promotion_gates(gates: object) -> PromotionGates:
    """Raise InvalidInput if the gates are not valid."""
    if not isinstance(gates, PromotionGates):
        raise InvalidInput("gates are a limpet.PromotionGates, as in PromotionGates(expiry=…).")
    for name in ("duplicate", "generalisable"):
        value = getattr(gates, name)
        if type(value) is not bool and not callable(value):
            raise InvalidInput(f"{name} is True, False or a function, not {described(value)}.")
    if gates.verification != "person" and not callable(gates.verification):
        said = described(gates.verification)
        raise InvalidInput(f"verification is 'person' or a function, not {said}.")
    if gates.expiry is not None and not _is_span(gates.expiry):
        raise InvalidInput(f"expiry is a timedelta above 0, not {described(gates.expiry)}.")
    return gates


def _is_span(value: object) -> bool:
    return isinstance(value, timedelta) and timedelta(0) < value <= timedelta(days=36_500)


async def set_gates(services: Services, to: str, gates: PromotionGates | None, by: str) -> None:
    """Keep the gates of a memory with the store, and their functions in this process."""
    documents = Internal(services.journal, "promotion")
    if gates is None:
        await documents.delete(to, actor=by)
        services.promotion_gates.pop(to, None)
        return
    of = check_promotion_gates(gates)
    generalises: Literal["off", "names", "function"] = "names" if of.generalisable else "off"
    stored = _StoredGates(
        "function" if callable(of.duplicate) else "text",
        "function" if callable(of.verification) else "person",
        "function" if callable(of.generalisable) else generalises,
        None if of.expiry is None else of.expiry // _US,
    )
    await documents.put(to, msgspec.to_builtins(stored), actor=by)
    services.promotion_gates[to] = of


async def _gates_of(services: Services, to: str) -> tuple[_StoredGates, PromotionGates | None]:
    """The gates of a memory as they are kept, and their functions, if this process has them."""
    documents = Internal(services.journal, "promotion")
    document = await documents.find(to)
    if document is None:
        return _StoredGates("text", "person", "names", _EXPIRY_DAYS * 86_400_000_000), None
    stored = documents.decoded(document, _StoredGates)
    if stored is None:  # what cannot be read lets nothing through by itself
        stored = _StoredGates("function", "function", "function", None)
    return stored, services.promotion_gates.get(to)


class _Judgement(msgspec.Struct, frozen=True):
    """Return the gates' verdict: a refusal with its reason, a wait, or a pass."""

    refused: str | None = None
    waits_for: str | None = None
    stays_us: int = 0  # for how long the item stays


async def _judge(services: Services, stored: _StoredProposal, *, verified: bool) -> _Judgement:
    """Ask every gate; `verified`: a person has decided, which is the verification."""
    kept, functions = await _gates_of(services, stored.to)
    proposal = _proposal(stored)
    spans = [us for us in (stored.ttl_us, kept.expiry_us) if us is not None]
    if not spans:
        return _Judgement("expiry: neither the proposal nor the memory says when it expires")
    if kept.generalisable == "names" and (named := _names_source(stored)):
        return _Judgement(f"generalisable: it names {named}")
    if await _items(services.journal).find(_item_name(stored.to, _text_id(stored.text))):
        return _Judgement("duplicate: the memory has this text already")
    for gate in ("duplicate", "generalisable", "verification"):
        setting = getattr(kept, gate)
        if gate == "verification" and (verified or setting == "person"):
            continue
        if setting != "function":
            continue
        function = None if functions is None else getattr(functions, gate)
        if not callable(function):
            return _Judgement(waits_for=f"a process that declares the gate {gate}")
        items = (await recall(services.journal, stored.to),) if gate == "duplicate" else ()
        answer = function(proposal, *items)
        answer = await answer if isawaitable(answer) else answer
        if answer is not True:
            why = answer if isinstance(answer, str) and answer else "the gate refused it"
            return _Judgement(f"{gate}: {why}")
    waits = "a person" if kept.verification == "person" and not verified else None
    return _Judgement(waits_for=waits, stays_us=min(spans))


def _names_source(stored: _StoredProposal) -> str | None:
    """Return what of its source a text names: the user, or the session."""
    words = stored.text.lower()
    for what, name in (("its user", stored.key.user), ("its session", stored.key.id)):
        if len(name) >= 3 and name.lower() in words:  # shorter ones are in many words
            return what
    return None


# --- proposing and deciding ----------------------------------------------------------------------


async def propose(
    services: Services,
    text: str,
    *,
    provenance: Key,
    confidence: float,
    to: str,
    ttl: timedelta | None,
    actor: str | None,
) -> Proposal:
    """Queue a proposal and ask the gates: see `Limpet.propose`."""
    if (server := server_of(services.journal)) is not None:
        sent = (text, provenance, confidence, to, ttl, actor)
        proposed: Proposal = await ask_server(server, "propose", *sent)
        return proposed
    journal, to = services.journal, check_memory(to)
    learning = learnings.learning_of("lesson", text)
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise InvalidInput(f"confidence is a number from 0 to 1, not {described(confidence)}.")
    if ttl is not None and not _is_span(ttl):
        raise InvalidInput(f"ttl is a timedelta above 0, not {described(ttl)}.")
    head = (await journal.store.load(provenance, tail=0, scopes=False)).head
    by = journal.actor_of(actor or DefaultActor(f"agent:{provenance.app}"[:320]))
    stored = _StoredProposal(
        journal.new_id(),
        to,
        learning.text,
        (provenance.app, provenance.user, provenance.id),
        head.uid,
        float(confidence),
        journal.now_us(),
        by,
        None if ttl is None else ttl // _US,
    )
    fact = Fact(type=PROPOSED, data={"proposal": stored.id, "to": to, "learning": learning.id})
    commit = Commit(provenance, (journal.prepare(fact, by),), uid=head.uid)
    documents = _proposals(journal, provenance)
    put = Put(documents, stored.name, msgspec.to_builtins(stored), expect=0, actor=by)
    await commit_puts(journal, (commit,), (put,))
    # The gates decide for the memory, whoever proposes.
    system = services.system
    judged = await _judge(system, stored, verified=False)
    if judged.waits_for is not None:
        return _proposal(stored)
    accept = judged.refused is None
    decided = await _settle(system.journal, stored, judged, "all gates hold", _GATES, accept=accept)
    return _proposal(decided)


async def decide(
    services: Services, proposal: Proposal | str, *, accept: bool, reason: str, actor: str | None
) -> Proposal:
    """Accept or refuse a proposal: see `Limpet.decide`."""
    if type(accept) is not bool:
        raise InvalidInput(f"accept is True or False, not {described(accept)}.")
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidInput("a decision has a reason: a text that is not empty.")
    if (server := server_of(services.journal)) is not None:
        id = proposal.id if isinstance(proposal, Proposal) else proposal
        sent = (id, "accept" if accept else "refuse", reason, actor)
        decided: Proposal = await ask_server(server, "decide", *sent)
        return decided
    stored = await _find(services, proposal)
    by = services.journal.actor_of(actor or DefaultActor("system:operator"))
    stored.check_decision(accept=accept, by=str(by))
    if stored.status != "open":
        return _proposal(stored)
    judged = _Judgement(refused=reason)
    if accept:
        judged = await _judge(services.system, stored, verified=True)
        if judged.waits_for is not None:
            raise InvalidInput(f"proposal {stored.id} waits for {judged.waits_for}. Decide there.")
    settled = await _settle(services.journal, stored, judged, reason, by, accept=accept)
    settled.check_decision(accept=accept, by=str(by))  # somebody else may have been faster
    return _proposal(settled)


async def _find(services: Services, given: Proposal | str) -> _StoredProposal:
    """The newest version of a proposal. Raises ProposalNotFound."""
    if isinstance(given, Proposal):
        documents = _proposals(services.journal, given.provenance)
        name = f"{name_part(given.provenance.id)}/{given.id}"
        document = await documents.find(name)
        stored = None if document is None else documents.decoded(document, _StoredProposal)
    elif isinstance(given, str) and given:
        every = [each async for each in _each(services, None) if each.id == given]
        stored = every[0] if every else None
    else:
        raise InvalidInput(f"a proposal is named by itself or by its id, not {described(given)}.")
    if stored is None:
        raise ProposalNotFound(given if isinstance(given, str) else given.id)
    return stored


async def _settle(
    journal: Journal,
    stored: _StoredProposal,
    judged: _Judgement,
    reason: str,
    by: str,
    *,
    accept: bool,
) -> _StoredProposal:
    """Record a decision, and put the item, if it is accepted: all in one commit. Return the
    proposal as it was decided, by this call or by one that was faster."""
    documents, items = _proposals(journal, stored.key), _items(journal)

    async def attempt() -> _StoredProposal:
        document = await documents.find(stored.name)
        newest = None if document is None else documents.decoded(document, _StoredProposal)
        if document is None or newest is None:
            raise ProposalNotFound(stored.id)
        if newest.status != "open":  # another decided meanwhile
            return newest
        refused = judged.refused
        item = _item_of(stored, judged, reason, journal.now_us())
        if refused is None and await items.find(_item_name(item.to, item.id)) is not None:
            refused = "duplicate: the memory has this text already"
        decided = replace(
            newest,
            status="accepted" if refused is None else "refused",
            reason=refused or reason,
            decided_by=str(by),
            expires_us=item.expires_us if refused is None else None,
            accept=accept,
        )
        value = msgspec.to_builtins(decided)
        puts = [Put(documents, stored.name, value, expect=document.version, actor=by)]
        if refused is None:
            name = _item_name(item.to, item.id)
            puts.append(Put(items, name, msgspec.to_builtins(item), expect=0, actor=by))
            pointer = {"provenance": list(stored.provenance), "id": stored.id}
            puts.append(Put(_expiries(journal), _expiry_name(decided), pointer, actor=by))
        await commit_puts(journal, await _record(journal, decided, by), puts)
        return decided

    return await retrying(attempt, *_AGAIN)


async def _record(journal: Journal, decided: _StoredProposal, by: str) -> tuple[Commit, ...]:
    """The decision in the log of the session that it comes from, if that is still there: one that
    has moved goes on elsewhere, and what it contributed stays."""
    head = await head_of(journal, decided.key)
    if head is None or head.uid != decided.uid or is_stub(head.facts):
        return ()
    if departure(head.facts) is not None:
        return ()
    data = {"proposal": decided.id, "to": decided.to, "status": decided.status}
    fact = Fact(type=DECIDED, data={**data, "reason": decided.reason})
    return (Commit(decided.key, (journal.prepare(fact, by),), uid=head.uid),)


def _item_of(stored: _StoredProposal, judged: _Judgement, reason: str, at_us: int) -> _StoredItem:
    return _StoredItem(
        _text_id(stored.text),
        stored.to,
        "lesson",
        stored.text,
        (learnings.source(stored.key),),
        stored.confidence,
        at_us,
        reason,
        stored.provenance,
        at_us + judged.stays_us,
    )


def _text_id(text: str) -> str:
    return learnings.learning_of("lesson", text).id


def _item_name(to: str, id: str) -> str:
    return f"{name_part(to)}/{id}"


# --- reading -------------------------------------------------------------------------------------


async def proposals(
    services: Services, status: ProposalStatus | None, key: Key | None = None
) -> tuple[Proposal, ...]:
    """The proposals that may be shown to who asks, the oldest first: see `Limpet.proposals`."""
    if status not in (None, *PROPOSAL_STATUSES):
        known = ", ".join(PROPOSAL_STATUSES)
        raise InvalidInput(f"the status of a proposal is one of {known}, not {described(status)}.")
    if (server := server_of(services.journal)) is not None:
        listed: tuple[Proposal, ...] = await ask_server(server, "proposals", status, key)
        return listed
    shown: list[Proposal] = []
    async for stored in _each(services, key):
        if status in (None, stored.status) and len(shown) < _PROPOSALS_MAX:
            shown.append(_proposal(stored))
    return tuple(sorted(shown, key=lambda each: (each.at, each.id)))


async def waiting_proposals(services: Services) -> list[Proposal]:
    """The proposals that a person has to decide about, the oldest first."""
    if (server := server_of(services.journal)) is not None:
        return list(await ask_server(server, "waiting_proposals"))
    waiting = []
    needs_person: dict[str, bool] = {}
    for each in await proposals(services, "open"):
        if each.to not in needs_person:
            kept, _ = await _gates_of(services.system, each.to)
            needs_person[each.to] = kept.verification == "person"
        if needs_person[each.to]:
            waiting.append(each)
    return waiting


async def _each(services: Services, key: Key | None) -> AsyncIterator[_StoredProposal]:
    """Every proposal, or those of one session, whose sessions may be named to who asks."""
    journal = services.system.journal
    documents = Internal(journal, "proposals")
    own = None if services.guard is None else services.guard.principal
    user = prefix = None
    if key is not None:
        user, prefix = owner_of(key.app, key.user), f"{name_part(key.id)}/"
    elif own is not None and own.app is not None and own.user is not None:
        user = owner_of(own.app, own.user)
    query = Query(app=documents.app, user=user, order="key", reverse=False, prefix=prefix or "")
    async for page in head_pages(journal.store, query, states=True):
        for head in page.items:
            state = page.states.get(head.key, {})
            if "value" not in state:
                continue  # it was deleted, or cannot be read
            document = Document(head.key.id, state["value"], head.version, head.updated_at, "")
            stored = documents.decoded(document, _StoredProposal)
            if stored is not None and await _may_read(services, head.key, stored.key):
                yield stored


async def _may_read(services: Services, document: Key, of: Key) -> bool:
    """True if who asks may read the documents of its user, and the session, if it is there."""
    if services.guard is None:
        return True
    from limpet.security.access import Resource
    from limpet.security.guarded_store import access_of

    asked = access_of(document)
    if not services.guard.allows(asked.read, asked.resource):
        return False
    head = await head_of(services.system.journal, of)
    return head is None or services.guard.allows("read", Resource.of(of, head))


def _proposal(stored: _StoredProposal) -> Proposal:
    return Proposal(
        stored.id,
        stored.to,
        stored.text,
        stored.key,
        stored.confidence,
        to_time(stored.at_us),
        stored.actor,
        None if stored.ttl_us is None else stored.ttl_us * _US,
        stored.status,
        stored.reason,
        stored.decided_by,
    )


async def recall(journal: Journal, to: str) -> tuple[MemoryItem, ...]:
    """The items of a memory that have not expired, the oldest first."""
    documents, now_us = _items(journal), journal.now_us()
    items = []
    async for document in documents.each(f"{name_part(check_memory(to))}/"):
        stored = documents.decoded(document, _StoredItem)
        if stored is not None and (stored.expires_us is None or stored.expires_us > now_us):
            items.append(stored)
    items.sort(key=lambda each: (each.at_us, each.id))
    return tuple(map(_item, items))


def _item(stored: _StoredItem) -> MemoryItem:
    return MemoryItem(
        stored.id,
        stored.to,
        stored.kind,
        stored.text,
        None if stored.provenance is None else Key(*stored.provenance),
        len(stored.sources),
        stored.confidence,
        to_time(stored.at_us),
        None if stored.expires_us is None else to_time(stored.expires_us),
        stored.reason,
    )


async def memory_text(journal: Journal, agent: str) -> str:
    """The memory of an agent as Markdown, by kind: its MEMORY.md; empty if there is nothing."""
    if not isinstance(agent, str):
        raise InvalidInput(f"an agent is named by a text, not {described(agent)}.")
    items = await recall(journal, f"agent:{agent}")
    lines = [f"# What {agent} has learned"] if items else []
    for kind in KINDS:
        if texts := [item.text for item in items if item.kind == kind]:
            lines += ["", f"## {kind.capitalize()}s", "", *[f"- {text}" for text in texts]]
    return "\n".join(lines) + "\n" if lines else ""


# --- learnings -----------------------------------------------------------------------------------


async def promote(
    services: Services,
    agent: str,
    learning: Learning,
    *,
    session: Key | None,
    actor: str | None,
) -> Document:
    """Take a learning into the agent's memory: see `Limpet.promote`.

    The gates are decided on one version of the session whose outcome counts, and the promotion is
    recorded on that very version: a verdict that changed meanwhile is looked at again.
    """
    if not isinstance(learning, Learning):
        raise InvalidInput("promote takes a learning, as lp.learnings(agent) returns them.")
    by, gates = actor or _RUNTIME, await learnings.gates_of(services.journal, agent)
    journal, items = services.journal, _items(services.journal)
    of = None if session is None else Session[Any](services, session)
    name = _item_name(check_memory(f"agent:{agent}"), learning.id)

    async def attempt() -> Document:
        commits, sources = await _allowed_commits(journal, agent, learning, gates, of, by)
        if (document := await items.find(name)) is not None:
            return document
        item = _StoredItem(
            learning.id,
            f"agent:{agent}",
            learning.kind,
            learning.text,
            sources,
            1.0,
            journal.now_us(),
            "the gates of its outcome hold",
            None if session is None else (session.app, session.user, session.id),
        )
        put = Put(items, name, msgspec.to_builtins(item), expect=0, actor=by)
        _, (document,) = await commit_puts(journal, commits, (put,))
        return document

    return await retrying(attempt, DocumentConflict, SessionConflict)


async def _allowed_commits(
    journal: Journal, agent: str, learning: Learning, gates: Gates, of: Session[Any] | None, by: str
) -> tuple[tuple[Commit, ...], tuple[str, ...]]:
    """Return what the session records, on the version that was looked at, and the hashes of those
    that learned it. Raises PromotionRefused."""
    nobody = replace(learning, sessions=0)
    known = await learnings.find_learning(journal, agent, learning.id)
    counted, sources = (nobody, ()) if known is None else known
    reasons = [] if gates == Gates() else learnings.unmet_learning(gates, counted)
    if of is None:
        if gates.asks_for_outcome:
            reasons.append("its outcome counts, and no session= was given")
        learnings.refuse(agent, learning, reasons)
        return (), sources
    grade = await of.outcome.grade()
    outcome = of.outcome.current
    verdict = None if outcome is None else outcome.verdict
    reasons += learnings.unmet_outcome(gates, grade, verdict)
    if learnings.source(of.key) not in sources:
        reasons.append(f"session {of.key} has not learned it")
    learnings.refuse(agent, learning, reasons)
    fact = learnings.promoted(agent, learning, grade=grade, verdict=verdict)
    draft = journal.prepare(fact, by)
    return (Commit(of.key, (draft,), of.version, uid=of.head.uid),), sources


# --- removing ------------------------------------------------------------------------------------


async def withdraw(services: Services, key: Key, reason: str, by: str) -> int:
    """Remove what a session contributed from every memory. Returns how many items there were."""
    journal, removed = services.journal, 0
    if (server := server_of(journal)) is not None:
        withdrawn: int = await ask_server(server, "withdraw", key, reason, None)
        return withdrawn
    documents = _proposals(journal, key)
    async for stored in _each(services, key):
        removed += await _remove_item(journal, stored)
        if stored.status in ("open", "accepted"):
            await _close(journal, documents, stored, "withdrawn", reason, by)
    return removed + await forget_sources(journal, {learnings.source(key)})


async def erase_contributions(journal: Journal, *keys: Key) -> int:
    """Remove what these sessions contributed, and their proposals, with every version."""
    erased = 0
    for key in keys:
        documents = _proposals(journal, key)
        user, prefix = owner_of(key.app, key.user), f"{name_part(key.id)}/"
        query = Query(app=documents.app, user=user, order="key", reverse=False, prefix=prefix)
        async for head in each_head(journal.store, query):
            document = await documents.find(head.key.id)
            stored = None if document is None else documents.decoded(document, _StoredProposal)
            if stored is not None:
                erased += await _remove_item(journal, stored)
            await forget_keys(journal.store, [head.uid])
            erased += await documents.purge(head.key.id)
    return erased + await forget_sources(journal, {learnings.source(key) for key in keys})


async def forget_sources(journal: Journal, sources: Collection[str]) -> int:
    """Take sessions, by their hashes, out of learnings and items. What none is left of goes, with
    every version. Returns how many items went."""
    removed = 0
    collections: tuple[tuple[Internal, Any], ...] = (
        (learnings.learned(journal), learnings.StoredLearning),
        (_items(journal), _StoredItem),
    )
    for documents, form in collections:
        async for document in documents.each():
            stored = documents.decoded(document, form)
            if stored is None or not set(sources) & set(stored.sources):
                continue
            left = tuple([each for each in stored.sources if each not in sources])
            if left and form is not _StoredItem:
                with suppress(DocumentConflict):  # another session learns it at this moment
                    value = msgspec.to_builtins(replace(stored, sources=left))
                    await documents.put(document.name, value, expect=document.version, actor=_GATES)
            elif not left or _comes_from(stored, sources):
                await _purge(journal, documents, document.name)
                removed += form is _StoredItem
    return removed


def _comes_from(stored: _StoredItem, sources: Collection[str]) -> bool:
    """True if an item names one of these sessions as a source."""
    return stored.provenance is not None and learnings.source(Key(*stored.provenance)) in sources


async def expire_items(services: Services, limit: int) -> tuple[int, bool]:
    """Remove the items whose time has come. Returns how many, and whether there are more."""
    journal = services.journal
    expiries, now_us, removed = _expiries(journal), journal.now_us(), 0
    page = await expiries.list(limit=min(limit, PAGE_MAX))
    for document in page.items:
        if int(document.name.partition("/")[0]) > now_us:
            return removed, False
        value: Mapping[str, Any] = document.value
        key = Key(*value["provenance"])
        documents = _proposals(journal, key)
        proposal = await documents.find(f"{name_part(key.id)}/{value['id']}")
        stored = None if proposal is None else documents.decoded(proposal, _StoredProposal)
        if stored is not None and stored.status == "accepted":
            removed += await _remove_item(journal, stored)
            await _close(journal, documents, stored, "expired", "its time has come", _GATES)
        await expiries.purge(document.name)  # last: until then the next sweep begins here again
    return removed, page.cursor is not None


async def _remove_item(journal: Journal, stored: _StoredProposal) -> bool:
    if stored.status != "accepted":
        return False
    items, name = _items(journal), _item_name(stored.to, _text_id(stored.text))
    document = await items.find(name)
    item = None if document is None else items.decoded(document, _StoredItem)
    if item is None or item.provenance != stored.provenance:
        return False
    await _purge(journal, items, name)
    return True


async def _purge(journal: Journal, documents: Internal, name: str) -> None:
    head = await head_of(journal, documents.key(name))
    if head is not None:
        await forget_keys(journal.store, [head.uid])
        await documents.purge(name)


async def _close(
    journal: Journal,
    documents: Internal,
    stored: _StoredProposal,
    status: ProposalStatus,
    reason: str,
    by: str,
) -> None:
    """Record that a proposal is over."""

    async def attempt() -> None:
        document = await documents.find(stored.name)
        newest = None if document is None else documents.decoded(document, _StoredProposal)
        if document is None or newest is None or newest.status not in ("open", "accepted"):
            return
        over = replace(newest, status=status, reason=reason, decided_by=str(by), accept=None)
        put = Put(
            documents,
            stored.name,
            msgspec.to_builtins(over),
            expect=document.version,
            actor=by,
        )
        await commit_puts(journal, await _record(journal, over, by), (put,))

    await retrying(attempt, *_AGAIN)
