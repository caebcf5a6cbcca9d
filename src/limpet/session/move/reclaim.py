"""Reclaiming: a session that moved to a store which is lost for good is taken back where it left.

A move that does not finish waits for its target, since nobody can tell a lost store from one that
is out of reach. Here a person says which it is. What they say is checked as far as it can be: a
target that this store knows and can ask is not lost. `session.reclaimed` then opens a new epoch, in
one commit with a document of `$$reclaims` that remembers it. If the lost store comes back after
all, its copy lacks that event: no move accepts it here, its sweep does not let the session arrive
if it can ask here first, and doctor names the copy at either store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from limpet.errors import (
    DocumentConflict,
    LimpetError,
    ReclaimRefused,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionMoved,
    StoreError,
)
from limpet.model import EMPTY, Commit, Head, Key, Prepared
from limpet.model.facts.documents import VALUE
from limpet.model.facts.moves import (
    departure,
    family_in,
    last_epoch,
    leads_to,
    reclaimed,
    reclaimed_in,
)
from limpet.model.facts.phases import is_stub
from limpet.model.keys import RECLAIMS
from limpet.session.documents import Internal, Put, commit_puts
from limpet.session.journal import Journal, retrying
from limpet.session.loggers import SESSION
from limpet.session.move.arrivals import Arrival
from limpet.session.move.departures import settle_departure
from limpet.session.move.routes import gone_or_moved
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.delegation import head_of
from limpet.store.pages import head_pages
from limpet.store.protocol import Check, Query

if TYPE_CHECKING:
    from limpet.session.move.arrivals import Arrivals
    from limpet.session.move.nodes import Nodes
    from limpet.session.services import Services

_ASK_SECONDS: Final = 5.0
_ASKED_TOGETHER: Final = 16
_REMEMBERED: Final = 8  # reclaims of one session
_UNREACHABLE: Final = (StoreError, OSError, TimeoutError)


class Reclaimed(msgspec.Struct, frozen=True):
    """The result of a reclaim: who owns the session again, since which epoch, and which node is
    lost. `family` are the sessions that had left in one commit with it and came back in one."""

    key: Key
    node: str
    epoch: int
    lost: str
    family: tuple[Key, ...] = ()


# --- the verb ------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """The statement of a person: the session that left for `lost` in `epoch` is to go on here."""

    key: Key
    lost: str
    epoch: int
    reason: str
    actor: str


async def reclaim(services: Services, said: Statement) -> Reclaimed:
    """Take the session back, with those that left in one commit with it.

    Raises ReclaimRefused if it is not away so, or if the target can be asked; and what a load
    raises if nothing of the session is here.
    """
    errors = (SessionConflict, SessionDeleted, DocumentConflict)  # a mover or a sweep was faster
    return await retrying(lambda: _reclaim(services, said), *errors)


async def _reclaim(services: Services, said: Statement) -> Reclaimed:
    journal, nodes, epoch = services.journal, services.nodes, said.epoch + 1
    assert nodes is not None, "a session that is read from a file is not written"
    head = await _head(services, said)
    if reclaimed_in(head.facts) == (said.lost, epoch):  # the answer was lost, and this repeats it
        return Reclaimed(said.key, str(head.facts["moves"]["node"]), epoch, said.lost)
    family = await _departed(journal, head, said)
    await _refuse_reachable(services, nodes, head)  # they left for one store
    if (server := server_of(journal)) is not None:
        taken: Reclaimed = await ask_server(server, "reclaim", *said)
        return taken
    commits, puts = [], []
    for each in family:
        fact = reclaimed(nodes.name, each.facts["departed"], said.reason)
        draft = journal.prepare(fact, said.actor)
        commits.append(Commit(each.key, (draft,), each.version, uid=each.uid))
        puts.append(await _remembered(journal, each, draft))
    await commit_puts(journal, commits, puts)
    for each in family:
        await settle_departure(journal, each.key, each.uid, last_epoch(each.facts))
        SESSION.warning("session reclaimed: session=%s lost=%s", each.key, said.lost)
    keys = tuple([each.key for each in family])
    return Reclaimed(said.key, nodes.name, epoch, said.lost, keys if len(keys) > 1 else ())


async def _head(services: Services, said: Statement) -> Head:
    """Return the newest head. Raises ReclaimRefused if the rows of the session are gone."""
    head = await head_of(services.journal, said.key)
    if head is None:
        try:
            async with gone_or_moved(services):
                head = (await services.journal.store.load(said.key, tail=0, scopes=False)).head
        except SessionMoved as gone:
            reason = (
                f"what it left here was removed a day after it had arrived at {gone.to}. Restore a "
                "backup of this store that has it, or import an export"
            )
            raise ReclaimRefused(said.key, reason) from gone
    if is_stub(head.facts):
        raise SessionArchived(said.key)
    return head


async def _departed(journal: Journal, head: Head, said: Statement) -> list[Head]:
    """Return the session, if it is away as was said, and those that left with it and are still
    away. Raises ReclaimRefused."""
    away = departure(head.facts)
    if away is None:
        raise ReclaimRefused(said.key, "it is here and takes writes. There is nothing to reclaim")
    if (away["to"], away["epoch"]) != (said.lost, said.epoch):
        reason = f"it left for {away['to']} in epoch {away['epoch']}, not for {said.lost} in epoch "
        raise ReclaimRefused(said.key, f"{reason}{said.epoch}. Name the store that is lost")
    family = [head]
    for key in family_in(away):
        other = None if key == head.key else await head_of(journal, key)
        own = None if other is None else departure(other.facts)
        if other is not None and own is not None and _together(own, away):
            family.append(other)
    return family


def _together(own: Mapping[str, object], away: Mapping[str, object]) -> bool:
    return (own["to"], own.get("family")) == (away["to"], away.get("family"))


async def _refuse_reachable(services: Services, nodes: Nodes, head: Head) -> None:
    """Raise ReclaimRefused if the store that the session left for can be asked: it is not lost.

    A new store in its place has another identity: then what was there is lost.
    """
    away, journal = head.facts["departed"], services.journal
    if leads_to(away, nodes.name, await journal.store.identity()):
        reason = "it left for this very store. Sweep it: the session arrives, or frees its key"
        raise ReclaimRefused(head.key, reason)
    if not nodes.knows(away["to"]):
        return
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            there: Arrivals = await nodes.arrivals(away["to"])
            if not leads_to(away, there.node, await there.identity()):
                return
            arrival = Arrival(head.key, head.uid, away["epoch"], nodes.name)
            arrived = await there.decision(arrival) == "arrived"
    except _UNREACHABLE:
        return
    reason = f"{away['to']} can be reached, and has received it. Go on there, or move it back"
    if not arrived:
        reason = f"{away['to']} can be reached. Sweep this store with its node, or move it again"
    raise ReclaimRefused(head.key, reason)


# --- what is remembered --------------------------------------------------------------------------


class Reclaim(msgspec.Struct, frozen=True):
    """A session that was reclaimed here, from whom, and by which event."""

    key: Key
    uid: str
    event: str
    lost: str
    epoch: int  # that the lost store was left for


class _Form(msgspec.Struct, frozen=True):
    """The document of a session: its reclaims as (event, lost, epoch), the newest last."""

    owner: tuple[str, str]
    uid: str
    reclaims: tuple[tuple[str, str, int], ...]


def reclaims(journal: Journal, key: Key) -> Internal:
    """Return the documents of a session's user; the one of a session has its id."""
    return Internal(journal, RECLAIMS.removeprefix("$$"), owner=(key.app, key.user))


