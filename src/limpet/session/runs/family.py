"""Family: a session and all that were delegated from it, read from their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import SessionArchived, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import PAGE_MAX, Event, Head, Key
from limpet.model.events import CHILD_ENDED
from limpet.model.facts.archive import place
from limpet.model.facts.running.children import (
    CHILD_CREATED,
    CHILD_RELEASED,
    created_id,
    kin,
    named,
    parent_in,
    works_for,
)

if TYPE_CHECKING:
    from limpet.session.journal import Journal

_TYPES: Final = (CHILD_CREATED, CHILD_ENDED, CHILD_RELEASED)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)


class Kin(msgspec.Struct, frozen=True):
    """A session among those that were delegated from one, with its own children."""

    key: Key
    title: str | None = None
    stop_reason: str | None = None  # how it ended for its parent; None: it has not
    summary: str | None = None  # what it told its parent when it ended
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


async def parent_of(journal: Journal, head: Head) -> Head | None:
    """The newest head of the session that delegated this one, if its own log says so too; None if
    there is none, it is gone, or another session has its key."""
    key = parent_in(head.facts)
    if key is None:
        return None
    try:
        parent = (await journal.store.load(key, tail=0, scopes=False)).head
        made = await journal.store.read_ids(key, [created_id(head.key.id)])
    except _GONE:
        return None
    mine = kin(named(head.key, head.uid))
    said = [event.data for event in made if event.type == CHILD_CREATED and event.data is not None]
    is_named = mine in [kin(data) for data in said]
    return parent if is_named and works_for(head.facts, key, parent.uid) else None


async def kin_of(journal: Journal, key: Key, levels: int) -> Kin:
    """A session with those delegated from it, so many levels down. Reads one log for each that is
    not on the last of them."""
    return await _kin(journal, key, {}, levels, None)


async def _kin(
    journal: Journal, key: Key, known: dict[str, Any], left: int, parent: Head | None
) -> Kin:
    if not left:
        return Kin(key, **known)
    try:
        head = (await journal.store.load(key, tail=0, scopes=False)).head
        if parent is not None and not works_for(head.facts, parent.key, parent.uid):
            raise SessionNotFound(key)  # another session has the key
        events = await _events(journal, key)
    except SessionArchived:
        if not known:
            raise
        return Kin(key, **known)  # whom it delegated to stands in its file
    except _GONE:
        if parent is None:
            raise
        return Kin(key, **known, gone=True)
    kids = [await _kin(journal, of.pop("key"), of, left - 1, head) for of in _told(events)]
    return Kin(key, **known, children=tuple(kids))


async def children_elsewhere(journal: Journal, head: Head) -> list[Key]:
    """The sessions that this one, archived or not, delegated to in other apps or to other users."""
    archived = place(head.facts)
    if archived is not None:
        return [Key(*of) for of in archived.get("children", ())]
    own = (head.key.app, head.key.user)
    found = [of["key"] for of in _told(await _events(journal, head.key))]
    return [key for key in found if (key.app, key.user) != own]


def _told(events: list[Event]) -> list[dict[str, Any]]:
    """The children that a log tells of, in the order of their creation, and how each ended."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        data = event.data
        if data is None:
            continue
        if event.type == CHILD_CREATED:
            child = Key(data["app"], data["user"], data["child"])
            found[child.id] = {"key": child, "title": data.get("title"), "stop_reason": None}
        elif data["child"] in found:
            said = {name: data.get(name) for name in ("summary", "output")}
            ended = {"stop_reason": data.get("stop_reason", "interrupted"), **said}
            found[data["child"]] |= ended
    return list(found.values())


async def _events(journal: Journal, key: Key) -> list[Event]:
    events: list[Event] = []
    after = 0
    how: dict[str, Any] = {"limit": PAGE_MAX, "reverse": False, "types": _TYPES}
    while page := await journal.store.read(key, after=after, **how):
        events += page
        after = page[-1].seq
    return events
