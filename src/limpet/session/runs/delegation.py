"""Delegation: a session, its parent and its children, as their logs name each other.

The end of a child, the message to its parent and the rest of its budget are one commit over both
sessions. A child that is deleted or erased notifies its parent before it goes: a process that dies
in between leaves a child that nobody waits for, and deleting it again finishes. The other way round
a parent could wait for a child that is gone. The child's log names its parent; only the parent's
own log says whether it has this child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from limpet import errors
from limpet.errors import (
    AccessDenied,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionError,
    SessionNotFound,
)
from limpet.model import EMPTY, Commit, DefaultActor, Draft, Event, Fact, Head, Key, Prepared
from limpet.model.events import CHILD_ENDED
from limpet.model.facts.phases import archive_place
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.children import (
    CHILD_CREATED,
    CHILD_RELEASED,
    created_id,
    kin,
    named,
    parent_in,
    works_for,
)
from limpet.model.facts.running.endings import is_untold
from limpet.model.facts.running.spawned import CHILD_DONE, CHILD_SPAWNED, child_done, is_spawned
from limpet.model.limits import PAGE_MAX
from limpet.session.journal import Journal, retrying
from limpet.store.protocol import Committed, Query, Store

BEGUN: Final = (CHILD_CREATED, CHILD_SPAWNED)
CHILD_TYPES: Final = (*BEGUN, CHILD_ENDED, CHILD_RELEASED, CHILD_DONE)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_OPERATOR: Final = DefaultActor("system:operator")


class Kin(msgspec.Struct, frozen=True):
    """A session in a tree of delegated sessions, with its own children."""

    key: Key
    title: str | None = None
    stop_reason: str | None = None  # how it ended for its parent; None: it has not
    summary: str | None = None  # as its parent received it when it ended
    output: Any = None
    children: tuple[Kin, ...] = ()
    gone: bool = False  # it was deleted or erased since

    @property
    def at_work(self) -> tuple[Key, ...]:
        """Its children that have not ended."""
        return tuple([child.key for child in self.children if child.stop_reason is None])

    @property
    def edges(self) -> tuple[tuple[Key, Key], ...]:
        """Every (parent, child) of the tree, parents first."""
        own = [(self.key, child.key) for child in self.children]
        return (*own, *[edge for child in self.children for edge in child.edges])


# --- who works for whom --------------------------------------------------------------------------


async def parent_of(journal: Journal, head: Head) -> Head | None:
    """Return the newest head of the session that delegated this one, if its own log says so too;
    None if there is none, it is gone, or another session has its key."""
    key = parent_in(head.facts)
    if key is None:
        return None
    try:
        parent = (await journal.store.load(key, tail=0, scopes=False)).head
        made = await journal.store.read_ids(key, [created_id(head.key.id)])
    except (*_GONE, AccessDenied):
        return None
    mine = kin(named(head.key, head.uid))
    said = [event.data for event in made if event.type in BEGUN and event.data is not None]
    is_named = mine in [kin(data) for data in said]
    return parent if is_named and works_for(head.facts, key, parent.uid) else None


async def kin_of(journal: Journal, key: Key, levels: int) -> Kin:
    """Return a session with those delegated from it, so many levels down. Reads one log for each
    that is not on the last of them."""
    return await _kin(journal, key, {}, levels, None)


async def children_elsewhere(journal: Journal, head: Head) -> list[Key]:
    """List the sessions that this one, archived or not, delegated to in other apps or to other
    users."""
    archived = archive_place(head.facts)
    if archived is not None:
        return [Key(*of) for of in archived.get("children", ())]
    own = (head.key.app, head.key.user)
    keys = [of["key"] for of in _children_in(await _events(journal, head))]
    return [key for key in keys if (key.app, key.user) != own]


async def _kin(
    journal: Journal, key: Key, known: dict[str, Any], left: int, parent: Head | None
) -> Kin:
    if not left:
        return Kin(key, **known)
    try:
        head = (await journal.store.load(key, tail=0, scopes=False)).head
        if parent is not None and not works_for(head.facts, parent.key, parent.uid):
            raise SessionNotFound(key)  # another session has the key
        events = await _events(journal, head)
    except SessionArchived:
        if not known:
            raise
        return Kin(key, **known)  # whom it delegated to stands in its file
    except AccessDenied:
        if parent is None:
            raise
        return Kin(key, **known)  # it works in a task of its own: what its parent knows is shown
    except _GONE:
        if parent is None:
            raise
        return Kin(key, **known, gone=True)
    kids = [await _kin(journal, of.pop("key"), of, left - 1, head) for of in _children_in(events)]
    return Kin(key, **known, children=tuple(kids))


def _children_in(events: list[Event]) -> list[dict[str, Any]]:
    """The children that a log names, in the order of their creation, and how each ended."""
    by_id: dict[str, dict[str, Any]] = {}
    for event in events:
        data = event.data
        if data is None:
            continue
        if event.type in BEGUN:
            child = Key(data["app"], data["user"], data["child"])
            by_id[child.id] = {"key": child, "title": data.get("title"), "stop_reason": None}
        elif data["child"] in by_id:
            said = {name: data.get(name) for name in ("summary", "output")}
            by_id[data["child"]] |= {"stop_reason": data.get("stop_reason", "interrupted"), **said}
    return list(by_id.values())


async def _events(journal: Journal, head: Head) -> list[Event]:
    """The events about children in the own log of a session: those of a fork begin with itself."""
    events: list[Event] = []
    after = head.floor
    while page := await journal.store.read(
        head.key, after=after, limit=PAGE_MAX, reverse=False, types=CHILD_TYPES
    ):
        events += page
        after = page[-1].seq
    return events


# --- the end of a child --------------------------------------------------------------------------


async def notify_parent(journal: Journal, key: Key) -> None:
    """Notify the parent of this session that it is going to be deleted, if one waits for it."""

    async def attempt() -> None:
        head = await head_of(journal, key)
        if head is not None and is_untold(head.facts):  # else gone, unreadable, or nobody waits
            await _end_deleted(journal, head)

    # It may go on meanwhile, and perhaps notify its parent itself.
    await retrying(attempt, SessionConflict)


async def head_of(journal: Journal, key: Key) -> Head | None:
    """Return the head of a living session, or None. Nothing is opened for it: a sealed session can
    be deleted and erased while the keys of its bodies are out of reach, or gone."""
    return await head_in(journal.store, key)


async def head_in(store: Store, key: Key) -> Head | None:
    """Return the head of a living session of this store, or None."""
    query = Query(app=key.app, user=key.user, order="key", reverse=False, prefix=key.id)
    heads = (await store.heads(query, cursor=None, limit=1)).items
    return heads[0] if heads and heads[0].key == key else None


async def _end_deleted(journal: Journal, head: Head) -> None:
    """End the delegation of a session at this version. Raises SessionConflict if it went on."""
    ended = None
    if not head.facts["delegation"].get("quiet"):  # else its parent was interrupted with it
        ended = children.child_ended(
            head.key, head.uid, "terminated", summary="deleted", output=None
        )
    mine = Commit(head.key, (), head.version, uid=head.uid)
    try:
        await end_delegation(
            journal,
            head,
            mine,
            ended,
            lambda draft: journal.prepare(draft, _OPERATOR),
            by=_OPERATOR,
        )
    except (*_GONE, SessionEnded) as error:
        if error.key != head.key:
            raise
        return  # another call was faster


async def end_delegation(
    journal: Journal,
    head: Head,
    mine: Commit,
    ended: Draft | None,
    prepare: Callable[[Draft], Prepared],
    *,
    by: str,
) -> tuple[Committed, tuple[Prepared, ...]]:
    """Record the end of a child with `mine`, and beside it what its parent accepts of it. Returns
    what was recorded of the child, and its drafts, which `prepare` makes.

    `ended` is the message to the parent, recorded by `by`; None: the parent was interrupted with
    the child and does not wait for it. A parent that has ended takes back its budget only. One that
    is gone, or has no such child, takes nothing, and the child keeps what is left.
    """
    delegation = children.delegation(head.facts)
    assert delegation is not None
    if is_spawned(head.facts):
        said = EMPTY if ended is None else ended.data
        end = {name: said[name] for name in ("stop_reason", "summary", "output") if name in said}
        return await _end_spawned(journal, mine, SpawnedEnd.of(journal, head, end, by), prepare)
    parent = Key(delegation["app"], delegation["user"], delegation["id"])
    account = budgets.returned(head.key, head.uid, head.facts)
    messages = [(account, children.child_released(head.key, head.uid)), (account, None), ()]
    for message in [(account, ended), *messages] if ended is not None else messages:
        own = [children.delegation_ended(), budgets.given_back(head.facts) if message else None]
        drafts = (*mine.drafts, *[prepare(each) for each in own if each is not None])
        commits = [structs.replace(mine, drafts=drafts)]
        if theirs := tuple([journal.prepare(each, by) for each in message if each is not None]):
            commits.append(Commit(parent, theirs, uid=delegation.get("uid", "")))
        try:
            committed, *_ = await journal.commit(commits)
        except (*_GONE, SessionEnded, errors.ChildNotFound) as error:
            if not theirs or getattr(error, "key", parent) != parent:
                raise
        else:
            return committed, drafts
    raise AssertionError("the last try returns or raises")


class SpawnedEnd(msgspec.Struct, frozen=True):
    """The end of a spawned child: what it records itself, and what its parent does beside it."""

    parent: Key
    own: tuple[Fact, ...]
    own_alone: tuple[Fact, ...]  # if the parent is gone, the child keeps what is left
    beside: Commit

    @classmethod
    def of(cls, journal: Journal, head: Head, end: Mapping[str, Any], by: str) -> SpawnedEnd:
        """The end of a child with this head; `end` has its stop_reason, summary and output."""
        delegation, parent = children.delegation(head.facts), parent_in(head.facts)
        assert delegation is not None
        assert parent is not None
        over, back = children.delegation_ended(), budgets.given_back(head.facts)
        done = journal.prepare(child_done(head.key, head.uid, head.facts, end), by)
        own = (over,) if back is None else (over, back)
        return cls(parent, own, (over,), Commit(parent, (done,), uid=delegation["uid"]))

    def is_refused_by_parent(self, error: SessionError) -> bool:
        """True if the parent is gone, or in the archive: then nobody waits for the child."""
        return isinstance(error, (*_GONE, SessionArchived)) and error.key == self.parent


async def _end_spawned(
    journal: Journal, mine: Commit, end: SpawnedEnd, prepare: Callable[[Draft], Prepared]
) -> tuple[Committed, tuple[Prepared, ...]]:
    for own, beside in ((end.own, (end.beside,)), (end.own_alone, ())):
        drafts = (*mine.drafts, *map(prepare, own))
        try:
            committed, *_ = await journal.commit((structs.replace(mine, drafts=drafts), *beside))
        except SessionError as error:
            if not beside or not end.is_refused_by_parent(error):
                raise
        else:
            return committed, drafts
    raise AssertionError("the last try returns or raises")


async def children_of(journal: Journal, head: Head) -> list[dict[str, Any]]:
    """Every child that a session ever had, in order of creation, by its own log: its key and title,
    and how it ended (`stop_reason` None: it has not), its summary and output."""
    return _children_in(await _events(journal, head))