async def _remembered(journal: Journal, head: Head, draft: Prepared) -> Put:
    """Return the document of this reclaim and of those before."""
    documents, key, away = reclaims(journal, head.key), head.key, head.facts["departed"]
    document = await documents.find(key.id)
    form = None if document is None else documents.decoded(document, _Form)
    before = form.reclaims if form is not None and form.uid == head.uid else ()
    made = (*before, (draft.id, away["to"], away["epoch"]))[-_REMEMBERED:]
    value = {"owner": [key.app, key.user], "uid": head.uid, "reclaims": [list(e) for e in made]}
    version = 0 if document is None else document.version
    return Put(documents, key.id, value, expect=version, actor=draft.actor)


async def _all_reclaims(journal: Journal) -> AsyncIterator[list[Reclaim]]:
    """Yield what was reclaimed in a store, page by page."""
    query = Query(app=RECLAIMS, order="key", reverse=False)
    async for page in head_pages(journal.store, query, states=True):
        taken: list[Reclaim] = []
        for head in page.items:
            try:
                form = msgspec.convert(page.states.get(head.key, EMPTY).get(VALUE), _Form)
            except msgspec.ValidationError:
                continue  # of another release
            key = Key(*form.owner, head.key.id)
            taken += [Reclaim(key, form.uid, *each) for each in form.reclaims]
        yield taken


async def was_reclaimed(nodes: Nodes, head: Head) -> bool:
    """True if the node that a session came from says that it has reclaimed it since. False if it
    cannot be asked."""
    away = head.facts["departed"]
    if not nodes.knows(away["from"]):
        return False
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            there: Arrivals = await nodes.arrivals(away["from"])
            documents = reclaims(there.journal, head.key)
            document = await documents.find(head.key.id)
    except (LimpetError, OSError, TimeoutError):
        return False
    form = None if document is None else documents.decoded(document, _Form)
    if form is None or form.uid != head.uid:
        return False
    return any([epoch == away["epoch"] for _, _, epoch in form.reclaims])


# --- for the doctor ------------------------------------------------------------------------------


async def reclaim_checks(services: Services) -> tuple[Check, ...]:
    """Return the doctor's checks of reclaimed sessions: at every node that can be asked, is there a
    copy from before, that takes writes?"""
    nodes, journal = services.nodes, services.journal
    if nodes is None:
        return ()
    checks: list[Check] = []
    own = [each async for page in _all_reclaims(journal) for each in page]
    unasked: dict[str, str] = {}
    for name in nodes.others:
        try:
            async with asyncio.timeout(_ASK_SECONDS) as patience:
                there: Arrivals = await nodes.arrivals(name)
                copies = [(each, name) async for each in _copies(there.journal, own, patience)]
                async for page in _all_reclaims(there.journal):
                    here = _copies(journal, page, patience)
                    copies += [(each, nodes.name) async for each in here]
        except (LimpetError, OSError, TimeoutError) as error:
            unasked[name] = type(error).__name__
            continue
        checks += [_copy_check(each, at) for each, at in copies]
    if unasked:
        name, why = next(iter(unasked.items()))
        text = f"{len(unasked):,} of the other nodes cannot be asked, the first {name} ({why})"
        checks.append(Check("nodes", text, "warning", "Start it, or leave it out of nodes=."))
    if own and not checks:
        text = f"{len(own):,} reclaimed, the last from {own[-1].lost}; no copy is known"
        checks.append(Check("reclaimed", text, "ok"))
    return tuple(checks)


async def _copies(
    journal: Journal, reclaims: Sequence[Reclaim], patience: asyncio.Timeout
) -> AsyncIterator[Reclaim]:
    """Yield those of which a store has a copy. It may take its time for each, not for all: there
    may be thousands, and far away."""
    loop = asyncio.get_running_loop()
    for at in range(0, len(reclaims), _ASKED_TOGETHER):
        some = reclaims[at : at + _ASKED_TOGETHER]
        has = await asyncio.gather(*[_has_copy(journal, each) for each in some])
        for each, is_there in zip(some, has, strict=True):
            if is_there:
                yield each
        patience.reschedule(loop.time() + _ASK_SECONDS)


async def _has_copy(journal: Journal, reclaim: Reclaim) -> bool:
    """True if a store has a copy of the session that takes writes and was not reclaimed."""
    head = await head_of(journal, reclaim.key)
    if head is None or head.uid != reclaim.uid or departure(head.facts) is not None:
        return False
    if is_stub(head.facts):
        return False
    return not await journal.store.read_ids(reclaim.key, (reclaim.event,))


def _copy_check(of: Reclaim, at: str) -> Check:
    text = f"two stores own {of.key}: it was reclaimed from {of.lost}, and {at} has it from before"
    advice = (
        f"Compare both logs. Keep one: export the other if you need what it recorded (limpet "
        f"export), then erase it where it is (limpet erase). Usually that is the one at {at}."
    )
    return Check("reclaimed", text, "problem", advice)
